"""Recorded tables of the policies: times and energies by power limit, by clock pair, or just as points.

    points        columns time (s) and energy (J), or time_s and energy_j: frontiers and measured plans
    power table   power_limit (W), time_per_epoch (s), average_power (W); one group per job and batch size
    power log     window_name ending in _WATTS, elapsed_time (s), gpuN_energy (J): a recorded search
    pipeline      power_limit_0 ... (W), one per stage (0 or empty: no such stage), with time and energy of all
                  GPUs; a point like any other, and a power limit's cost where all stages have the same one
    kernels       mem_mhz, core_mhz, changes in percent against auto_time_ms and auto_energy_j

The kind is told by the header, never by the file's name.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence

from kareus.errors import InputError
from kareus.plan.policies.choose import Point, plausible
from kareus.plan.policies.csv_file import read_number, read_rows
from kareus.plan.policies.twente import Kernel, KernelOption
from kareus.plan.policies.zeus import LimitCost

Row = Mapping[str, str]
Groups = dict[str, tuple[LimitCost, ...]]

_TIMES = ("time", "time_s", "iter_time_s", "iteration_time")
_ENERGIES = ("energy", "energy_j", "iter_energy_j")
_JOB_COLUMNS = (
    "kind",
    "gpu",
    "device",
    "model",
    "model_name",
    "dataset",
    "network",
    "batch_size",
    "num_microbatches",
    "optimizer",
    "dp",
    "tp",
    "pp",
)
_MAX_LAUNCHES = 1_000_000  # of kernels in a step
_KINDS = (
    "columns time and energy; power_limit, time_per_epoch and average_power; or window_name, elapsed_time "
    "and gpu0_energy"
)


def read_points(path: str | os.PathLike[str]) -> dict[str, tuple[Point, ...]]:
    """Read any table of times and energies.

    Returns:
        For each group ("" where the file holds one), its points; labels are power limits in watts where the
        file has them, row numbers elsewhere.

    Raises:
        InputError: unreadable, no known columns, or a figure that makes no sense.
    """
    rows = _rows(path)
    if "power_limit_0" not in rows[0] and _limit_reader(rows[0]) is not None:
        return {
            group: tuple(
                Point(label=f"{c.power_limit_w} W", time_s=c.time_s, energy_j=c.energy_j) for c in costs
            )
            for group, costs in _grouped(rows, path).items()
        }
    times = [name for name in _TIMES if name in rows[0]]
    energies = [name for name in _ENERGIES if name in rows[0]]
    if not times or not energies:
        raise InputError(f"{path}: expected {_KINDS}; found {', '.join(rows[0])}")
    if "stage" in rows[0]:
        raise InputError(
            f"{path}: a profile of pipeline stages is no list of points; plan its pipeline first"
        )
    if "rank" in rows[0]:
        raise InputError(
            f"{path}: expected times and energies of the whole job, found those of single ranks; take the longest "
            "time and the sum of the energies over ranks first"
        )
    groups: dict[str, list[Point]] = {}
    for number, row in enumerate(rows, 1):
        point = Point(
            label=_limits_label(_stage_limits_w(row, path, number)) or f"row {number}",
            time_s=_figure(row, times[0], path, number),
            energy_j=_figure(row, energies[0], path, number),
        )
        groups.setdefault(_group(row), []).append(point)
    return {group: tuple(points) for group, points in groups.items()}


def read_limits(path: str | os.PathLike[str]) -> Groups:
    """Read what the same work cost at each power limit, one group per job and batch size.

    Raises:
        InputError: unreadable, no power limits, or a figure that makes no sense.
    """
    rows = _rows(path)
    if _limit_reader(rows[0]) is None:
        raise InputError(
            f"{path}: expected power limits (power_limit, power_limit_0 or windows named ..._WATTS); "
            f"found {', '.join(rows[0])}"
        )
    return _grouped(rows, path)


def num_gpus(path: str | os.PathLike[str]) -> dict[str, int]:
    """GPUs whose energy each job of a table sums up; 1 where it does not say.

    A log has a column per GPU. A pipeline has dp x tp x pp GPUs where it gives these degrees, else one a stage.

    Raises:
        InputError: unreadable, or a degree or limit that is no number.
    """
    found: dict[str, int] = {}
    for number, row in enumerate(_rows(path), 1):
        group = _group(row)
        if group in found:
            continue
        if {"dp", "tp", "pp"} <= set(row):
            count = math.prod(round(_figure(row, degree, path, number)) for degree in ("dp", "tp", "pp"))
        else:
            logged = sum(name.startswith("gpu") and name.endswith("_energy") for name in row)
            count = logged or len(_stage_limits_w(row, path, number))
        found[group] = max(count, 1)
    return found


def read_kernels(path: str | os.PathLike[str]) -> tuple[list[Kernel], list[int]]:
    """Read kernels with their clocks, and the launches of a step in order.

    Several rows of one kernel_id are further options of it. Sections repeat as a whole, kernel by kernel, as
    often as their rows say. "auto" is a clock left to the GPU; the auto/auto option is stock.

    Raises:
        InputError: unreadable, a missing column, or a figure that makes no sense.
    """
    rows = _rows(path)
    suffix = "_fig5" if "auto_time_ms_fig5" in rows[0] else ""
    kernels: dict[str, Kernel] = {}
    sections: list[tuple[str, int]] = []
    for number, row in enumerate(rows, 1):
        key = row.get("kernel_id") or str(number)
        time_s = _figure(row, f"auto_time_ms{suffix}", path, number) * 1e-3
        energy_j = _figure(row, f"auto_energy_j{suffix}", path, number)
        option = KernelOption(
            mem_clock_mhz=_clock(row, "mem_mhz", path, number),
            sm_clock_mhz=_clock(row, "core_mhz", path, number),
            time_s=time_s * (1 + _change(row, "time_change_pct", path, number)),
            energy_j=energy_j * (1 + _change(row, "energy_change_pct", path, number)),
        )
        if key not in kernels:
            stock = KernelOption(mem_clock_mhz=None, sm_clock_mhz=None, time_s=time_s, energy_j=energy_j)
            repeat = round(_figure(row, "repeat", path, number))
            kernels[key] = Kernel(name=row.get("kernel") or key, repeat=repeat, options=(stock,))
            sections.append((row.get("section") or "", len(kernels) - 1))
        known = kernels[key]
        if option.clocks != known.options[0].clocks:
            kernels[key] = Kernel(name=known.name, repeat=known.repeat, options=(*known.options, option))
    listed = list(kernels.values())
    count = sum(kernel.repeat for kernel in listed)
    if count > _MAX_LAUNCHES:
        raise InputError(
            f"{path}: expected at most {_MAX_LAUNCHES} launches a step, found {count} under repeat"
        )
    launches: list[int] = []
    for _, group in itertools.groupby(sections, key=lambda pair: pair[0]):
        block = [index for _, index in group]
        for turn in range(max(listed[i].repeat for i in block)):
            launches += [i for i in block if turn < listed[i].repeat]
    return listed, launches


def _rows(path: str | os.PathLike[str]) -> list[dict[str, str]]:
    return read_rows(path, "a CSV table")


Reader = Callable[[Row, str | os.PathLike[str], int], LimitCost]


def _limit_reader(header: Row) -> Reader | None:
    columns = set(header)
    if {"power_limit", "time_per_epoch", "average_power"} <= columns:
        return _epoch
    if {"window_name", "elapsed_time"} <= columns:
        return _window
    if {"power_limit_0", "time", "energy"} <= columns:
        return _iteration
    return None


def _epoch(row: Row, path: str | os.PathLike[str], number: int) -> LimitCost:
    time_s = _figure(row, "time_per_epoch", path, number)
    return LimitCost(
        power_limit_w=round(_figure(row, "power_limit", path, number)),
        time_s=time_s,
        energy_j=time_s * _figure(row, "average_power", path, number),
    )


def _window(row: Row, path: str | os.PathLike[str], number: int) -> LimitCost:
    watts = row["window_name"].rpartition("_")[2]
    if not watts.isdecimal() or int(watts) == 0:
        raise InputError(
            f"{path}, row {number}: expected a window name that ends in _WATTS, found {row['window_name']!r}"
        )
    energies = [name for name in row if name.startswith("gpu") and name.endswith("_energy")]
    if not energies:
        raise InputError(f"{path}: expected columns gpuN_energy, found {', '.join(row)}")
    return LimitCost(
        power_limit_w=int(watts),
        time_s=_figure(row, "elapsed_time", path, number),
        energy_j=math.fsum(_figure(row, name, path, number) for name in energies),
    )


def _iteration(row: Row, path: str | os.PathLike[str], number: int) -> LimitCost:
    limits = _stage_limits_w(row, path, number)
    if len(set(limits)) != 1:
        raise InputError(
            f"{path}, row {number}: expected one power limit for all stages, found {_limits_label(limits)}; "
            "the table can still be read as points (kareus policies points)"
        )
    return LimitCost(
        power_limit_w=round(limits[0]),
        time_s=_figure(row, "time", path, number),
        energy_j=_figure(row, "energy", path, number),
    )


def _stage_limits_w(row: Row, path: str | os.PathLike[str], number: int) -> list[float]:
    """Limits of the stages in order; published tables pad jobs of fewer stages with 0 or nothing."""
    columns = [name for name in row if name.startswith("power_limit_") and name[12:].isdecimal()]
    columns.sort(key=lambda name: int(name[12:]))
    used = [name for name in columns if row[name] not in ("", None, "0", "0.0")]
    return [_figure(row, name, path, number) for name in used]


def _limits_label(limits_w: Sequence[float]) -> str:
    """ "300 W" or "300/225/200 W"; "" without limits."""
    if not limits_w:
        return ""
    shown = [f"{limit:g}" for limit in limits_w]
    return f"{shown[0] if len(set(shown)) == 1 else '/'.join(shown)} W"


def _grouped(rows: Sequence[Row], path: str | os.PathLike[str]) -> Groups:
    read = _limit_reader(rows[0])
    assert read is not None  # the caller asked first
    groups: dict[str, list[LimitCost]] = {}
    for number, row in enumerate(rows, 1):
        groups.setdefault(_group(row), []).append(read(row, path, number))
    return {group: tuple(costs) for group, costs in groups.items()}


def _group(row: Row) -> str:
    """What tells one job from another in a file: model, batch size and the like."""
    return " ".join(f"b{row[n]}" if n == "batch_size" else str(row[n]) for n in _JOB_COLUMNS if n in row)


def _figure(row: Row, column: str, path: str | os.PathLike[str], number: int) -> float:
    try:
        value = read_number(row, column)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}, row {number}: expected a number under {column!r}, found {row.get(column)!r} ({error}); "
            f"columns are {', '.join(row)}"
        ) from error
    if not plausible(value):
        raise InputError(
            f"{path}, row {number}: expected a positive {column} (1e-12 to 1e15), found {row[column]}"
        )
    return value


def _change(row: Row, column: str, path: str | os.PathLike[str], number: int) -> float:
    try:
        value = read_number(row, column) / 100
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}, row {number}: expected a change in percent under {column!r}, found {row.get(column)!r} "
            f"({error})"
        ) from error
    if not -1 < value < math.inf:
        raise InputError(f"{path}, row {number}: expected a change above -100 %, found {row[column]}")
    return value


def _clock(row: Row, column: str, path: str | os.PathLike[str], number: int) -> int | None:
    if row.get(column) == "auto":
        return None
    return round(_figure(row, column, path, number))
