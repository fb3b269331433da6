"""Wrappers around one unit's methods that FSDP2 calls at the four corners of its forward and backward.

They sit on the parameter group's instance (`torch_api.UNIT_METHODS`), which FSDP itself calls outside
compiled regions; taking one away restores torch's own method. A method is only wrapped where the schedule
or the measuring needs it, because each wrapper costs CPU time in every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kareus.runtime import torch_api
from kareus.runtime.torch_api import FsdpUnit
from kareus.schedule import LaunchPoint

if TYPE_CHECKING:
    from kareus.runtime.fsdp2 import Fsdp2Driver

Method = Callable[..., Any]


def wrap_unit(driver: Fsdp2Driver, unit: FsdpUnit) -> None:
    """Wrap what one unit needs wrapped."""
    schedule = driver.conductor.schedule
    timed, paced = driver.stalls.enabled, driver.is_paced
    reaches = {
        "pre_forward": timed
        or paced
        or (schedule is not None and (schedule.forward_prefetch is not None or schedule.early_gathers > 0)),
        "post_forward": paced,
        "pre_backward": timed or paced,
        "post_backward": timed or paced or driver.defers,
        "_prefetch_unshard": paced or (schedule is not None and schedule.backward_prefetch is not None),
    }
    makers: dict[str, Callable[[Fsdp2Driver, FsdpUnit, Method], Method]] = {
        "pre_forward": _pre_forward,
        "post_forward": _post_forward,
        "pre_backward": _pre_backward,
        "post_backward": _post_backward,
        "_prefetch_unshard": _prefetch,
    }
    for name, needed in reaches.items():
        if needed:
            setattr(unit.group, name, makers[name](driver, unit, getattr(unit.group, name)))
    if driver.defers:
        driver.deferral.wrap_final_callback(unit.state)


def _pre_forward(driver: Fsdp2Driver, unit: FsdpUnit, original: Method) -> Method:
    board, stalls = driver.board, driver.stalls
    start = LaunchPoint(module=unit.name, phase="forward", side="before")

    def pre_forward(*args: Any, **kwargs: Any) -> Any:
        driver.compute_stream = driver.timeline.current_stream()
        recomputing = torch_api.in_backward()
        fresh = False
        if not recomputing:
            driver.meet_anchor("pre_forward", unit)
            fresh = board.record(start)  # the unit's own gather may wait for it
        stalls.arrive()
        result = original(*args, **kwargs)
        stalls.gathered(unit.name)
        if not recomputing:
            driver.entered_forward(unit)
        if fresh:
            driver.on_met(start)
        return result

    return pre_forward


def _post_forward(driver: Fsdp2Driver, unit: FsdpUnit, original: Method) -> Method:
    end = LaunchPoint(module=unit.name, phase="forward", side="after")

    def post_forward(*args: Any, **kwargs: Any) -> Any:
        recomputing = torch_api.in_backward()
        if not recomputing:
            driver.meet_anchor("post_forward", unit)
        result = original(*args, **kwargs)
        if not recomputing:
            driver.board.meet(end)
        return result

    return post_forward


def _pre_backward(driver: Fsdp2Driver, unit: FsdpUnit, original: Method) -> Method:
    stalls = driver.stalls
    start = LaunchPoint(module=unit.name, phase="backward", side="before")

    def pre_backward(*args: Any, **kwargs: Any) -> Any:
        driver.compute_stream = driver.timeline.current_stream()
        driver.meet_anchor("pre_backward", unit)
        fresh = driver.board.record(start)
        stalls.arrive()
        result = original(*args, **kwargs)
        stalls.gathered(unit.name)
        if fresh:
            driver.on_met(start)
        return result

    return pre_backward


def _post_backward(driver: Fsdp2Driver, unit: FsdpUnit, original: Method) -> Method:
    stalls, group = driver.stalls, unit.group
    end = LaunchPoint(module=unit.name, phase="backward", side="after")

    def post_backward(*args: Any, **kwargs: Any) -> Any:
        driver.compute_stream = driver.timeline.current_stream()
        driver.meet_anchor("post_backward", unit)
        driver.board.meet(end)
        stalls.before_reduce()
        result = driver.deferral.post_backward(
            group, lambda: original(*args, **kwargs), hold=driver.must_hold(unit)
        )
        stalls.after_reduce()
        return result

    return post_backward


def _prefetch(driver: Fsdp2Driver, unit: FsdpUnit, original: Method) -> Method:
    def prefetch(target: Any, pass_type: str) -> None:
        driver.backward_prefetch(target, pass_type, original)

    return prefetch
