"""ByteDance's three published pipeline jobs: our what-if replay against the results published beside them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kareus.errors import InputError
from kareus.trace.pipeline_ops import COLUMNS, PipelineJob, read_job, replay_job, without_stragglers

SHARED = Path(os.environ.get("KAREUS_SHARED", Path(__file__).parents[3] / "shared"))
DATA = SHARED / "data/traces/bytedance_straggler"
JOBS = ("ST", "SE", "AR")  # 8, 128 and 64 GPUs

parquet = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"published jobs not at {DATA}; set KAREUS_SHARED")


def table(name: str) -> dict[str, Any]:
    found = parquet.read_table(DATA / f"trace-{name}.parquet")
    return {c: np.array(found[c].to_pylist()) if c == "optype" else found[c].to_numpy() for c in COLUMNS}


def published(name: str, what: str, job: PipelineJob) -> np.ndarray:
    times = json.loads((DATA / f"result-{name}.json").read_text())[what]
    assert len(times) == len(job.steps)
    return np.array([times[str(step)] for step in job.steps])


@pytest.mark.parametrize("name", JOBS)
def test_step_times_as_published(name: str) -> None:
    """Recorded, without launch delays, and with every operator of a kind equally long; each step of each job."""
    job = read_job(table(name))
    prompt, lasts = replay_job(job, job.duration, job.transfer)
    even, _ = replay_job(job, *without_stragglers(job, lasts))
    assert job.recorded_s() == pytest.approx(published(name, "step_t_base", job), rel=1e-6)
    assert prompt == pytest.approx(published(name, "step_t_nodelay", job), rel=1e-5)
    assert even == pytest.approx(published(name, "step_t_noblk", job), rel=1e-5)
    result = json.loads((DATA / f"result-{name}.json").read_text())
    assert job.recorded_s().mean() / prompt.mean() == pytest.approx(result["launch_slowdown"], rel=1e-5)
    assert prompt.mean() / even.mean() == pytest.approx(result["blocking_slowdown"], rel=1e-5)


def test_a_straggler_put_in_delays_the_step_by_what_it_takes_longer() -> None:
    """The first stage's optimizer ends its step: a second more there is nearly a second more in all."""
    job = read_job(table("ST"))
    prompt, _ = replay_job(job, job.duration, job.transfer)
    late = {op: time + 1.0 if op == ("optimizer", 0, 0) else time for op, time in job.duration.items()}
    longer, _ = replay_job(job, late, job.transfer)
    assert (longer > prompt + 0.9).all()
    assert (longer <= prompt + 1.0 + 1e-9).all()


def test_tables_that_no_pipeline_runs_are_refused() -> None:
    good = table("ST")
    with pytest.raises(InputError, match="without seq_id"):
        read_job({name: column for name, column in good.items() if name != "seq_id"})
    with pytest.raises(InputError, match="2 model chunks"):
        read_job({**good, "mc": good["mc"] + 1})
    with pytest.raises(InputError, match="1 operators not on every rank and step"):
        read_job({name: column[1:] for name, column in good.items()})
