from __future__ import annotations

import numpy as np
import pytest
from trace_samples import ddp_steps, document, write

from kareus.errors import InputError
from kareus.trace import Manifest, TraceSet
from kareus.trace.samples import write_samples
from kareus.trace.types import PowerSamples


def two_ranks(directory, *, shift_us: float = 0.0, wait_us: float = 0.0) -> None:
    write(directory / "rank0.json", document(ddp_steps(5), rank=0))
    late = ddp_steps(5, wait=wait_us)
    for event in late:
        event["ts"] += shift_us
    write(directory / "rank1.json.gz", document(late, rank=1))


def test_clocks_are_aligned_on_ends_and_waits_split_off(tmp_path) -> None:
    two_ranks(tmp_path, shift_us=37123.25, wait_us=150)
    traces = TraceSet.open(tmp_path)
    assert (traces.ranks, traces.complete, traces.warnings) == ((0, 1), True, ())
    alignment = traces.alignment
    assert alignment.offset_ns == {0: 0, 1: -37123250}
    assert len(alignment.collectives) == 5
    assert {tuple(m.wait_ns) for m in alignment.collectives} == {(0, 150_000)}
    assert {m.transfer_ns for m in alignment.collectives} == {200_000}
    assert alignment.stragglers() == {0: 1.0}


def test_each_file_has_a_base_time_of_its_own(tmp_path) -> None:
    two_ranks(tmp_path)
    content = document(ddp_steps(5), rank=1)
    content["baseTimeNanoseconds"] -= 5_000_000_000
    for event in content["traceEvents"]:
        event["ts"] += 5_000_000.0
    (tmp_path / "rank1.json.gz").unlink()
    write(tmp_path / "rank1.json", content)
    traces = TraceSet.open(tmp_path)
    assert np.array_equal(traces.load(0).ops.start_ns, traces.load(1).ops.start_ns)
    assert traces.alignment.offset_ns == {0: 0, 1: 0}


def test_a_missing_rank_is_named_and_costs_are_bounds(tmp_path) -> None:
    write(tmp_path / "rank0.json", document(ddp_steps(), rank=0))
    traces = TraceSet.open(tmp_path)
    assert not traces.complete
    assert [w.code for w in traces.warnings] == ["missing-ranks"]
    assert "no trace of rank 1" in traces.warnings[0].text
    assert "upper bound" in traces.warnings[0].text
    assert not traces.alignment.complete


def test_a_damaged_rank_is_left_out_and_named(tmp_path) -> None:
    two_ranks(tmp_path)
    (tmp_path / "rank1.json.gz").write_bytes(b'{"schemaVersion": 1, "deviceProp')
    (tmp_path / "notes.json").write_text('{"hello": 1}')
    traces = TraceSet.open(tmp_path)
    assert traces.ranks == (0,)
    assert [w.code for w in traces.warnings] == ["skipped-files", "missing-ranks"]
    assert "rank1.json.gz" in traces.warnings[0].text
    assert "notes.json" in traces.warnings[0].text


@pytest.mark.parametrize(
    ("files", "part"),
    [
        ({}, "holds no trace"),
        ({"rank0.json": '{"schemaVersion": 1, "devi'}, "found no .traceEvents"),
        ({"a.json": "[1]", "b.json": "[2]"}, "says which rank"),
    ],
)
def test_a_directory_without_a_usable_trace_is_refused(tmp_path, files: dict[str, str], part: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=part):
        TraceSet.open(tmp_path)


def test_a_rank_cut_off_before_its_first_event_is_refused(tmp_path) -> None:
    write(tmp_path / "rank0.json", '{"traceEvents": [{"ph')
    with pytest.raises(InputError, match=r"rank0.json: holds no events .*record the trace again"):
        TraceSet.open(tmp_path).load(0)


def test_two_files_of_one_rank_are_refused(tmp_path) -> None:
    for name in ("a.json", "b.json"):
        write(tmp_path / name, document(ddp_steps(), rank=0))
    with pytest.raises(InputError, match="two traces of rank 0"):
        TraceSet.open(tmp_path)


def test_a_rank_that_is_not_there_is_refused(tmp_path) -> None:
    two_ranks(tmp_path)
    with pytest.raises(InputError, match=r"no trace of rank 7; there are ranks 0, 1"):
        TraceSet.open(tmp_path).load(7)


def test_files_may_be_named_one_by_one(tmp_path) -> None:
    two_ranks(tmp_path)
    assert TraceSet.open([tmp_path / "rank1.json.gz", tmp_path / "rank0.json"]).ranks == (0, 1)
    assert TraceSet.open(tmp_path / "rank1.json.gz").ranks == (1,)


def test_manifest_and_samples_are_found(tmp_path) -> None:
    two_ranks(tmp_path)
    samples = PowerSamples(
        time_ns=np.array([1, 2]), energy_mj=np.array([10, 30]), power_mw=np.array([5, 6]),
        sm_clock_mhz=np.array([1980, 1410]),
    )  # fmt: skip
    write_samples(tmp_path / "rank0.samples.json", samples)
    Manifest(gpu="NVIDIA H200", world_size=2, samples={"0": "rank0.samples.json"},
             missing={"3": "disk full"}).save(tmp_path)  # fmt: skip
    traces = TraceSet.open(tmp_path)
    assert traces.manifest is not None
    assert traces.manifest.gpu == "NVIDIA H200"
    assert list(traces.load(0).power.sm_clock_mhz) == [1980, 1410]
    assert len(traces.load(1).power.time_ns) == 0
