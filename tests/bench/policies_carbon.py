"""Chase on its recorded carbon series, with every power-limit table of its job (ResNet-50).

Each table is held against what nobody can beat on it (kareus.plan.policies.hindsight), so that a saving which
was missed is laid at the door of the rule or of the card.
"""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
from policies_common import DATA, rows, write

from kareus.plan.policies.chase import ChaseCost, always, chase, run_job, within_deadline
from kareus.plan.policies.choose import Point
from kareus.plan.policies.hindsight import least_footprint
from kareus.plan.policies.series import Series, forecast, read_series_csv

ALLOWED = 1.025  # of stock's time, as published
HOURS = 60
TARGET = 0.65  # accuracy of the published job; 256 is its batch size
ETA = {"chase_eta_0.24": 0.24, "chase_eta_0.35": 0.35, "chase_eta_0.5": 0.5}


def power_tables(gpu):
    """For each batch size of ResNet-50, one point per power limit; a unit of work is a hundredth of an epoch."""
    tables = defaultdict(list)
    for r in rows(DATA / f"nsdi23_trace/summary_power_{gpu}.csv"):
        if r["network"] == "resnet50":
            seconds = float(r["time_per_epoch"]) / 100
            energy = seconds * float(r["average_power"])
            tables[int(r["batch_size"])].append(
                Point(label=r["power_limit"], time_s=seconds, energy_j=energy)
            )
    return tables


def epochs_to_target():
    """Mean epochs each batch size needs; sizes that miss the target in some run are left out."""
    epochs = defaultdict(list)
    for r in rows(DATA / "nsdi23_trace/summary_train.csv"):
        if r["network"] == "resnet50" and float(r["target_metric"]) == TARGET:
            epochs[int(r["batch_size"])].append(float(r["target_epoch"]))
    return {size: float(np.mean(runs)) for size, runs in epochs.items() if np.isfinite(runs).all()}


def highest(points):
    return max(points, key=lambda p: int(p.label))


def chase_rows():
    past = read_series_csv(DATA / "chase/carbon_hist.csv", column="hist")
    data = []
    for gpu in ("a40", "v100", "p100"):
        tables = power_tables(gpu)
        for batch in sorted(tables):
            data.append({"gpu": gpu, "batch_size": batch} | one_table(tables[batch], past))
            print(json.dumps(data[-1]))
    joint = [any_batch_size(gpu, past) for gpu in ("a40", "v100", "p100")]
    print(json.dumps(joint))
    write("policies_chase", {"tables": data, "batch_size_chosen_too": joint})


def one_table(points, past):
    start, stock = past.start_s[0], highest(points)
    work = HOURS * 3600 / stock.time_s
    base = run_job(work, past, start, always(stock))

    def expected(elapsed_s):
        values = forecast(past, start + elapsed_s - 1, 200)
        times = tuple(elapsed_s + 1800.0 * i for i in range(200))
        return Series(start_s=times, value=tuple(values), interval_s=1800.0)

    limit_s = ALLOWED * base.time_s
    fixed = [run_job(work, past, start, always(p)) for p in points]
    results = {
        name: run_job(
            work, past, start, chase(points, ChaseCost(max_power_w=300, max_intensity=750, eta=eta))
        )
        for name, eta in ETA.items()
    }
    results["deadline_2.5_percent"] = run_job(work, past, start, within_deadline(points, limit_s, expected))
    results["best_fixed_within_2.5_percent"] = min(
        (f for f in fixed if f.time_s <= limit_s), key=lambda f: f.footprint
    )
    entry = {"hours": HOURS}
    for name, result in results.items():
        entry[name] = {
            "carbon_change": result.footprint / base.footprint - 1,
            "time_change": result.time_s / base.time_s - 1,
            "swaps": result.swaps,
        }
    bound = least_footprint(points, past, start, work, limit_s)
    entry["nobody_beats_within_2.5_percent"] = bound / base.footprint - 1
    entry["deadline_over_bound"] = results["deadline_2.5_percent"].footprint / bound - 1
    return entry


def any_batch_size(gpu, past):
    """What nobody beats who also picks the batch size of the whole run to accuracy, against size 256 at most
    watts (128 where the card does not hold 256)."""
    tables, epochs, start = power_tables(gpu), epochs_to_target(), past.start_s[0]
    default = 256 if 256 in tables else 128
    base = run_job(100 * epochs[default], past, start, always(highest(tables[default])))
    limit_s = ALLOWED * base.time_s
    bounds = {
        size: least_footprint(tables[size], past, start, 100 * epochs[size], limit_s) / base.footprint - 1
        for size in sorted(set(tables) & set(epochs))
        if 100 * epochs[size] * min(p.time_s for p in tables[size]) <= limit_s
    }
    return {"gpu": gpu, "batch_size": default, "hours": base.time_s / 3600, "nobody_beats": bounds}
