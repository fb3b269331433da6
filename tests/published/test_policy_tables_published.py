"""Every published file is read as what it is, or refused for a reason listed here: none is met by chance."""

import contextlib
import os
from pathlib import Path

import pytest

from kareus.errors import InputError
from kareus.plan.policies.pipeline import read_stage_profile
from kareus.plan.policies.series import read_electricity_maps, read_series_csv
from kareus.plan.policies.tables import num_gpus, read_kernels, read_limits, read_points

SHARED = Path(os.environ.get("KAREUS_SHARED", Path(__file__).parents[3] / "shared"))
DATA = SHARED / "data/published/zeus"
pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"published tables not at {DATA}; set KAREUS_SHARED"
)

FILES = (
    sorted(p.relative_to(DATA).as_posix() for p in DATA.rglob("*") if p.is_file()) if DATA.is_dir() else []
)
# Pattern -> kinds it is read as. The first that fits counts.
READ = {
    "nsdi23_trace/summary_power_*.csv": {"points", "limits"},
    "plo_profiles/*.csv": {"points", "limits"},
    "sosp24/zeus_baseline/*_global.csv": {"points", "limits"},
    "sosp24/zeus_baseline/*_local.csv": {"points"},  # limits differ from stage to stage
    "sosp24/frontier_emulated/*.csv": {"points"},
    "sosp24/envpipe_result.csv": {"points"},
    "sosp24/perseus_plan_summary.csv": {"points"},
    "sosp24/stage_profile/*.csv": {"stages"},
    "twente/twente_table1_fig5.csv": {"kernels"},
    "chase/carbon_hist.csv": {"series"},
    "carbon_fixtures/carbon_history_file*": {"series"},
}
# No reader's business, and why.
REFUSED = {
    "LICENSE.Apache-2.0": "text",
    "*.md": "text",
    "carbon_fixtures/*.json": "utility rates, no series",
    "nsdi23_trace/summary_train.csv": "epochs to a target, no time or energy",
    "sosp24/lowtime_rerun_a100_gpt3_mb12.csv": "costs, of which two are energies: which is meant is not told",
    "sosp24/perseus_plan_iterations.csv": "single ranks, not the job",
    "sosp24/raw_example/*.json": "raw measurements and clock lists of single ranks",
    "sosp24/workloads/*.csv": "parallel degrees only",
    "twente/twente_fig6.csv": "changes of whole steps in percent",
    "twente/twente_fig7_fig8.csv": "changes of whole steps in percent",
}
READERS = {
    "points": read_points,
    "limits": read_limits,
    "kernels": read_kernels,
    "stages": read_stage_profile,
}


def expected(name):
    for pattern, kinds in READ.items():
        if Path(name).match(pattern):
            return kinds
    assert any(Path(name).match(pattern) for pattern in REFUSED), f"{name} is in neither list"
    return set()


def series(path):
    return read_series_csv(path, column="hist") if path.suffix == ".csv" else read_electricity_maps(path)


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_read_as_what_it_is_and_as_nothing_else(name):
    kinds, read = expected(name), set()
    for kind, reader in {**READERS, "series": series}.items():
        with contextlib.suppress(InputError):
            reader(DATA / name)
            read.add(kind)
    assert read == kinds


@pytest.mark.parametrize("name", [n for n in FILES if "points" in expected(n)])
def test_no_row_is_lost(name):
    with open(DATA / name) as file:
        rows = sum(1 for line in file if line.strip()) - 1
    assert sum(len(points) for points in read_points(DATA / name).values()) == rows


def test_stages_with_limits_of_their_own_are_points_named_by_them():
    groups = read_points(DATA / "sosp24/zeus_baseline/A100_zeus_local.csv")
    first = groups["bert-huge-uncased b256 32 1 1 4"][0]
    assert (first.label, round(first.time_s, 3), round(first.energy_j)) == ("300/225/225/200 W", 7.038, 6255)
    with pytest.raises(
        InputError, match="row 1: expected one power limit for all stages, found 300/225/225/200"
    ):
        read_limits(DATA / "sosp24/zeus_baseline/A100_zeus_local.csv")


def test_a_job_of_fewer_stages_than_columns_is_read_with_its_own_number_of_gpus():
    path = DATA / "sosp24/zeus_baseline/A40_zeus_global.csv"
    job = next(group for group in read_limits(path) if group.startswith("gpt3-6.7b"))
    assert [c.power_limit_w for c in read_limits(path)[job]][:3] == [300, 275, 250]
    # 567 kJ in 136.4 s under 300 W a GPU: more than the four stages could draw, so all replicas are counted.
    assert num_gpus(path)[job] == 2 * 2 * 4
    assert {count for group, count in num_gpus(path).items() if group != job} == {8}
