"""Zeus' recurring jobs: the cost of the search for batch size and power limit against an oracle."""

from __future__ import annotations

import json
import math
from collections import defaultdict

import numpy as np
from policies_common import DATA, rows, write

from kareus.plan.policies.batch_size import BatchSizeSearch
from kareus.plan.policies.zeus import CostRule

# Target metric and default batch size of each job (Zeus, NSDI'23).
JOBS = {
    ("cifar100", "shufflenetv2", "adadelta"): (0.6, 1024),
    ("imagenet", "resnet50", "adadelta"): (0.65, 256),
    ("librispeech", "deepspeech2", "adamw"): (40.0, 192),
    ("movielens-1m", "ncf", "adam"): (0.41, 1024),
    ("squad", "bert_base_uncased", "adamw"): (84.0, 32),
    ("sentiment140", "bert_base_uncased", "adamw"): (0.84, 128),
}


def zeus():
    data = []
    for gpu, watts in (("v100", 250), ("a40", 300), ("p100", 250)):
        rule = CostRule(max_power_w=watts, world_size=1)
        power = defaultdict(lambda: defaultdict(list))
        for r in rows(DATA / f"nsdi23_trace/summary_power_{gpu}.csv"):
            seconds = float(r["time_per_epoch"])
            cost = rule.cost_j(time_s=seconds, energy_j=seconds * float(r["average_power"]))
            power[r["dataset"], r["network"], r["optimizer"]][int(r["batch_size"])].append(cost)
        for job, (target, default) in JOBS.items():
            epochs = defaultdict(list)
            for r in rows(DATA / "nsdi23_trace/summary_train.csv"):
                if (r["dataset"], r["network"], r["optimizer"]) == job and float(
                    r["target_metric"]
                ) == target:
                    epochs[int(r["batch_size"])].append(float(r["target_epoch"]))
            sizes = sorted(b for b in power[job] if b in epochs)
            expected = {
                b: float(np.mean(epochs[b])) * min(power[job][b])
                for b in sizes
                if np.isfinite(epochs[b]).all()
            }
            oracle = min(expected.values())
            recurrences = 2 * len(sizes) * max(len(power[job][b]) for b in sizes)
            later, during = [], []
            for seed in range(20):
                generator, measured = np.random.default_rng(seed), set()
                search = BatchSizeSearch(sizes, default if default in sizes else max(expected), seed=seed)
                for run in range(recurrences + 20):
                    size = search.next()
                    goal, epoch, spent = generator.choice(epochs[size]), 0, 0.0
                    while not epoch >= goal and epoch < 100 and not search.should_stop(spent):
                        spent += (
                            float(np.mean(power[job][size]))
                            if size not in measured
                            else min(power[job][size])
                        )
                        measured.add(size)
                        epoch += 1
                    search.report(size, spent, bool(epoch >= goal))
                    if run < recurrences:
                        during.append(spent / oracle)
                    else:
                        later.append(expected.get(size, math.inf) / oracle)
            data.append(
                {
                    "gpu": gpu,
                    "job": job,
                    "recurrences": recurrences,
                    "after_over_oracle": float(np.mean(later)),
                    "during_over_oracle": float(np.mean(during)),
                }
            )
            print(json.dumps(data[-1]))
    write("policies_zeus", data)
