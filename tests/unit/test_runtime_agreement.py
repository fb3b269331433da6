"""Ladder, agreement, environment and sums: what ranks settle before a step, without processes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path as FilePath
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import kareus
from kareus.errors import MismatchError, UsageError
from kareus.runtime.agreement import agree, describe_difference, mismatch_error
from kareus.runtime.environment import budget_problem, connection_warning
from kareus.runtime.exchange import AloneExchange
from kareus.runtime.ladder import Ladder, limit_budgets, wanted_rungs
from kareus.runtime.paths import chunk_sizes, sum_in_rank_order
from kareus.schedule import (
    CollectiveKey,
    Decision,
    Fingerprint,
    Path,
    Schedule,
    UnitShape,
)

JOB = Fingerprint(wrapper="fsdp2", world_size=2, units=(UnitShape(name="a", numel=8, dtype="bf16"),))
KEY = CollectiveKey(kind="all_gather", unit="a", phase="forward")


def schedule(**arguments: Any) -> Schedule:
    return Schedule(**{"fingerprint": JOB, **arguments})


# Ladder


def test_budgets_beyond_the_limit_go_to_the_nearest_kept_one() -> None:
    asked = Counter({1: 1, 2: 5, 4: 5, 8: 1, 16: 9, 32: 2})
    assert limit_budgets(asked, 4) == {1: 2, 2: 2, 4: 4, 8: 4, 16: 16, 32: 32}


def test_rungs_are_wanted_for_nccl_only_and_once_each() -> None:
    other = CollectiveKey(kind="reduce_scatter", unit="a", phase="backward")
    plan = schedule(
        decisions=(
            Decision(collective=KEY, num_ctas=8),
            Decision(collective=other, path=Path.COPY_ENGINE),
        ),
        separate_reduce_scatter_group=True,
    )
    budgets, nearest = wanted_rungs(plan, ["all_gather", "reduce_scatter"])
    assert budgets == {"all_gather": [8], "reduce_scatter": [0]}
    assert nearest == {("all_gather", 8): 8}


def test_empty_ladder_leaves_every_group_alone() -> None:
    group: Any = object()
    assert Ladder().pick(group, "all_gather", None) is group


# Agreement


def settle(plan: Schedule | None, *, job: Fingerprint = JOB, local: str = "", environment: str = "") -> Any:
    return agree(
        AloneExchange(), schedule=plan, local_problem=local, job=job, settings={"mode": "replay"},
        environment_problem=environment, tuples=[(0, 1)],
    )  # fmt: skip


def test_a_fitting_schedule_comes_back_unchanged() -> None:
    plan = schedule(decisions=(Decision(collective=KEY, num_ctas=4),))
    answer = settle(plan)
    assert answer.schedule == plan
    assert answer.problems == ()


def test_another_model_is_a_problem_and_other_conditions_only_a_warning() -> None:
    job = Fingerprint(
        wrapper="fsdp2", world_size=2, units=(UnitShape(name="a", numel=16, dtype="bf16"),),
        conditions={"gpu": "other"},
    )  # fmt: skip
    answer = settle(schedule(fingerprint=JOB), job=job)
    assert any("8 bf16 elements" in p and "16 bf16" in p for p in answer.problems)
    made = Fingerprint(wrapper="fsdp2", world_size=2, units=JOB.units, conditions={"gpu": "H200"})
    same = Fingerprint(wrapper="fsdp2", world_size=2, units=JOB.units, conditions={"gpu": "other"})
    answer = settle(schedule(fingerprint=made), job=same)
    assert answer.problems == ()
    assert "H200" in answer.warnings[0]


def test_problems_of_file_and_environment_are_carried_into_the_error() -> None:
    answer = settle(None, local="schedule.json: not JSON", environment="NCCL_MAX_CTAS=4 overrides")
    error = mismatch_error(answer.problems)
    assert isinstance(error, MismatchError)
    assert "not JSON" in str(error)
    assert "NCCL_MAX_CTAS=4" in str(error)
    assert 'on_mismatch="stock"' in str(error)


def test_difference_names_the_collective_and_both_values() -> None:
    mine = schedule(decisions=(Decision(collective=KEY, num_ctas=4),), forward_prefetch=1)
    other = schedule(decisions=(Decision(collective=KEY, num_ctas=8),))
    assert describe_difference(mine, other) == [
        "all_gather(a, forward): num_ctas is 4 here, rank 0 has 8",
        "forward_prefetch is 1 here, rank 0 has None",
    ]


class Rank:
    """One of the ranks that `settle_together` runs in turn: says the same until all have spoken, then is told."""

    def __init__(self, index: int, said: list[dict[str, Any]]) -> None:
        self.index, self.said, self.calls = index, said, []

    def _tell(self, what: str, value: Any) -> Any:
        self.calls.append(what)
        words = f"{len(self.calls)} {what}"
        self.said[self.index][words] = value
        if any(words not in said for said in self.said):
            raise Waits
        return [said[words] for said in self.said]

    def compare(self, vector: list[float]) -> Any:
        return self._tell("compare", vector)

    def gather(self, value: Any) -> Any:
        return self._tell("gather", value)

    def broadcast(self, data: bytes) -> Any:
        return self._tell("broadcast", data)[0]

    def start(self, vector: list[float]) -> Any:
        raise NotImplementedError


class Waits(Exception):
    """A rank stands in a collective that others have not reached."""


def settle_together(*ranks: dict[str, Any]) -> list[tuple[Any, list[str]]]:
    """Let ranks agree; return each one's answer and the collectives it took."""
    said: list[dict[str, Any]] = [{} for _ in ranks]
    found: dict[int, tuple[Any, list[str]]] = {}
    for _ in range(10):
        for index, own in enumerate(ranks):
            rank = Rank(index, said)
            arguments = {
                "schedule": None, "local_problem": "", "job": JOB, "settings": {"mode": "replay"},
                "environment_problem": "", "tuples": [(0, 1)], **own,
            }  # fmt: skip
            try:
                found[index] = (agree(rank, **arguments), rank.calls)
            except Waits:
                continue
        if len(found) == len(ranks):
            return [found[index] for index in range(len(ranks))]
    raise AssertionError("ranks do not meet in the same collectives")


def test_ranks_that_hold_the_same_take_one_collective() -> None:
    plan = schedule(forward_prefetch=2)
    for answer, calls in settle_together(*[{"schedule": plan}] * 3):
        assert calls == ["compare"]
        assert (answer.schedule, answer.problems, answer.tuples) == (plan, (), ((0, 1),))


def test_a_rank_without_the_file_takes_rank_0_s() -> None:
    plan = schedule(forward_prefetch=2)
    for answer, _ in settle_together({"schedule": plan}, {"settings": {"mode": "None"}}):
        assert (answer.schedule, answer.problems) == (plan, ())


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"schedule": schedule(forward_prefetch=3)}, "rank 1: forward_prefetch is 3 here, rank 0 has 2"),
        ({"schedule": schedule(forward_prefetch=2), "settings": {"mode": "collect"}}, "rank 1: mode is 'collect'"),
        ({"schedule": schedule(forward_prefetch=2), "local_problem": "not JSON"}, "rank 1: not JSON"),
        ({"schedule": None, "local_problem": "s.json: no such file"}, "rank 1: s.json: no such file"),
        (
            {"schedule": schedule(forward_prefetch=2), "job": Fingerprint(wrapper="fsdp2", world_size=2, units=())},
            "rank 1: the model's units differ from rank 0's",
        ),
    ],
)  # fmt: skip
def test_what_differs_on_one_rank_is_named_on_all(other: dict[str, Any], said: str) -> None:
    answers = [answer for answer, _ in settle_together({"schedule": schedule(forward_prefetch=2)}, other)]
    assert answers[0].problems == answers[1].problems
    assert any(text.startswith(said) for text in answers[0].problems)


@pytest.mark.parametrize(
    ("tuples", "calls"),
    [
        ([[(0, 1), (0, 2)], [(0, 1), (1, 3)], [(2, 3), (0, 2)], [(2, 3), (1, 3)]], ["compare"]),  # HSDP
        ([[(0, 1, 3)], [(0, 1, 3)], [(2,)], [(0, 1, 3)]], ["compare", "gather"]),  # uneven
        ([[(0, k) for k in range(1, 7)], [], [], []], ["compare", "gather"]),  # more than fit
    ],
)
def test_every_rank_learns_all_groups(tuples: list[list[tuple[int, ...]]], calls: list[str]) -> None:
    everyone = tuple(sorted({ranks for mine in tuples for ranks in mine}))
    for answer, taken in settle_together(*[{"tuples": mine} for mine in tuples]):
        assert answer.tuples == everyone
        assert taken == calls


# Environment


def test_environment_that_overrides_budgets_is_named() -> None:
    plan = schedule(decisions=(Decision(collective=KEY, num_ctas=4),))
    environment = {"NCCL_MAX_CTAS": "16", "HOME": "/"}
    assert "NCCL_MAX_CTAS=16" in budget_problem(plan, environment, "nccl")
    assert budget_problem(plan, environment, "gloo") == ""
    assert budget_problem(schedule(), environment, "nccl") == ""
    assert budget_problem(plan, {}, "nccl") == ""
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" in connection_warning({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "cuda")
    assert connection_warning({"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, "cuda") == ""


# Attach without a job


def test_disabled_attach_is_a_no_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAREUS_DISABLE", "1")
    with kareus.attach(nn.Linear(2, 2), schedule="does-not-exist.json") as session:
        session.step()
        assert session.report()["reason"] == "KAREUS_DISABLE=1"
        assert session.step_count == 0
    assert kareus.ddp_kwargs("does-not-exist.json") == {}


def test_attach_without_a_process_group_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="init_process_group"):
        kareus.attach(nn.Linear(2, 2))


def test_ddp_kwargs_are_what_the_schedule_fixes(monkeypatch: pytest.MonkeyPatch, tmp_path: FilePath) -> None:
    assert kareus.ddp_kwargs(schedule()) == {}
    assert kareus.ddp_kwargs(schedule(ddp_bucket_cap_mb=50.0)) == {"bucket_cap_mb": 50.0}
    path = tmp_path / "schedule.json"
    schedule(ddp_bucket_cap_mb=8.0).save(str(path))
    monkeypatch.setenv("KAREUS_SCHEDULE", str(path))
    assert kareus.ddp_kwargs() == {"bucket_cap_mb": 8.0}


# Copies


def test_chunks_cover_everything_once() -> None:
    assert chunk_sizes(10, 3) == [4, 3, 3]
    assert chunk_sizes(2, 4) == [1, 1, 0, 0]


def test_sums_run_in_rank_order_and_scale_as_asked() -> None:
    parts = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([5.0, 9.0])]
    op = torch.distributed.ReduceOp
    assert sum_in_rank_order(parts, op.SUM).tolist() == [9.0, 15.0]
    assert sum_in_rank_order(parts, op.AVG).tolist() == [3.0, 5.0]
    assert parts[0].tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="sums only"):
        sum_in_rank_order(parts, op.MAX)
