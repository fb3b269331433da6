from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from trace_samples import ADD, GEMM, ddp_steps, document, kernel, launch, message, write

import kareus.trace.kineto
from kareus.trace import TraceSet, read_trace
from kareus.trace.matching import match_keys
from kareus.trace.rawtrace import RawTrace
from kareus.trace.types import CollectiveKind

ALL_TO_ALL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def collectives(rows: list[tuple[float, float, dict[str, Any]]]) -> list[dict[str, Any]]:
    """A GEMM and an add around collectives given as (start, duration, arguments)."""
    events = [launch(1.0, 1), kernel(GEMM, 10.0, 50, 1)]
    for number, (start, duration, args) in enumerate(rows, 2):
        events += [
            launch(start - 5, number),
            kernel(ALL_TO_ALL, start, duration, number, 17 + number, **args),
        ]
    return [*events, launch(900.0, 99), kernel(ADD, 950.0, 20, 99)]


def test_groups_of_the_same_ranks_are_told_apart_by_name(tmp_path) -> None:
    """Both groups number their collectives from 1, and rank 1 launches them in the other order."""

    def one(group: str, start: float) -> tuple[float, float, dict[str, Any]]:
        return start, 100.0, message("allreduce", 64, Seq=1, **{"Process Group Name": group})

    write(tmp_path / "rank0.json", document(collectives([one("tp", 100), one("dp", 300)]), rank=0))
    write(tmp_path / "rank1.json", document(collectives([one("dp", 300), one("tp", 100)]), rank=1))
    matched = TraceSet.open(tmp_path).alignment.collectives
    assert len(matched) == 2
    assert all(m.start_ns[0] == m.start_ns[1] for m in matched)


def test_groups_without_a_name_are_told_apart_by_description(tmp_path) -> None:
    def one(text: str, start: float) -> tuple[float, float, dict[str, Any]]:
        more = {"Process Group Name": "", "Process Group Description": text}
        return start, 100.0, message("allreduce", 64, Seq=1, **more)

    trace = read_trace(
        write(tmp_path / "rank0.json", document(collectives([one("mesh_tp", 100), one("mesh_dp", 300)])))
    )
    assert [c.group_description for c in trace.collectives] == ["mesh_tp", "mesh_dp"]
    assert len(match_keys(trace.ops, trace.collectives)) == 2


def test_all_to_all_is_matched_by_order_where_sizes_differ_by_rank(tmp_path) -> None:
    for rank, sizes in enumerate([(64, 128, 64), (32, 64, 256)]):
        rows = [
            (100.0 + 200 * n, 100.0, message("all_to_allv", size, **{"Process Group Name": "ep"}))
            for n, size in enumerate(sizes)
        ]
        write(tmp_path / f"rank{rank}.json", document(collectives(rows), rank=rank))
    matched = TraceSet.open(tmp_path).alignment.collectives
    assert [m.kind for m in matched] == [CollectiveKind.ALL_TO_ALL] * 3
    assert all(m.start_ns[0] == m.start_ns[1] for m in matched)


@pytest.mark.parametrize("name", ["allreduce", "send"])
def test_coalesced_work_of_one_sequence_number_is_kept(tmp_path, name: str) -> None:
    rows = [(100.0 + 200 * n, 100.0, message(name, 64, Seq=5)) for n in range(3)]
    trace = read_trace(write(tmp_path / "rank0.json", document(collectives(rows))))
    assert len(match_keys(trace.ops, trace.collectives)) == 3


def test_raw_columns_of_two_ranks_are_never_in_memory_together(tmp_path, monkeypatch) -> None:
    for rank in range(8):
        write(tmp_path / f"rank{rank}.json", document(ddp_steps(), rank=rank, world_size=8))
    seen: list[weakref.ref[RawTrace]] = []
    alive: list[int] = []
    read_raw = kareus.trace.kineto.read_raw

    def counted(*args: Any, **options: Any) -> RawTrace:
        gc.collect()
        alive.append(sum(ref() is not None for ref in seen))
        raw = read_raw(*args, **options)
        seen.append(weakref.ref(raw))
        return raw

    monkeypatch.setattr(kareus.trace.kineto, "read_raw", counted)
    traces = TraceSet.open(tmp_path)
    kept = [weakref.ref(traces.load(rank).ops.start_ns) for rank in traces.ranks]
    assert len(traces.alignment.collectives) == 3
    gc.collect()
    assert len(seen) == 16  # once by `load`, once more by the alignment, for each of 8 ranks
    assert max(alive) == 0
    assert sum(ref() is not None for ref in kept) <= 2
