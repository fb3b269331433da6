"""Launch points: hooks at module boundaries that record where the compute stream is.

A collective with a launch point is issued when the point is met and waits for the event recorded there,
so it cannot start earlier on the device either, however far the CPU runs ahead. An event that was not
recorded is never waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from kareus.runtime import torch_api
from kareus.runtime.records import Tally
from kareus.runtime.streams import Timeline
from kareus.schedule import LaunchPoint

WRAPPER_SEGMENTS = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}


def module_paths(root: nn.Module) -> dict[str, nn.Module]:
    """Return modules by path, also without the segments that checkpoint and compile wrappers add."""
    found: dict[str, nn.Module] = {}
    for path, module in root.named_modules():
        found[path] = module
        plain = ".".join(part for part in path.split(".") if part not in WRAPPER_SEGMENTS)
        if plain != path:
            found[plain] = module  # the innermost module wins: its hooks bracket the kernels alone
    return found


def compiled_paths(root: nn.Module) -> set[str]:
    """Return paths of modules that run inside a compiled region, where a hook would break the graph."""
    inside: set[str] = set()
    for path, module in root.named_modules():
        whole, wrapper = torch_api.is_compiled(module), torch_api.is_compile_wrapper(module)
        if not whole and not wrapper:
            continue
        prefix = f"{path}." if path else ""
        inside |= {p for p, _ in root.named_modules() if p.startswith(prefix) and p != path}
        if whole:
            inside.add(path)
    return inside


def first_tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors with gradients in an output or argument structure, two levels deep."""
    if isinstance(value, torch.Tensor):
        return [value] if value.requires_grad else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [
            t for item in value if isinstance(item, (torch.Tensor, list, tuple)) for t in first_tensors(item)
        ]
    return []


class LaunchBoard:
    """Events of the launch points met in the current pass, and the hooks that record them.

    Args:
        root: module that launch points are named from. timeline: makes the marks.
        active: whether hooks should act now (scheduled arm, not evaluating, not capturing).
        tally: counts points that no hook can reach.
        observing: whether hooks should only tell `on_seen` that a point was passed.
        on_met: called after a mark was recorded.
    """

    def __init__(
        self,
        root: nn.Module,
        timeline: Timeline,
        *,
        active: Callable[[], bool],
        tally: Tally,
        on_met: Callable[[LaunchPoint], None],
        observing: Callable[[], bool] = lambda: False,
        on_seen: Callable[[LaunchPoint], None] = lambda _: None,
    ) -> None:
        self._root, self._timeline, self._active = root, timeline, active
        self._tally, self._on_met = tally, on_met
        self._observing, self._on_seen = observing, on_seen
        self._handles: list[RemovableHandle] = []
        self.reachable: set[LaunchPoint] = set()
        self.marks: dict[LaunchPoint, Any] = {}
        self.listeners: list[Callable[[LaunchPoint, Any], None]] = []

    def install(self, points: set[LaunchPoint], *, elsewhere: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        """Place hooks for the points; modules in `elsewhere` are reported by the caller itself."""
        modules, compiled = module_paths(self._root), compiled_paths(self._root)
        for point in sorted(points, key=str):
            if point.module in elsewhere:
                self.reachable.add(point)
                continue
            module = modules.get(point.module)
            if module is None or point.module in compiled:
                why = "is inside a compiled region" if module is not None else "does not exist"
                self._tally.add(
                    "launch_unreachable",
                    f"launch point {point}: module {point.module!r} {why}; its collectives start as in stock",
                )
                continue
            self.reachable.add(point)
            self._hook(module, point)

    def _hook(self, module: nn.Module, point: LaunchPoint) -> None:
        if point.phase == "forward":

            def forward(*_: Any) -> None:
                if not torch_api.in_backward():
                    self.meet(point)

            register = (
                module.register_forward_pre_hook if point.side == "before" else module.register_forward_hook
            )
            self._handles.append(register(forward))
            return

        def backward(_: torch.Tensor) -> None:
            self.meet(point)

        def attach_outputs(_: nn.Module, inputs: Any, output: Any) -> None:
            if not self._active() and not self._observing():
                return
            # A tensor hook, unlike a module backward hook, adds no node to the graph.
            source = output if point.side == "before" else inputs
            for tensor in first_tensors(source)[:1]:
                tensor.register_hook(backward)  # type: ignore[no-untyped-call]

        self._handles.append(module.register_forward_hook(attach_outputs))

    def meet(self, point: LaunchPoint) -> None:
        """Record the mark of a point and tell the driver; the first time in a pass counts."""
        if self.record(point):
            self._on_met(point)

    def record(self, point: LaunchPoint) -> bool:
        """Record the mark of a point only; returns whether it is new in this pass and in force."""
        if point not in self.reachable:
            return False  # no decision names it
        if self._observing():
            self._on_seen(point)
        if not self._active() or point in self.marks:
            return False
        try:
            self.marks[point] = self._timeline.mark()
        except RuntimeError as error:  # a device error surfaces in the training loop's own next call
            self._tally.add("launch_failed", f"launch point {point} could not be recorded: {error}")
            return False
        for listener in self.listeners:
            listener(point, self.marks[point])
        return True

    def begin_pass(self) -> None:
        """Forget the marks of the last pass."""
        self.marks.clear()

    def remove(self) -> None:
        """Take every hook off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
