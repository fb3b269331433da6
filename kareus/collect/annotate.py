"""Names on the timeline: every submodule's forward and backward as "kareus::forward blocks.2.mlp".

Launch points are places before or after a submodule, so a recording needs their names beside the kernels.
Hooks exist only while the window is open. Backward ranges come from the autograd node of a module's
output: it runs first in the module's backward, and when another module's begins, every range that is not
its parent has ended. Module hooks for backward would put nodes of their own into the graph; these do not.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

from kareus.collect.profiler import Label, after_backward, in_backward, is_compiled

MAX_MODULES = 20_000  # two hooks each; beyond this a window would mostly measure its own hooks


def annotatable(root: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return (path, module) of submodules whose calls run as Python, in registration order.

    What is compiled is left out whole: a hook inside would split or recompile its graph.
    """
    found: list[tuple[str, nn.Module]] = []

    def walk(module: nn.Module, path: str) -> None:
        if is_compiled(module):
            return
        if path and not isinstance(module, nn.ModuleList | nn.ModuleDict):
            found.append((path, module))
        for name, child in module.named_children():
            walk(child, f"{path}.{name}" if path else name)

    walk(root, "")
    return found[:MAX_MODULES]


class _Lane(threading.local):
    """Open ranges of one thread: (path, label), outermost first."""

    def __init__(self) -> None:
        self.forward: list[tuple[str, Label]] = []
        self.backward: list[tuple[str, Label]] = []


class _Turn:
    """Paths whose backward ends, and whose backward begins, when one autograd node runs."""

    __slots__ = ("begins", "ends")

    def __init__(self) -> None:
        self.begins: list[str] = []
        self.ends: list[str] = []


def _is_inside(path: str, outer: str) -> bool:
    return path.startswith(outer + ".")


class Annotator:
    """Puts ranges around submodules between `install` and `remove`.

    Args:
        root: module that paths are named from (inside the wrapper for DDP).

    Attributes:
        failures: hooks that could not do their work; they never disturb the pass.
    """

    def __init__(self, root: nn.Module) -> None:
        self.failures = 0
        self._root = root
        self._handles: list[Any] = []
        self._lane = _Lane()
        self._active = False
        self._key = f"kareus.annotate.{id(self)}"

    def install(self) -> int:
        """Hook every submodule and return how many were hooked."""
        modules = annotatable(self._root)
        self._active = True
        for path, module in modules:
            # Last before and first after: FSDP's own hooks stay outside of the module's range.
            self._handles.append(module.register_forward_pre_hook(self._before(path)))
            self._handles.append(
                module.register_forward_hook(self._after(path), prepend=True, always_call=True)
            )
        return len(modules)

    def remove(self) -> None:
        """Take every hook away; autograd nodes of a graph still alive find nothing to do."""
        self._active = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._close(self._lane.forward, "")
        self._close(self._lane.backward, "")

    def _before(self, path: str) -> Any:
        def hook(module: nn.Module, inputs: Any) -> None:
            # Activation checkpointing runs forwards again inside backward: that is backward's work.
            backward = in_backward()
            label = Label(f"kareus::{'backward' if backward else 'forward'} {path}")
            self._lane.forward.append((path, label))
            tensor = None if backward else first_tensor(inputs)
            if tensor is not None:
                # The node that made the input runs when this module's backward is over.
                self._watch(tensor.grad_fn).ends.append(path)

        return hook

    def _after(self, path: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            lane = self._lane.forward
            while lane:
                inner, label = lane.pop()
                label.close()
                if inner == path:
                    break
            tensor = None if in_backward() else first_tensor(output)
            if tensor is not None:
                self._watch(tensor.grad_fn).begins.append(path)

        return hook

    def _watch(self, node: Any) -> _Turn:
        """Return what begins and ends when an autograd node runs, hooking the node the first time."""
        turn = node.metadata.get(self._key)
        if turn is None:
            turn = node.metadata[self._key] = _Turn()
            node.register_prehook(self._turning(turn))
        return turn  # type: ignore[no-any-return]

    def _turning(self, turn: _Turn) -> Any:
        def hook(gradients: Any) -> None:
            if not self._active:
                return
            try:
                lane = self._lane.backward
                if not lane:
                    after_backward(lambda: self._close(lane, ""))
                for path in turn.ends:
                    while any(path == opened for opened, _ in lane):
                        lane.pop()[1].close()
                for path in reversed(turn.begins):  # inner modules end their forward first
                    self._close(lane, path)
                    lane.append((path, Label(f"kareus::backward {path}")))
            except RuntimeError:
                self.failures += 1

        return hook

    def _close(self, lane: list[tuple[str, Label]], path: str) -> None:
        """End ranges that do not hold `path`; all of them where it is empty."""
        while lane and not (path and _is_inside(path, lane[-1][0])):
            lane.pop()[1].close()


def first_tensor(value: Any) -> torch.Tensor | None:
    """Return the first tensor with a gradient in a module's output, searching tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return value if value.grad_fn is not None else None
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for item in items:
        found = first_tensor(item)
        if found is not None:
            return found
    return None
