"""The Prometheus file: valid text, replaced as a whole, and never in training's way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from kareus.runtime.prometheus import PrometheusFile, exposition
from kareus.runtime.records import StepRecord, Tally

SAMPLE = re.compile(r'^[a-z_]+\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\} [0-9.e+-]+$')
RECORDS = [
    StepRecord(step=0, rank=3, arm="stock", time_us=2e6, exposed_comm_us=5e5),
    StepRecord(step=1, rank=3, arm="scheduled", time_us=1e6, energy_j=90.5, exposed_comm_us=1e5),
    StepRecord(step=2, rank=3, arm="scheduled", time_us=1.5e6),
]


def test_every_line_is_a_sample_or_describes_one() -> None:
    text = exposition(RECORDS, rank=3, state="replay", steps=3, counts={"missed": 2})
    lines = text.splitlines()
    names = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    samples = [line for line in lines if not line.startswith("#")]
    assert all(SAMPLE.match(line) for line in samples)
    assert {line.split("{")[0] for line in samples} == names
    assert 'kareus_step_seconds{rank="3",arm="scheduled"} 1.5' in samples
    assert 'kareus_step_exposed_seconds{rank="3",arm="stock"} 0.5' in samples
    assert 'kareus_state{rank="3",state="replay"} 1' in samples
    assert 'kareus_events_total{rank="3",code="missed"} 2' in samples
    assert "joules" not in text  # not known of the newest steps, so not shown


def test_file_is_written_when_due_and_at_the_end(tmp_path: Path) -> None:
    now = [0.0]
    file = PrometheusFile(
        str(tmp_path / "new"), Tally(3), records=lambda: RECORDS, state=lambda: "guard",
        every_s=10, now_s=lambda: now[0],
    )  # fmt: skip
    file.on_step(0)
    first = file.path.read_text()
    assert 'kareus_steps_total{rank="3"} 1' in first
    now[0] = 9
    file.on_step(1)
    assert file.path.read_text() == first
    now[0] = 10
    file.on_step(2)
    assert 'kareus_steps_total{rank="3"} 3' in file.path.read_text()
    file.on_step(3)
    file.finish()
    assert 'kareus_steps_total{rank="3"} 4' in file.path.read_text()
    assert [p.name for p in file.path.parent.iterdir()] == ["kareus-rank3.prom"]


def test_a_directory_that_cannot_be_made_is_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    tally = Tally(0)
    file = PrometheusFile(str(tmp_path / "file"), tally, records=list, state=lambda: "stock")
    file.on_step(0)
    file.finish()
    assert tally.counts["metrics_failed"] == 2
