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
from kareus.runtime.agreement import AloneExchange, agree, describe_difference, mismatch_error
from kareus.runtime.environment import budget_problem, connection_warning
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
        environment_problem=environment,
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
