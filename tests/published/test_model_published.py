"""The model's methods on published tables; the full figures are made by tests/bench/bench_model.py."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from kareus.model.clock_curve import clock_curves, spread_clocks
from kareus.model.surrogate import fit_surface, most_promising

SHARED = Path(os.environ.get("KAREUS_SHARED", Path(__file__).parents[3] / "shared")) / "data/published"
SWEEP = SHARED / "kareus/attn_sm_sweep_2025-07"
TABLES = SHARED / "zeus/sosp24/stage_profile"


@pytest.fixture(scope="module")
def sweep():
    """Settings as numbers (log blocks, log threads, window, apart, clock), time s, energy J."""
    if not SWEEP.is_dir():
        pytest.skip(f"needs the published sweep at {SWEEP}; set KAREUS_SHARED")
    rows = []
    for name, clock in (("1200MHz", 1200.0), ("default_clock", 1410.0)):
        with open(SWEEP / f"energy_results_{name}.csv", newline="") as file:
            for row in csv.DictReader(file):
                start, end = float(row["overlap_start"]), float(row["overlap_end"])
                place = (7.0, 7.0, 1.0) if start < 0 else (start, end, 0.0)
                size = np.log([float(row["comm_sm_number"]), float(row["comm_block_size"])])
                means = [
                    np.mean([float(row[f"{i}:{q}"]) for i in range(3)])
                    for q in ("time (s)", "total energy (J)")
                ]
                rows.append([*size, *place, clock, *means])
    table = np.array(rows)
    assert len(table) == 876
    return table[:, :6], table[:, 6], table[:, 7]


def test_a_tenth_of_the_sweep_tells_the_rest(sweep):
    settings, time_s, energy_j = sweep
    order = np.random.default_rng(0).permutation(len(settings))
    train, rest = order[:87], order[87:]
    for response, goal in ((time_s, 0.03), (energy_j, 0.04)):
        mean, _ = fit_surface(settings[train], response[train]).predict(settings[rest])
        assert np.median(np.abs(np.exp(mean) / response[rest] - 1)) <= goal


def test_forty_settings_find_the_best(sweep):
    settings, time_s, energy_j = sweep
    bounds = settings.min(axis=0), settings.max(axis=0)
    for response in (time_s, energy_j, time_s * energy_j):
        over = []
        for seed in range(3):
            seen, scales = list(np.random.default_rng(seed).choice(len(settings), 12, replace=False)), None
            while len(seen) < 40:
                scales = None if len(seen) in (12, 19, 26, 33) else scales
                surface = fit_surface(settings[seen], response[seen], bounds=bounds, scales=scales)
                scales = surface.scales
                rest = np.setdiff1d(np.arange(len(settings)), seen)
                seen.append(int(rest[most_promising(surface, settings[rest], response[seen].min())]))
            over.append(response[seen].min() / response.min() - 1)
        assert np.median(over) <= 0.01


@pytest.mark.parametrize("table", ["bloom+a100_sxm_bf16", "gpt3-175b+a100_sxm_bf16", "gpt3-175b+a40_bf16"])
def test_five_clocks_tell_the_published_curves(table):
    path = TABLES / f"{table}.csv"
    if not path.exists():
        pytest.skip(f"needs the published clock tables at {TABLES}; set KAREUS_SHARED")
    with open(path, newline="") as file:
        cell = {(r["stage"], r["instruction"], float(r["frequency"])): r for r in csv.DictReader(file)}
    names = sorted({key[:2] for key in cell})
    clocks = np.array(sorted({key[2] for key in cell}))
    time_us, energy_j = (
        np.array([[float(cell[*n, f][q]) for f in clocks] for n in names]) for q in ("time", "energy")
    )
    picked = np.isin(clocks, spread_clocks(clocks))
    found = clock_curves(clocks[picked], time_us[:, picked] * 1e6, energy_j[:, picked], clocks)
    assert np.mean(np.abs(found.time_us / time_us / 1e6 - 1)[:, ~picked]) <= 0.02
    assert np.mean(np.abs(found.energy_j / energy_j - 1)[:, ~picked]) <= 0.02
