"""Predicts the settings played on one GPU that a fit has not seen; the offline half of `two_gpus.py model`.

    python tests/bench/one_gpu_model.py

Reads results/one_gpu_model_*.json (collectives played by stand_in.py beside the real llama8 network on one
H200). Known, not fitted: a played collective is paced by itself, so two share no link. Fitted to: kernels in
loops on an H200 (traces/profiles), the played collectives alone, and the steps in SEEN over the fast link.
Everything else is predicted: other budgets, mixtures, launch points, batch 2, and the slow link, whose
collectives alone are all that is known of it. Stock of each job is measured before anything is chosen, so a
second column scales a prediction by stock's; the change from stock is the same in both. Writes
results/one_gpu_predictions.json.

Where gathers start in a stock step was decided with the measurements known (see `launched`), so the launch
points and the slow link are no blind test of it; `--recorded-starts` is the other choice, in
results/one_gpu_predictions_recorded_starts.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
from bench_model import rank_correlation

from kareus.model.constants import constant
from kareus.model.cost import CostModel
from kareus.model.fit_profile import fit_profile
from kareus.model.predict import predict
from kareus.model.profile import Beside, Conditions, Profile, Sample, SpanTemplate, StepSetting, Workload

RESULTS = Path(__file__).parent / "results"
PROFILE = Path(__file__).parents[2] / "traces/profiles/h200-nvlink.json"
JOBS = ("b1-fast", "b2-fast", "b1-slow")
SEEN = {
    "b1-fast": ("stock", "bound", "ag4", "rs4", "ce", "serial"),
    "b2-fast": ("stock",),
    "b1-slow": (),
}
NOT_SETTINGS = ("stock", "bound", "no-ag", "no-rs")
KINDS = {"ag": "all_gather", "rs": "reduce_scatter"}
LINK_QUANTITIES = ("gb_per_s_per_cta", "gb_per_s", "knee")
SHARD_BYTES = 228_000_000  # what stand_in.measure moves
SPREAD = 0.01  # block to block, relative
# GEMMs of a block that come before a submodule's first, by phase: where in a span a launch point lies.
GEMMS_BEFORE = {"attention": {"forward": 0, "backward": 6}, "mlp": {"forward": 2, "backward": 0}}
AFTER_COPY_OUT = 2  # FSDP2 issues the next gather once the unit's own parameters were copied out


def launched(workload: Workload, module: str | None) -> Workload:
    """The workload with gathers where FSDP2 issues them, or no earlier than before a submodule.

    The recorded step was profiled, which held the CPU up; without a profiler it runs ahead of the GPU.
    """

    def moved(span: SpanTemplate) -> SpanTemplate:
        phase, unit = span.name.split(" ")[0], span.name.split(" ")[-1]
        at = AFTER_COPY_OUT
        if module is not None and unit.startswith("blocks."):
            gemms = [i for i, piece in enumerate(span.compute) if piece.kernel_class == "gemm"]
            at = gemms[GEMMS_BEFORE[module][phase]]
        collectives = tuple(
            msgspec.structs.replace(c, position=min(at, c.required_at)) if c.kind == "all_gather" else c
            for c in span.collectives
        )
        return msgspec.structs.replace(span, collectives=collectives)

    return msgspec.structs.replace(workload, spans=tuple(moved(span) for span in workload.spans))


def setting(arm: str, batch: int) -> StepSetting | None:
    """An arm's name (see gpu_arms.py) as a setting of the model; None where the model has no such knob."""
    name, ctas, waits, absent = f"batch{batch}", {}, set(), {"bound": ("all_gather", "reduce_scatter")}
    for word in arm.split("+"):
        if found := re.fullmatch(r"(ag|rs)(\d+)", word):
            ctas[KINDS[found[1]]] = int(found[2])
        elif word == "ce":
            ctas["all_gather"] = 0
        elif found := re.fullmatch(r"serial(?:-(ag|rs))?", word):
            waits |= {KINDS[found[1]]} if found[1] else set(KINDS.values())
        elif found := re.fullmatch(r"launch-(attention|mlp)-before", word):
            name += f"-{found[1]}"
        elif found := re.fullmatch(r"no-(ag|rs)", word):
            absent[word] = (KINDS[found[1]],)
        elif word not in ("stock", "bound"):
            return None
    # Played collectives share no communicator: gathers and reduce-scatters run on streams of their own.
    return StepSetting(
        workload=name, num_ctas=ctas, serialise=tuple(waits), absent=absent.get(arm, ()), separate=True
    )


def alone(document: dict, conditions: int) -> Iterator[Sample]:
    """The played collectives by themselves."""
    for row in document["stand_in"]:
        if row["kind"] is None or row["gemms"] or not row["num_ctas"]:
            continue
        yield Sample(
            label=f"{row['kind']} alone, {row['num_ctas']} CTAs",
            conditions=conditions,
            collective=Beside(
                kind=row["kind"], num_bytes=2 * SHARD_BYTES, group_size=2, num_ctas=row["num_ctas"]
            ),
            time_us=row["ms"] * 1e3,
            time_spread_us=SPREAD * row["ms"] * 1e3,
        )


def steps(document: dict, job: str, conditions: int) -> dict[str, Sample]:
    """Every measured arm of a job that the model can express; milliseconds and joules are means of blocks."""
    found = {}
    for arm, row in document["summary"].items():
        step = setting(arm, document["facts"]["batch"])
        if step is None:
            continue
        clocks = [b["ranks"][0]["sm_clock_mhz"] for b in document["blocks"] if b["arm"] == arm]
        found[arm] = Sample(
            label=arm,
            conditions=conditions,
            step=step,
            time_us=row["mean_ms"] * 1e3,
            time_spread_us=SPREAD * row["mean_ms"] * 1e3,
            energy_j=row["mean_j"],
            energy_spread_j=SPREAD * row["mean_j"],
            sm_clock_mhz=float(np.mean(clocks)),
            count=row["steps"],
            run=job,
        )
    return found


def played_profile(
    documents: dict[str, dict], recorded: bool = False
) -> tuple[Profile, dict[str, dict[str, Sample]]]:
    """All measurements as one profile, and the steps of each job by arm.

    With `recorded`, gathers of stock start where the (profiled) recording has them.
    """
    shipped = Profile.load(PROFILE)
    facts = documents["b1-fast"]["facts"]
    sittings = tuple(
        Conditions(
            host_gpu=shipped.gpu,
            num_sms=shipped.num_sms,
            link=f"played, {link}",
            world_size=2,
            versions={name: facts[name] for name in ("driver", "cuda", "torch")},
            method="one GPU, collectives played",
        )
        for link in ("fast", "slow")
    )
    by_job = {job: steps(d, job, int(job.endswith("slow"))) for job, d in documents.items()}
    loops = [
        msgspec.structs.replace(s, conditions=0)
        for s in shipped.samples
        if s.step is None and s.collective is None
    ]
    samples = (
        *loops,
        *alone(documents["b1-fast"], 0),
        *alone(documents["b1-slow"], 1),
        *(s for by_arm in by_job.values() for s in by_arm.values()),
    )
    workloads = {
        f"batch{batch}{f'-{module}' if module else ''}": shipped.workloads[f"llama8-batch{batch}"]
        if recorded and module is None
        else launched(shipped.workloads[f"llama8-batch{batch}"], module)
        for batch in (1, 2)
        for module in (None, "attention", "mlp")
    }
    profile = msgspec.structs.replace(
        shipped, conditions=sittings, samples=samples, workloads=workloads, fit=None
    )
    return profile, by_job


def fitted(profile: Profile, by_job: dict[str, dict[str, Sample]]) -> dict[str, CostModel]:
    """A model of each link; they differ in the link's own constants only."""
    bare = [s for s in profile.samples if s.step is None]
    fast = [s for s in bare if s.conditions == 0]
    fast += [by_job[job][arm] for job, arms in SEEN.items() for arm in arms]
    known = {"link_sharing": constant("link_sharing", 0.0, spread=0.0, note="each paced by itself")}
    cost = fit_profile(profile, samples=fast, known=known)
    link = fit_profile(profile, samples=[s for s in bare if s.conditions == 1], known=known)
    names = [f"{kind}.{quantity}" for kind in KINDS.values() for quantity in LINK_QUANTITIES]
    return {"fast": cost, "slow": cost.with_constants({name: link.constants[name] for name in names})}


def compared(document: dict, job: str, by_arm: dict[str, Sample], profile: Profile, cost: CostModel) -> list:
    """One row for each setting that the fit has not seen."""
    names = list(by_arm)
    found = predict(profile, list(by_arm.values()), cost)
    stock = names.index("stock")
    rows = []
    for index, arm in enumerate(names):
        if arm in NOT_SETTINGS or arm in SEEN[job]:
            continue
        summary, row = document["summary"][arm], {"job": job, "setting": arm}
        for what, predicted, measured, ratio in (
            ("time", found.time_us, [s.time_us for s in by_arm.values()], summary["mean_ms_ratio"][0]),
            ("energy", found.energy_j, [s.energy_j for s in by_arm.values()], summary["mean_j_ratio"][0]),
        ):
            change = float(predicted[index] / predicted[stock] - 1)
            row |= {
                f"{what}_measured": measured[index],
                f"{what}_predicted": float(predicted[index]),
                f"{what}_error": float(predicted[index] / measured[index] - 1),
                f"{what}_error_scaled_to_stock": (1 + change) / ratio - 1,
                f"{what}_change_measured": ratio - 1,  # to the stock block closest in time
                f"{what}_change_predicted": change,
                f"{what}_change_error": change - (ratio - 1),
            }
        rows.append(row)
    return rows


def judged(rows: list[dict]) -> dict:
    """Errors, rank correlation and the favourite, with what a model that always says stock would get."""
    found: dict = {"settings": len(rows)}
    for what in ("time", "energy"):
        column = {name: np.array([r[f"{what}_{name}"] for r in rows]) for name in (
            "error", "error_scaled_to_stock", "change_measured", "change_predicted", "change_error", "measured"
        )}  # fmt: skip
        found[what] = {
            **{
                name: {"median": float(np.median(np.abs(values))), "worst": float(np.abs(values).max())}
                for name, values in (
                    ("error", column["error"]),
                    ("error_scaled_to_stock", column["error_scaled_to_stock"]),
                    ("change_error", column["change_error"]),
                    ("change_error_of_always_stock", column["change_measured"]),
                )
            },
            "rank_correlation": rank_correlation(column["change_predicted"], column["change_measured"]),
        }
    return found


def favourite(rows: list[dict], what: str) -> dict:
    """What the model would choose among the settings of one job, and how far that is from the best."""
    chosen = min(rows, key=lambda r: r[f"{what}_change_predicted"])
    best = min(rows, key=lambda r: r[f"{what}_change_measured"])
    over = (1 + chosen[f"{what}_change_measured"]) / (1 + best[f"{what}_change_measured"]) - 1
    return {"setting": chosen["setting"], "best": best["setting"], "over_best": over}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recorded-starts", action="store_true", help="gathers start as in the recording")
    args = parser.parse_args()
    began = time.process_time()
    documents = {job: json.loads((RESULTS / f"one_gpu_model_{job}.json").read_text()) for job in JOBS}
    profile, by_job = played_profile(documents, args.recorded_starts)
    models = fitted(profile, by_job)
    rows = []
    for job, by_arm in by_job.items():
        rows += compared(documents[job], job, by_arm, profile, models[job.partition("-")[2]])
    groups = {"all": rows} | {job: [r for r in rows if r["job"] == job] for job in JOBS}
    result = {
        "schema": "kareus.bench.one_gpu_model/1",
        "command": f"one_gpu_model.py{' --recorded-starts' if args.recorded_starts else ''}",
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "raw": [f"one_gpu_model_{job}.json" for job in JOBS],
        "fitted_to": SEEN,
        "not_expressed": [a for d in documents.values() for a in d["summary"] if setting(a, 1) is None],
        "summary": {name: judged(group) for name, group in groups.items()},
        "favourites": {
            job: {what: favourite(groups[job], what) for what in ("time", "energy")} for job in JOBS
        },
        "rows": rows,
        "constants": {
            link: {name: round(float(c.value), 5) for name, c in model.constants.items()}
            for link, model in models.items()
        },
        "cpu_s": time.process_time() - began,
    }
    target = f"one_gpu_predictions{'_recorded_starts' if args.recorded_starts else ''}.json"
    (RESULTS / target).write_text(json.dumps(result, indent=1) + "\n")
    print(f"{'job':8} {'setting':24} {'ms':>7} {'model':>7} {'change':>7} {'model':>7} "
          f"{'J':>7} {'model':>7} {'change':>7} {'model':>7}")  # fmt: skip
    for r in rows:
        print(
            f"{r['job']:8} {r['setting']:24} {r['time_measured'] / 1e3:7.1f} {r['time_predicted'] / 1e3:7.1f} "
            f"{r['time_change_measured']:7.1%} {r['time_change_predicted']:7.1%} "
            f"{r['energy_measured']:7.1f} {r['energy_predicted']:7.1f} "
            f"{r['energy_change_measured']:7.1%} {r['energy_change_predicted']:7.1%}"
        )
    print(json.dumps({name: result[name] for name in ("summary", "favourites")}))


if __name__ == "__main__":
    main()
