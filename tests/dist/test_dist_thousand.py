"""1,024 ranks with torch's fake process group: what agreement costs, and that a step waits for nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.dist, pytest.mark.slow]
pytest.importorskip("torch")
HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module", params=[8, 1024])
def job(request: pytest.FixtureRequest) -> dict[str, Any]:
    path = [str(HERE), str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "thousand_ranks.py"), str(request.param)],
        capture_output=True, text=True, timeout=120, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return {"ranks": request.param, **json.loads(done.stdout.splitlines()[-1])}


def test_agreement_is_one_small_collective_with_a_thousand_ranks_as_with_eight(job: dict[str, Any]) -> None:
    assert job["attach_calls"] == ["compare"]
    assert job["bytes_sent_by_a_rank"] < 256


def test_nothing_blocks_in_a_scheduled_step(job: dict[str, Any]) -> None:
    assert job["blocking_calls_in_steps"] == []
    assert job["started_in_steps"] <= 1 + job["steps"] // 10
    assert job["arms"].count("scheduled") >= 20


def test_one_other_schedule_among_all_is_named(job: dict[str, Any]) -> None:
    last = job["ranks"] - 1
    assert f"rank {last}: " in job["mismatch"]
    assert len(job["mismatch"]) < 1000
