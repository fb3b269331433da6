"""Windows, launch points and deferral, on one process."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from kareus.runtime.deferral import ReduceDeferral
from kareus.runtime.launch import LaunchBoard, compiled_paths, module_paths
from kareus.runtime.records import Tally
from kareus.runtime.streams import CpuTimeline
from kareus.runtime.windows import plan_windows
from kareus.schedule import (
    LaunchPoint,
)

# Windows


def test_window_ends_at_the_next_unit_event() -> None:
    tokens = ["pre_forward:a:0", "point:P", "point:Q", "post_forward:a:0", "pre_forward:b:0", "point:R"]
    targets = {
        "point:P": [("b", "forward")],
        "point:Q": [("c", "forward")],
        "point:R": [("d", "forward")],
        "point:S": [("e", "forward")],
    }
    windows = plan_windows(tokens, targets)
    assert windows.at_point["point:P"] == (("b", "forward"),)
    assert windows.at_point["point:Q"] == (("b", "forward"), ("c", "forward"))
    assert windows.before_anchor == {"post_forward:a:0": (("b", "forward"), ("c", "forward"))}
    assert windows.dropped == ("point:S",)
    assert ("e", "forward") not in windows.launched


# Launch points


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return x + self.second(self.first(x))


def board_for(model: nn.Module, met: list[LaunchPoint], tally: Tally | None = None) -> LaunchBoard:
    return LaunchBoard(model, CpuTimeline(), active=lambda: True, tally=tally or Tally(0), on_met=met.append)


def test_points_are_met_in_program_order_in_both_passes() -> None:
    model = Two()
    points = [
        LaunchPoint(module=m, phase=p, side=s)  # type: ignore[arg-type]
        for m in ("first", "second") for p in ("forward", "backward") for s in ("before", "after")
    ]  # fmt: skip
    met: list[LaunchPoint] = []
    board = board_for(model, met)
    board.install(set(points))
    x = torch.randn(2, 4, requires_grad=True)
    model(x).sum().backward()
    names = [str(p) for p in met]
    assert names[:5] == [
        "before first (forward)",
        "after first (forward)",
        "before second (forward)",
        "after second (forward)",
        "before second (backward)",
    ]
    # The gradient that leaves `second` is the one that enters `first`: one moment, two names.
    assert set(names[5:7]) == {"after second (backward)", "before first (backward)"}
    assert names[7:] == ["after first (backward)"]
    board.remove()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_recomputation_does_not_meet_forward_points() -> None:
    from torch.utils.checkpoint import checkpoint

    for reentrant in (True, False):
        model = Two()
        met: list[LaunchPoint] = []
        board = board_for(model, met)
        board.install({LaunchPoint(module="first", phase="forward", side="before")})
        x = torch.randn(2, 4, requires_grad=True)
        out = checkpoint(model, x, use_reentrant=reentrant)
        assert len(met) == 1
        board.begin_pass()
        out.sum().backward()
        assert len(met) == 1


def test_unreachable_points_are_counted_not_raised() -> None:
    model = Two()
    model.first.compile(backend="eager")
    tally = Tally(0)
    board = board_for(model, [], tally)
    board.install(
        {
            LaunchPoint(module="missing", phase="forward", side="before"),
            LaunchPoint(module="first", phase="forward", side="before"),
        }
    )
    assert tally.counts["launch_unreachable"] == 2
    assert board.reachable == set()


def test_paths_see_through_wrappers() -> None:
    model = Two()
    model.first = torch.compile(model.first, backend="eager")
    assert module_paths(model)["first"] is model.first._orig_mod
    assert compiled_paths(model) == {"first._orig_mod"}


# Deferral


class Unit:
    reduce_grads = True

    def __init__(self) -> None:
        self._post_forward_indices: list[int] = []


def test_deferral_keeps_order_and_flushes_at_the_end() -> None:
    ran: list[str] = []
    units = {name: Unit() for name in "abc"}

    class State:
        def _root_post_backward_final_callback(self) -> None:
            ran.append("final")

    deferral = ReduceDeferral(1, active=lambda: True)
    state = State()
    deferral.wrap_final_callback(state)
    for name, unit in units.items():
        deferral.post_backward(unit, lambda name=name: ran.append(name))
    assert ran == ["a", "b"]
    state._root_post_backward_final_callback()
    assert ran == ["a", "b", "c", "final"]
    deferral.unwrap_final_callback(state)
    assert not vars(state)


def test_unit_with_another_use_to_come_is_not_deferred() -> None:
    ran: list[str] = []
    unit = Unit()
    unit._post_forward_indices = [0]
    ReduceDeferral(2, active=lambda: True).post_backward(unit, lambda: ran.append("now"))
    assert ran == ["now"]
