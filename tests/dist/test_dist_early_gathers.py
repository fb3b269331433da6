"""The next step's first all-gathers inside the optimizer: two processes on gloo, equal to stock bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
from gloo_world import run_world, succeed

pytestmark = [pytest.mark.dist, pytest.mark.slow]
pytest.importorskip("torch")

ODDITIES = [
    "",
    "momentum",
    "subclass",
    "two optimizers",
    "hook",
    "written on one rank",
    "written always",
    "loaded",
    "evaluated",
    "failed",
]
SCENARIOS: dict[str, tuple[str, dict[str, Any]]] = {
    "order": ("order", {}),
    "order of a subclass": ("order", {"oddity": "subclass"}),
    **{oddity or "plain": ("early", {"oddity": oddity}) for oddity in ODDITIES},
    "skipped": ("early", {"oddity": "skipped on one rank", "answer_within_s": 2.0}),
}
DROPPED = "early_gathers_dropped"


@pytest.fixture(scope="module")
def world() -> dict[str, list[Any]]:
    return dict(zip(SCENARIOS, run_world(2, list(SCENARIOS.values()), module="dist_early"), strict=True))


@pytest.mark.parametrize("name", [name for name in SCENARIOS if not name.startswith("order")])
def test_losses_and_weights_equal_stock(world: dict[str, list[Any]], name: str) -> None:
    for result in succeed(world[name]):
        assert result["equal"], result["counts"]
        assert result["arms"].count("scheduled") >= 6
        assert result["clean"]
        assert set(result["hooks"]) == {0}
        assert result["gradients"]


def test_a_unit_is_gathered_when_it_is_updated_and_the_others_are_not(world: dict[str, list[Any]]) -> None:
    for result in succeed(world["order"]):
        assert result["seen"] == [["root"], ["first block", "root"]]


def test_a_step_that_cannot_be_split_is_done_before_the_gathers(world: dict[str, list[Any]]) -> None:
    for result in succeed(world["order of a subclass"]):
        assert result["seen"] == [["first block", "rest", "root"]] * 2


@pytest.mark.parametrize("name", ["plain", "momentum", "subclass", "two optimizers", "hook"])
def test_every_gather_is_made_once(world: dict[str, list[Any]], name: str) -> None:
    for result in succeed(world[name]):
        assert len(set(result["collectives"])) == 1
        assert result["pending"] == 2
        assert DROPPED not in result["counts"]
        assert ("step_not_split" in result["counts"]) == (name in ("subclass", "hook"))


def test_hooks_of_others_see_all_gradients(world: dict[str, list[Any]]) -> None:
    for result in succeed(world["hook"]):
        assert result["hook_saw"] == [[True] * 10] * 2


@pytest.mark.parametrize("name", ["written on one rank", "loaded"])
def test_writes_between_steps_drop_them_on_all_ranks(world: dict[str, list[Any]], name: str) -> None:
    for result in succeed(world[name]):
        assert result["counts"][DROPPED] == 1
        # The two were gathered for nothing and once more: in the step after the write.
        assert sorted(result["collectives"])[-1] == sorted(result["collectives"])[0] + 2


def test_an_evaluation_gathers_for_itself(world: dict[str, list[Any]]) -> None:
    for result in succeed(world["evaluated"]):
        assert DROPPED not in result["counts"]
        assert result["collectives"][7] > result["collectives"][6]


def test_a_job_that_writes_past_the_counters_gets_none(world: dict[str, list[Any]]) -> None:
    for result in succeed(world["written always"]):
        assert result["counts"]["no_early_gathers"] == 1
        assert result["pending"] == 0


def test_an_optimizer_step_left_out_on_one_rank_does_not_hang(world: dict[str, list[Any]]) -> None:
    for result in succeed(world["skipped"]):
        assert result["counts"]["no_early_gathers"] == 1
        assert result["pending"] == 0
