"""Builds traces/profiles/h200-nvlink.json from the figures measured on two H200s.

    python tests/bench/build_h200_profile.py traces/fsdp2-nvlink-default traces/profiles/h200-nvlink.json

Typed in below: means over windows of 4-8 s, energy by NVML's total-energy counter of rank 0's GPU, clocks
never touched, NVLink NV18, repeat-to-repeat spread about 1 % within a run and up to 3 % between days. The
kernels of the workload ("llama8": 8 blocks of hidden 4096, FFN 14336, sequence 4096, FSDP2 on 2 ranks)
come from the recorded step, so their durations refer to the clock it ran at.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from kareus.model.calibrate import calibrated
from kareus.model.fit_profile import fit_profile
from kareus.model.profile import (
    Beside,
    Conditions,
    Piece,
    Profile,
    Sample,
    SpanCollectiveTemplate,
    SpanTemplate,
    StepSetting,
    Workload,
)
from kareus.model.stored_fit import with_fit
from kareus.trace.graph import graphs
from kareus.trace.kineto import read_trace
from kareus.trace.spans import find_spans
from kareus.trace.types import KernelClass, StepGraph

SHARD_BYTES = 228_000_000  # of one rank, bf16; the gathered message is twice that
REFERENCE_MHZ = 1980.0  # loops of one kernel refer to the full clock, seen in the first 60-90 ms of each
SPREAD = 0.01  # repeat to repeat, relative

CTAS = (1, 4, 8, 16, 24)
ALONE_MS = {"all_gather": (15.5, 3.84, 1.97, 1.06, 0.90), "reduce_scatter": (12.5, 3.21, 1.67, 1.09, 0.93)}
GEMMS = (Piece(kernel_class="gemm", alone_us=1180.0, count=4, grid=132),)
ATTENTION = (Piece(kernel_class="attention", alone_us=532.5, count=4),)
ADDS = (Piece(kernel_class="memory", alone_us=128.75, count=40),)
BESIDE_MS = (
    (GEMMS, "4 GEMMs", "all_gather", {1: 17.3, 4: 7.12, 8: 6.32, 16: 6.31, 24: 6.33}),
    (GEMMS, "4 GEMMs", "reduce_scatter", {4: 6.39, 8: 6.12, 16: 6.09, 24: 6.15}),
    (ATTENTION, "4 attention", "all_gather", {4: 4.73, 8: 2.87, 16: 2.44, 24: 2.44}),
    (ADDS, "40 adds", "all_gather", {4: 6.91, 8: 5.45, 16: 5.69, 24: 5.45}),
)
# pieces, label, ms, W, MHz (0: not read). GEMMs in a loop were read at 1410 and at 1450-1500 MHz.
COMPUTE_MS_W_MHZ = (
    (GEMMS, "4 GEMMs on random values", 5.72, 705.0, 1450.0),
    (GEMMS, "4 GEMMs beside nothing, run of the table", 5.6, None, 0.0),
    (ATTENTION, "4 attention", 2.13, None, 0.0),
    (ADDS, "40 adds", 5.15, 640.0, 1980.0),
    (
        (GEMMS[0], Piece(kernel_class="memory", alone_us=1440.0, count=4)),
        "GEMM and memory alternating",
        10.84,
        695.0,
        0.0,
    ),
)
AG, RS = "all_gather", "reduce_scatter"
# label, batch, ms, J, setting, run
STEPS = (
    ("stock", 1, 128.1, 89.0, {}, "a"),
    ("stock, same run as the bound", 1, 131.0, 90.2, {}, "b"),
    ("no communication, rotating buffers", 1, 119.0, 82.15, {"absent": (AG, RS)}, "b"),
    ("reduce-scatter only", 1, 125.3, 86.5, {"absent": (AG,)}, "b"),
    ("all-gather only", 1, 127.6, 88.3, {"absent": (RS,)}, "b"),
    ("copy-engine all-gather only", 1, 123.4, 84.2, {"absent": (RS,), "num_ctas": {AG: 0}}, "b"),
    ("copy-engine all-gather, same run", 1, 127.7, 88.7, {"num_ctas": {AG: 0}}, "b"),
    ("everything serialised", 1, 141.3, 96.5, {"serialise": (AG, RS)}, "a"),
    ("all-gather serialised", 1, 138.8, 96.2, {"serialise": (AG,)}, "a"),
    ("reduce-scatter serialised", 1, 135.1, 93.0, {"serialise": (RS,)}, "a"),
    ("max_ctas 2", 1, 260.7, 121.7, {"num_ctas": {AG: 2, RS: 2}}, "a"),
    ("max_ctas 4", 1, 161.4, 103.1, {"num_ctas": {AG: 4, RS: 4}}, "a"),
    ("max_ctas 8", 1, 138.4, 94.2, {"num_ctas": {AG: 8, RS: 8}}, "a"),
    ("max_ctas 16", 1, 132.6, 91.5, {"num_ctas": {AG: 16, RS: 16}}, "a"),
    ("copy-engine all-gather", 1, 123.6, 85.85, {"num_ctas": {AG: 0}}, "a"),
    ("gather gated to the middle of the block", 1, 129.55, 88.6, {"launch": 0.5}, "a"),
    ("copy engine, own communicator", 1, 124.9, 86.4, {"num_ctas": {AG: 0}, "separate": True}, "c"),
    ("same, 16 CTAs", 1, 126.4, 88.9, {"num_ctas": {AG: 0, RS: 16}, "separate": True}, "c"),
    ("same, 8 CTAs", 1, 129.6, 88.4, {"num_ctas": {AG: 0, RS: 8}, "separate": True}, "c"),
    ("same, 4 CTAs", 1, 139.1, 93.0, {"num_ctas": {AG: 0, RS: 4}, "separate": True}, "c"),
    ("separate reduce-scatter communicator", 1, 129.2, 90.4, {"separate": True}, "c"),
    ("batch 2 stock", 2, 222.0, 154.0, {}, "d"),
    ("batch 2 copy-engine all-gather", 2, 218.6, 151.5, {"num_ctas": {AG: 0}}, "d"),
    ("batch 2 stock, second run", 2, 226.8, 156.9, {}, "e"),
    ("batch 2 no communication", 2, 210.0, 146.0, {"absent": (AG, RS)}, "e"),
    ("batch 2 copy-engine all-gather, second run", 2, 223.6, 154.5, {"num_ctas": {AG: 0}}, "e"),
)
# Kernels whose time doubles with the batch; of the memory-bound ones only those on activations do. The
# share is chosen so that no communication at batch 2 takes 210 / 119 of batch 1.
BATCH_2 = {"gemm": 2.0, "attention": 2.0, "memory": 1.6}


def sample(label: str, time_us: float, **fields: object) -> Sample:
    """Return a sample with the run-to-run spread of these measurements."""
    energy = fields.get("energy_j")
    spread = SPREAD * energy if isinstance(energy, float) else 0.0
    return Sample(
        label=label,
        time_us=time_us,
        time_spread_us=SPREAD * time_us,
        energy_spread_j=spread,
        window_s=5.0,
        **fields,
    )  # type: ignore[arg-type]


def samples() -> tuple[Sample, ...]:
    """Every row of the tables."""
    rows = []
    for kind, times in ALONE_MS.items():
        for ctas, ms in zip(CTAS, times, strict=True):
            power = 320.0 if (kind, ctas) == (AG, 24) else None
            rows.append(
                sample(f"{kind} alone, {ctas} CTAs", ms * 1e3, collective=message(kind, ctas), power_w=power)
            )
    for pieces, label, ms, watts, mhz in COMPUTE_MS_W_MHZ:
        rows.append(sample(label, ms * 1e3, compute=pieces, power_w=watts, sm_clock_mhz=mhz))
    for pieces, label, kind, table in BESIDE_MS:
        for ctas, ms in table.items():
            text = f"{label} beside {kind}, {ctas} CTAs"
            rows.append(sample(text, ms * 1e3, compute=pieces, collective=message(kind, ctas)))
    for label, batch, ms, joules, setting, run in STEPS:
        step = StepSetting(workload=f"llama8-batch{batch}", **setting)  # type: ignore[arg-type]
        rows.append(sample(label, ms * 1e3, step=step, energy_j=joules, run=run))
    return tuple(rows)


def message(kind: str, ctas: int) -> Beside:
    return Beside(kind=kind, num_bytes=2 * SHARD_BYTES, group_size=2, num_ctas=ctas)  # type: ignore[arg-type]


def workload(graph: StepGraph, scale: dict[str, float], clock_mhz: float) -> Workload:
    """The recorded step as spans, equal ones counted."""
    spans: list[SpanTemplate] = []
    for span in find_spans(graph):
        template = SpanTemplate(
            name=span.name,
            count=1,
            compute=tuple(
                Piece(
                    kernel_class=KernelClass(graph.ops.kernel_class[op]).name.lower(),  # type: ignore[arg-type]
                    alone_us=float(graph.ops.alone_ns[op]) / 1e3
                    * scale.get(KernelClass(graph.ops.kernel_class[op]).name.lower(), 1.0),
                    grid=int(graph.ops.grid[op]),
                )
                for op in span.compute
            ),
            collectives=tuple(
                SpanCollectiveTemplate(
                    kind=graph.collectives[c.row].kind.name.lower(),  # type: ignore[arg-type]
                    num_bytes=graph.collectives[c.row].num_bytes,
                    group_size=2,
                    num_ctas=graph.collectives[c.row].num_ctas,
                    position=c.stock,
                    required_at=c.required_at,
                )
                for c in span.collectives
            ),
        )  # fmt: skip
        shape = (len(template.compute), template.collectives)
        same = next((i for i, s in enumerate(spans) if (len(s.compute), s.collectives) == shape), None)
        if same is None:
            spans.append(template)
        else:
            spans[same] = msgspec.structs.replace(spans[same], count=spans[same].count + 1)
    return Workload(
        spans=tuple(spans),
        idle_us=1300.0,
        clock_mhz=clock_mhz,
        provenance="kernels of the recorded stock step, alone durations",
    )


def main(trace: str, target: str) -> None:
    graph = graphs(read_trace(f"{trace}/rank0.json.gz"))[-1]
    rows = samples()
    loops = Profile(
        gpu=graph.gpu,
        num_sms=graph.num_sms,
        conditions=(
            Conditions(
                host_gpu=graph.gpu,
                num_sms=graph.num_sms,
                link="nvlink",
                world_size=2,
                versions={"driver": "580.159.04", "cuda": "13.0", "torch": "2.11.0+cu130", "nccl": "2.28.9"},
                method="means of 4-8 s windows; energy from NVML's total-energy counter of rank 0's GPU",
            ),
        ),
        samples=tuple(s for s in rows if s.step is None),
        reference_clock_mhz=REFERENCE_MHZ,
        provenance="tests/bench/build_h200_profile.py",
    )
    # A trace does not say its clock: it is where the power of its kernels, known from loops, meets the limit.
    clock = calibrated(fit_profile(loops), graph)["reference_clock_mhz"]
    profile = msgspec.structs.replace(
        loops,
        samples=rows,
        workloads={
            "llama8-batch1": workload(graph, {}, clock),
            "llama8-batch2": workload(graph, BATCH_2, clock),
        },
    )
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    profile = with_fit(profile)
    profile.save(target)
    print(f"{target}: {len(profile.samples)} samples, recorded step at about {clock:.0f} MHz (modelled)")


if __name__ == "__main__":
    main(*sys.argv[1:3])
