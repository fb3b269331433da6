"""Chase at run time: the schedule is swapped between two steps, and training does not notice."""

from __future__ import annotations

from typing import Any

import pytest
from gloo_world import run_world, succeed

pytestmark = [pytest.mark.dist, pytest.mark.slow]
pytest.importorskip("torch")

WRAPPERS = ("fsdp2", "ddp")


@pytest.fixture(scope="module")
def world() -> dict[str, list[Any]]:
    scenarios = [("follow", {"wrapper": wrapper}) for wrapper in WRAPPERS]
    return dict(zip(WRAPPERS, run_world(2, scenarios, module="chase_job"), strict=True))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_schedules_follow_the_series_and_losses_stay_stocks(world: dict[str, list[Any]], wrapper: str) -> None:
    for result in succeed(world[wrapper]):
        assert result["running"] == ["fast", "slow", "slow", "fast"]
        assert len(result["swaps_s"]) == 3  # the first attach and two swaps
        assert result["equal"]
        assert result["reason"] == ""


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_each_swap_puts_the_new_schedule_in_force(world: dict[str, list[Any]], wrapper: str) -> None:
    for result in succeed(world[wrapper]):
        first, second, third, fourth = result["arms"]
        for swapped in (first, second, fourth):  # a new session looks at a few stock steps first
            assert swapped[0] == "observe"
            assert swapped[-1] == "scheduled"
        assert set(third) == {"scheduled"}  # the same choice goes on without a swap
