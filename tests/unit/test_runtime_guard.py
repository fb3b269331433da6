"""The guard's arithmetic and the pilot's timetable, without processes or torch.distributed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from kareus.runtime.exchange import AloneExchange
from kareus.runtime.guard import Guard, GuardSettings, compare_arms
from kareus.runtime.pilot import Pilot, StepFacts
from kareus.runtime.records import Tally


def times(median_us: float, count: int = 8, spread: float = 0.01, seed: int = 3) -> list[float]:
    random = np.random.default_rng(seed)
    return [float(x) for x in median_us * (1 + spread * random.standard_normal(count))]


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(1.10, "worse"), (0.90, "better"), (1.001, "undecided"), (1.02, "undecided")]
)
def test_verdict_follows_the_ratio(ratio: float, verdict: str) -> None:
    found = compare_arms(times(1000 * ratio, 24), times(1000, 24, seed=4))
    assert found.verdict == verdict
    assert found.low <= found.time_ratio <= found.high


def test_slowdown_that_was_promised_for_energy_is_not_worse() -> None:
    slow, stock = times(1100), times(1000, seed=4)
    assert compare_arms(slow, stock).verdict == "worse"
    found = compare_arms(slow, stock, scheduled_energy_j=80.0, stock_energy_j=90.0, promised_ratio=1.1)
    assert found.verdict == "better"
    assert found.energy_ratio == pytest.approx(80 / 90)


def test_same_numbers_give_the_same_interval_everywhere() -> None:
    assert compare_arms(times(1000), times(900)) == compare_arms(times(1000), times(900))


def play(guard: Guard, scheduled_us: list[float], stock_us: float) -> None:
    settings = guard.settings
    for pair, value in enumerate(scheduled_us):
        for arm, level in (("scheduled", value), ("stock", stock_us)):
            if guard.decided is not None:
                return
            rows = [times(level, settings.block, seed=pair), times(level * 0.9, settings.block, seed=9)]
            guard.add_block(arm, rows, [math.nan, math.nan])  # type: ignore[arg-type]


def test_one_pair_sends_away_and_two_are_needed_to_stay() -> None:
    guard = Guard(GuardSettings())
    play(guard, [1300.0], 1000.0)
    assert guard.decided == "worse"
    guard = Guard(GuardSettings())
    play(guard, [800.0], 1000.0)
    assert guard.decided is None
    play(guard, [800.0], 1000.0)
    assert guard.decided == "better"


def test_a_gain_in_one_pair_only_is_never_accepted() -> None:
    guard = Guard(GuardSettings())
    play(guard, [700.0, 1010.0, 1010.0, 1010.0], 1000.0)
    assert guard.decided == "undecided"


def test_two_pairs_that_look_worse_are_enough_on_a_noisy_machine() -> None:
    verdicts = []
    for seed in range(40):
        random = np.random.default_rng(seed)
        guard = Guard(GuardSettings())
        first = None
        for pair in range(2):
            for arm, mean in (("scheduled", 1300.0), ("stock", 1000.0)):
                times = list(mean * random.lognormal(sigma=0.7, size=10))
                guard.add_block(arm, [times], [float("nan")])  # type: ignore[arg-type]
            first = guard.decided if pair == 0 else first
        assert guard.comparison is not None
        if first is None and guard.comparison.time_ratio > 1.03:
            verdicts.append(guard.decided)
    assert len(verdicts) > 10  # noise hides the loss in the first pair of many
    assert set(verdicts) == {"worse"}


def test_figure_is_the_slowest_rank() -> None:
    guard = Guard(GuardSettings(block=4, drop=1, max_pairs=1))
    guard.add_block("scheduled", [[1.0, 100.0, 100.0, 100.0], [1.0, 130.0, 90.0, 130.0]], [1.0, 1.0])
    guard.add_block("stock", [[1.0, 100.0, 100.0, 100.0], [1.0, 90.0, 90.0, 90.0]], [1.0, 1.0])
    assert guard.comparison is not None
    assert guard.comparison.time_ratio == pytest.approx(1.3)
    assert guard.comparison.energy_ratio is None  # far shorter than the counter's 3 s


def pilot(settings: GuardSettings, **extra: Any) -> Pilot:
    arguments: dict[str, Any] = {
        "guard": Guard(settings), "exchange": AloneExchange(), "tally": Tally(0), "has_schedule": True,
        "timeout_s": 1.0,
    }  # fmt: skip
    return Pilot(**{**arguments, **extra})


def run(pilot: Pilot, steps: int, cost_us: dict[str, float], sequence: Any = lambda _: 5) -> list[str]:
    arms, arm = [], "observe"
    for step in range(steps):
        arms.append(arm)
        facts = StepFacts(arm=arm, issue_hash=1, sequence=sequence(step), time_us=cost_us.get(arm, 1000.0))  # type: ignore[arg-type]
        arm = pilot.next_arm(facts)
    return arms


def test_timetable_of_a_bad_schedule() -> None:
    found = pilot(GuardSettings())
    arms = run(found, 60, {"scheduled": 1200.0})
    assert arms[:2] == ["observe", "observe"]
    assert arms[2:12] == ["scheduled"] * 10
    assert arms[12:] == ["stock"] * 48
    assert found.state == "stock"
    assert "slower than stock" in found.reason


def test_timetable_of_a_good_schedule() -> None:
    found = pilot(GuardSettings())
    arms = run(found, 100, {"scheduled": 800.0})
    assert arms[2:12] == ["scheduled"] * 10
    assert arms[12:26] == ["stock"] * 14
    assert set(arms[50:]) == {"scheduled"}
    assert found.state == "replay"


def test_schedule_waits_until_collectives_repeat() -> None:
    settings = GuardSettings(enabled=False)
    arms = run(pilot(settings), 10, {}, sequence=lambda step: step if step < 3 else 3)
    assert arms.index("scheduled") == 5
    arms = run(pilot(settings), 10, {}, sequence=lambda step: step)
    assert "scheduled" not in arms


def test_leaving_is_agreed_a_few_steps_ahead() -> None:
    found = pilot(GuardSettings(enabled=False))
    run(found, 20, {})
    found.leave("this rank was surprised")
    arms = run(found, 20, {})
    assert arms[-1] == "stock"
    assert "rank 0 asked to leave" in found.reason


def test_without_a_schedule_everything_is_stock() -> None:
    assert set(run(pilot(GuardSettings(), has_schedule=False), 9, {})[1:]) == {"stock"}


class Deaf(AloneExchange):
    def start(self, vector: list[float]) -> Any:
        class Never:
            def result(self, timeout_s: float) -> None:
                return None

        return Never()


def test_silent_rank_never_makes_this_one_leave_alone() -> None:
    found = pilot(GuardSettings(enabled=False))
    run(found, 5, {})
    found.exchange = Deaf()
    arms = run(found, 60, {})
    assert set(arms[1:]) == {"scheduled"}
    assert found.tally.counts["beacon_lost"] == 1
