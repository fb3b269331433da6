"""Zeus on its published tables: recorded optimiser runs and the NSDI'23 recurring-job traces."""

import csv
import math
import os
from collections import defaultdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kareus.plan.policies.batch_size import BatchSizeSearch
from kareus.plan.policies.zeus import (
    CostRule,
    LimitCost,
    MaxSlowdownRule,
    PowerLimitSearch,
    least_energy,
    least_time,
)

SHARED = Path(os.environ.get("KAREUS_SHARED", Path(__file__).parents[3] / "shared"))
DATA = SHARED / "data/published/zeus"
pytestmark = pytest.mark.skipif(
    not (DATA / "plo_profiles").is_dir(), reason=f"published Zeus tables not at {DATA}; set KAREUS_SHARED"
)

LOGS = sorted((DATA / "plo_profiles").glob("*.csv")) if DATA.is_dir() else []
MAX_POWER_W = {"V100": 250, "A40": 300, "P100": 250}
# Target metric and default batch size of each job (Zeus, NSDI'23).
JOBS = {
    ("cifar100", "shufflenetv2", "adadelta"): (0.6, 1024),
    ("imagenet", "resnet50", "adadelta"): (0.65, 256),
    ("librispeech", "deepspeech2", "adamw"): (40.0, 192),
    ("movielens-1m", "ncf", "adam"): (0.41, 1024),
    ("squad", "bert_base_uncased", "adamw"): (84.0, 32),
    ("sentiment140", "bert_base_uncased", "adamw"): (0.84, 128),
}


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


class Replay:
    """Answers each window with the recorded one of the limit that is set."""

    def __init__(self, recorded):
        self.recorded, self.limit = recorded, None

    def set_limit(self, watts):
        self.limit = watts

    def begin(self):
        assert self.limit in self.recorded

    def end(self):
        return self.recorded[self.limit]

    def cancel(self):
        raise AssertionError("nothing to cancel")


@pytest.mark.parametrize("path", LOGS, ids=[p.stem for p in LOGS])
def test_recorded_runs_end_at_the_same_limit(path):
    recorded, num_gpus = {}, 0
    for row in rows(path):
        energies = [float(v) for k, v in row.items() if k.startswith("gpu")]
        num_gpus = len(energies)
        recorded[int(row["window_name"].rpartition("_")[2])] = (float(row["elapsed_time"]), sum(energies))
    gpu = path.stem.partition("+")[0]
    power = MAX_POWER_W[gpu]
    # The rules in plain arithmetic on the log, independent of the objects under test.
    top = max(recorded)
    by_cost = min(recorded, key=lambda w: (0.5 * recorded[w][1] + 0.5 * power * num_gpus * recorded[w][0], w))
    by_slowdown = min(w for w, (t, _) in recorded.items() if t <= 1.1 * recorded[top][0])
    expected = {
        least_energy: min(recorded, key=lambda w: recorded[w][1]),
        least_time: min(recorded, key=lambda w: recorded[w][0]),
        CostRule(max_power_w=power, world_size=num_gpus): by_cost,
        MaxSlowdownRule(factor=1.1): by_slowdown,
    }
    for rule, limit in expected.items():
        replay = Replay(recorded)
        search = PowerLimitSearch(recorded, rule, replay, replay.set_limit)
        steps = 0
        while not search.done:
            search.on_step_begin()
            steps += 1
        assert steps == 1 + 50 * len(recorded) + 1
        assert (search.chosen_w, replay.limit, search.failure) == (limit, limit, None)


@cache
def trace(gpu):
    power = defaultdict(lambda: defaultdict(list))
    for r in rows(DATA / f"nsdi23_trace/summary_power_{gpu.lower()}.csv"):
        seconds = float(r["time_per_epoch"])
        cost = LimitCost(
            power_limit_w=int(r["power_limit"]), time_s=seconds, energy_j=seconds * float(r["average_power"])
        )
        power[r["dataset"], r["network"], r["optimizer"]][int(r["batch_size"])].append(cost)
    epochs = defaultdict(lambda: defaultdict(list))
    for r in rows(DATA / "nsdi23_trace/summary_train.csv"):
        job = r["dataset"], r["network"], r["optimizer"]
        if job in JOBS and float(r["target_metric"]) == JOBS[job][0]:
            epochs[job][int(r["batch_size"])].append(float(r["target_epoch"]))
    return power, epochs


@pytest.mark.parametrize("job", JOBS, ids=[j[0] for j in JOBS])
@pytest.mark.parametrize("gpu", MAX_POWER_W)
def test_search_costs_at_most_five_percent_more_than_an_oracle(gpu, job):
    power, epochs = trace(gpu)
    rule = CostRule(max_power_w=MAX_POWER_W[gpu], world_size=1)

    def epoch_cost(c):
        return rule.cost_j(time_s=c.time_s, energy_j=c.energy_j)

    sizes = sorted(b for b in power[job] if b in epochs[job])
    best_limit = {b: epoch_cost(rule(power[job][b])) for b in sizes}
    expected = {
        b: np.mean(epochs[job][b]) * best_limit[b] for b in sizes if np.isfinite(epochs[job][b]).all()
    }
    oracle = min(expected.values())
    default = JOBS[job][1] if JOBS[job][1] in sizes else max(expected)
    recurrences = 2 * len(sizes) * max(len(power[job][b]) for b in sizes)  # as published: 2 |B| |P|
    later = []
    for seed in range(5):
        generator = np.random.default_rng(seed)
        search, measured = BatchSizeSearch(sizes, default, seed=seed), set()
        for run in range(recurrences + 20):
            size = search.next()
            target, epoch, spent = generator.choice(epochs[job][size]), 0, 0.0
            while not epoch >= target and epoch < 100 and not search.should_stop(spent):
                # A size's first epoch visits all power limits.
                profiling = size not in measured
                spent += np.mean([epoch_cost(c) for c in power[job][size]]) if profiling else best_limit[size]
                measured.add(size)
                epoch += 1
            search.report(size, float(spent), bool(epoch >= target))
            if run >= recurrences:
                later.append(expected.get(size, math.inf))
        assert search.survivors
    assert np.mean(later) <= 1.05 * oracle
