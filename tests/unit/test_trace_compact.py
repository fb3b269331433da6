from __future__ import annotations

import gzip
import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from trace_samples import ddp_steps, document, write

from kareus.errors import InputError
from kareus.trace import TraceSet, graphs, read_trace
from kareus.trace.compact import write_compact
from kareus.trace.stats import step_times
from kareus.trace.types import OpTable, PowerSamples, Trace

TRACES = Path(__file__).parents[2] / "traces"


def assert_same(one: Trace, other: Trace) -> None:
    for field in fields(OpTable):
        first, second = getattr(one.ops, field.name), getattr(other.ops, field.name)
        assert first.dtype == second.dtype, field.name
        assert np.array_equal(first, second), field.name
    assert np.array_equal(one.waits, other.waits)
    for field in fields(PowerSamples):
        assert np.array_equal(getattr(one.power, field.name), getattr(other.power, field.name))
    for name in set(Trace.__dataclass_fields__) - {"ops", "waits", "power", "path"}:
        assert getattr(one, name) == getattr(other, name), name


@pytest.mark.parametrize("job", ["fsdp2-nvlink-default", "ddp-nvlink-default"])
def test_nothing_is_lost_and_little_is_left(job: str, tmp_path) -> None:
    trace = TraceSet.open(TRACES / job).load(1)
    path = tmp_path / "rank1.kt.json.gz"
    write_compact(path, trace)
    assert_same(trace, read_trace(path))
    assert path.stat().st_size < (TRACES / job / "rank1.json.gz").stat().st_size / 3
    traces = TraceSet.open(tmp_path)
    assert (traces.ranks, traces.world_size) == ((1,), 2)
    assert [step_times(g) for g in graphs(traces.load(1))] == [step_times(g) for g in graphs(trace)]


def test_power_and_clock_offset_travel_along(tmp_path) -> None:
    trace = read_trace(write(tmp_path / "rank0.json", document(ddp_steps())))
    times = trace.ops.start_ns[:2]
    power = PowerSamples(
        time_ns=times, energy_mj=times * 0, power_mw=times * 0 + 5, sm_clock_mhz=times * 0 + 1980
    )
    trace = replace(trace, power=power, clock_offset_ns=-12)
    write_compact(tmp_path / "rank0.kt.json", trace)
    assert_same(trace, read_trace(tmp_path / "rank0.kt.json"))


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("schema", "kareus.trace/2", "reads major version 1"),
        ("extra", 1, "extra"),
        ("rank", "zero", "rank"),
        (("ops", "name"), [99] * 15, r"ops.name: expected 0..3, found 99..99"),
        (("ops", "name"), [0], "different length"),
        (("ops", "kind"), [7] * 15, r"ops\.kind"),
        (("ops", "duration_ns"), [-1] * 15, "a duration is negative"),
        (("ops", "collective"), [-1] * 15, "without its row"),
        (("ops", "start_ns"), [2**63] * 15, "beyond 64 bits"),
        (("ops", "colour"), [0] * 15, "expected columns"),
        (("waits", "source"), [99] * 6, r"waits\.source"),
    ],
)
def test_a_document_that_does_not_add_up_is_refused(tmp_path, key, value, part: str) -> None:
    path = tmp_path / "rank0.kt.json"
    write_compact(path, read_trace(write(tmp_path / "rank0.json", document(ddp_steps()))))
    content = json.loads(path.read_text())
    where = content
    if isinstance(key, tuple):
        where, key = content[key[0]], key[1]
    where[key] = value
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=part) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


def test_a_cut_file_is_refused(tmp_path) -> None:
    path = tmp_path / "rank0.kt.json.gz"
    write_compact(path, read_trace(write(tmp_path / "rank0.json", document(ddp_steps()))))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"cannot read .*rank0.kt.json.gz"):
        read_trace(path)
    path.write_bytes(gzip.compress(b"{}"))
    with pytest.raises(InputError, match=r"kareus\.trace/1"):
        read_trace(path)
