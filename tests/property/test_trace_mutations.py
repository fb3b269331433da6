"""A good trace mutated many ways: a result or an InputError, never a traceback or an impossible total.

`KAREUS_MUTATIONS=10000 pytest tests/property/test_trace_mutations.py` runs the long form; each mutation is
made from its number alone, so a failing one can be repeated.
"""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kareus.errors import InputError
from kareus.trace import TraceSet, graphs
from kareus.trace.replay import learn, replay
from kareus.trace.spans import find_spans
from kareus.trace.stats import collective_rows, step_times
from kareus.trace.types import Trace

COUNT = int(os.environ.get("KAREUS_MUTATIONS", "300"))
BATCHES = 20
SOURCE = Path(__file__).parents[2] / "traces/ddp-nvlink-default/rank0.json.gz"
VALUES: tuple[Any, ...] = (
    None, -1, 0, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 1e300, float("inf"), float("nan"), "", "x", "NaN", [],
    {}, [1], {"a": 1}, True, "\ud800", "7", "-3.5",
)  # fmt: skip


@pytest.fixture(scope="module")
def small() -> dict[str, Any]:
    """A real trace cut down to its GPU work, calls and labels of one step and a half."""
    content = json.loads(gzip.decompress(SOURCE.read_bytes()))
    events = content["traceEvents"]
    kept = [e for e in events if e.get("ph") == "X" and e.get("cat") not in ("cpu_op", "overhead")]
    operators = [e for e in events if str(e.get("name", "")).startswith("autograd::engine")]
    content["traceEvents"] = (kept + operators[:5])[::4]
    return content


def some(rng: random.Random, content: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Choose events, all where another mutation has left fewer."""
    events = content["traceEvents"]
    return rng.sample(events, min(count, len(events)))


def fields(rng: random.Random, event: dict[str, Any]) -> dict[str, Any]:
    """The event or, half the time and where it has some, its arguments."""
    args = event.get("args")
    return args if rng.random() >= 0.5 and isinstance(args, dict) and args else event


def change_value(rng: random.Random, content: dict[str, Any]) -> None:
    """Put nonsense into a field of some events, or into their arguments."""
    for event in some(rng, content, rng.choice((1, 3, 50))):
        where = fields(rng, event)
        where[rng.choice(list(where))] = rng.choice(VALUES)


def remove_field(rng: random.Random, content: dict[str, Any]) -> None:
    """Take a field from some events."""
    for event in some(rng, content, rng.choice((1, 20))):
        where = fields(rng, event)
        del where[rng.choice(list(where))]


def change_header(rng: random.Random, content: dict[str, Any]) -> None:
    """Put nonsense into the header, or into distributedInfo."""
    where = content["distributedInfo"] if rng.random() < 0.5 else content
    key = rng.choice([k for k in where if k != "traceEvents"])
    where[key] = rng.choice(VALUES)


def change_times(rng: random.Random, content: dict[str, Any]) -> None:
    """Shift, scale or scramble times of some events."""
    for event in some(rng, content, rng.choice((1, 30))):
        key = rng.choice(("ts", "dur"))
        if isinstance(event.get(key), float):
            event[key] = rng.choice((-event[key], event[key] * 1e6, 0, event[key] + 1e5, rng.random() * 1e9))


def repeat_or_drop(rng: random.Random, content: dict[str, Any]) -> None:
    """Repeat, drop or shuffle stretches of events."""
    events = content["traceEvents"]
    a, b = sorted(rng.randrange(len(events)) for _ in range(2))
    how = rng.randrange(4)
    if how == 0:
        content["traceEvents"] = events[:a] + events[b:]
    elif how == 1:
        content["traceEvents"] = events[:b] + events[a:]
    elif how == 2:
        rng.shuffle(events)
    else:
        content["traceEvents"] = events[a:b]


def cut_text(rng: random.Random, text: bytes) -> bytes:
    """End the file early."""
    return text[: rng.randrange(len(text))]


def break_text(rng: random.Random, text: bytes) -> bytes:
    """Overwrite, insert or take out a few bytes."""
    data = bytearray(text)
    for _ in range(rng.choice((1, 5, 40))):
        if not data:
            break
        at = rng.randrange(len(data))
        how = rng.randrange(3)
        if how == 0:
            data[at] = rng.randrange(256)
        elif how == 1:
            data[at:at] = rng.choice(
                (b'"', b"}", b"{", b"]", b"[", b"\\", b",", b"\x00", b"\xff", b"inf", b"NaN")
            )
        else:
            del data[at : at + rng.choice((1, 10, 1000))]
    return bytes(data)


ON_CONTENT: tuple[Callable[[random.Random, dict[str, Any]], None], ...] = (
    change_value, remove_field, change_header, change_times, repeat_or_drop,
)  # fmt: skip
ON_TEXT: tuple[Callable[[random.Random, bytes], bytes], ...] = (cut_text, break_text)


def mutated(number: int, small: dict[str, Any]) -> bytes:
    rng = random.Random(number)
    content = json.loads(json.dumps(small))
    for change in rng.sample(ON_CONTENT, rng.choice((0, 1, 2))):
        if content["traceEvents"]:
            change(rng, content)
    text = json.dumps(content).encode()
    if rng.random() < 0.6:
        text = rng.choice(ON_TEXT)(rng, text)
    if rng.random() < 0.2:
        text = gzip.compress(text, 1)
        if rng.random() < 0.5:
            text = rng.choice(ON_TEXT)(rng, text)
    return text


def check(trace: Trace) -> None:
    """Everything downstream works and no total is impossible."""
    assert (trace.ops.duration_ns >= 0).all()
    assert (trace.ops.alone_ns >= 0).all()
    for graph in graphs(trace):
        times = step_times(graph)
        parts = (times.compute_us, times.comm_us, times.exposed_comm_us, times.idle_us)
        assert min(parts) >= 0
        assert max(parts) <= times.time_us * (1 + 1e-9) + 1e-3
        assert times.compute_us + times.exposed_comm_us + times.idle_us == pytest.approx(
            times.time_us, rel=1e-12, abs=1e-3
        )
        for row in collective_rows(graph):
            assert 0 <= row.exposed_us <= row.duration_us + 1e-3
        replay(graph, learn(graph))
        find_spans(graph)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_mutations_give_a_result_or_a_refusal(small: dict[str, Any], tmp_path: Path, batch: int) -> None:
    for number in range(batch, COUNT, BATCHES):
        path = tmp_path / "rank0.json"
        path.write_bytes(mutated(number, small))
        try:
            traces = TraceSet.open(path)
            trace = traces.load(traces.ranks[0])
        except InputError as refusal:
            refused = str(refusal)
        else:
            refused = "rank0.json"
            check(trace)
        assert "rank0.json" in refused, f"mutation {number}: {refused}"
