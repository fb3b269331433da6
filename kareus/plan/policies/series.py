"""Carbon-intensity and price series, and a forecast of their next values.

Readers for CSV files and for Electricity Maps history documents. The forecast is a ridge regression on the
previous value and the time of day, trained on the last day: the features of Chase, without its kernel.
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kareus.errors import InputError, UsageError
from kareus.plan.policies.csv_file import read_number, read_rows

DAY_S = 86_400.0
TRAINED_ON = 48  # values: a day of half hours
_RIDGE = 5.0
_MOST = 1e9  # per kWh, in grams or any money; beyond, sums overflow


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """A quantity over time: grams of CO2 equivalent, or money, per kWh.

    Attributes:
        start_s: seconds since 1970 at which each value begins to hold, ascending. value: one for each.
        interval_s: how long the last value holds, and the step of forecasts.
    """

    start_s: tuple[float, ...]
    value: tuple[float, ...]
    interval_s: float

    def index_at(self, time_s: float) -> int:
        """Index of the value in force, the first before the series begins, the last after it ends."""
        return max(bisect_right(self.start_s, time_s) - 1, 0)

    def at(self, time_s: float) -> float:
        """The value in force."""
        return self.value[self.index_at(time_s)]

    def next_change_s(self, time_s: float) -> float:
        """When the value in force ends."""
        index = bisect_right(self.start_s, time_s)
        if index < len(self.start_s):
            return self.start_s[index]
        beyond = time_s - self.start_s[-1]
        return self.start_s[-1] + (math.floor(beyond / self.interval_s + 1e-9) + 1) * self.interval_s


def make_series(start_s: list[float], value: list[float], where: str, *, negative: bool = False) -> Series:
    """Check and sort a series; only prices that are billed, not decided by, may be negative.

    Raises:
        InputError: empty, twice the same time, or a value that is not a number of at least 0.
    """
    least = -_MOST if negative else 0.0
    if not value:
        raise InputError(f"{where}: no values; expected times with a value for each")
    order = sorted(range(len(value)), key=lambda i: start_s[i])
    times, values = [start_s[i] for i in order], [value[i] for i in order]
    for time_s, figure in zip(times, values, strict=True):
        if not least <= figure <= _MOST:
            moment = datetime.fromtimestamp(time_s, UTC).isoformat()
            raise InputError(
                f"{where}: expected a number of {least:g} to {_MOST:g} at {moment}, found {figure}"
            )
    steps = np.diff(times)
    if len(steps) and steps.min() <= 0:
        raise InputError(
            f"{where}: the time {datetime.fromtimestamp(times[int(np.argmin(steps))], UTC)} occurs twice"
        )
    interval = float(np.median(steps)) if len(steps) else 3600.0
    return Series(start_s=tuple(times), value=tuple(values), interval_s=interval)


def read_series_csv(
    path: str | os.PathLike[str],
    *,
    column: str = "value",
    time_column: str = "timestamp",
    negative: bool = False,
) -> Series:
    """Read a CSV with an ISO 8601 time column and a column of values.

    Raises:
        InputError: unreadable, a missing column, a time or number that cannot be read.
    """
    times, values = [], []
    for count, row in enumerate(read_rows(path, "a CSV series"), 1):
        try:
            times.append(_seconds(row[time_column]))
            values.append(read_number(row, column))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path}, row {count}: expected an ISO time under {time_column!r} and a number "
                f"under {column!r} ({error}); columns are {list(row)}"
            ) from error
    return make_series(times, values, str(path), negative=negative)


def read_electricity_maps(path: str | os.PathLike[str], *, negative: bool = False) -> Series:
    """Read an Electricity Maps answer: `{"history": [{"datetime": ..., "carbonIntensity": ...}, ...]}`.

    A `"forecast"` or `"data"` list of the same shape, such a list alone and a single entry are read too, and
    prices: a `"value"` with a `"unit"` per MWh or kWh. Entries whose figure is null are left out.

    Raises:
        InputError: unreadable, not JSON, without such a list, or an error message of the service.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            document: Any = json.load(file)
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read {path}: {error}; expected an Electricity Maps JSON document"
        ) from error
    entries = _entries(document, path)
    times, values = [], []
    for number, entry in enumerate(entries):
        try:
            figure = _per_kwh(entry)
            if figure is not None:
                times.append(_seconds(entry["datetime"]))
                values.append(figure)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f'{path}, entry {number}: expected "datetime" (an ISO time) and "carbonIntensity", or a price as '
                f'"value" with a "unit" per MWh or kWh, found {str(entry)[:120]} ({error})'
            ) from error
    return make_series(times, values, str(path), negative=negative)


def _entries(document: Any, path: str | os.PathLike[str]) -> list[Any]:
    if isinstance(document, list):
        return document
    fields = document if isinstance(document, dict) else {}
    for name in ("history", "forecast", "data"):
        if isinstance(fields.get(name), list):
            return list(fields[name])
    if "datetime" in fields:
        return [fields]
    said = fields.get("error") or fields.get("message")
    if isinstance(said, str):
        raise InputError(
            f"{path}: the service answered {said!r}, no series; ask it again and save its answer"
        )
    raise InputError(
        f'{path}: expected a list under "history", "forecast" or "data"; this is another document'
    )


def _per_kwh(entry: Any) -> float | None:
    """Grams or money per kWh, None where the service has no figure."""
    if "carbonIntensity" in entry or "value" not in entry:
        figure, per_mwh = entry["carbonIntensity"], False
    else:
        figure, per_mwh = entry["value"], str(entry["unit"]).endswith("/MWh")
        if not (per_mwh or str(entry["unit"]).endswith("/kWh")):
            raise ValueError(f"unit {entry['unit']!r}")
    if figure is None:
        return None
    return float(figure) / 1000 if per_mwh else float(figure)


def read_series(path: str | os.PathLike[str], *, column: str = "value", negative: bool = False) -> Series:
    """Read a series of either kind, told apart by its first character; `column` is of a CSV.

    Values below 0 are refused unless `negative` allows them.

    Raises:
        InputError: as the two readers do.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            begins = file.read(4096).lstrip()[:1]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}; expected a CSV or Electricity Maps JSON") from error
    if begins in ("{", "["):
        return read_electricity_maps(path, negative=negative)
    return read_series_csv(path, column=column, negative=negative)


def forecast(series: Series, now_s: float, count: int) -> NDArray[np.float64]:
    """Forecast the next values from those that have begun before `now_s`.

    Args:
        series: the past; values that begin later are not looked at.
        now_s: seconds since 1970.
        count: values to forecast, the first for the interval after the one in force.

    Returns:
        float64[count]. With fewer than four known values, the last one repeated.
    """
    if count < 1:
        raise UsageError(f"expected at least one value to forecast, found {count}")
    end = bisect_right(series.start_s, now_s)
    begin = max(end - TRAINED_ON, 0)
    values = np.array(series.value[begin : max(end, 1)])
    times = np.array(series.start_s[begin : max(end, 1)])
    if len(values) < 4:
        return np.full(count, values[-1])
    mean = float(values.mean())
    inputs = _features(times[1:], values[:-1] - mean)
    # Changes are regressed, so that with little to learn from the forecast is "as now".
    change = np.diff(values)
    weights = np.linalg.solve(inputs.T @ inputs + _RIDGE * _scale(inputs), inputs.T @ change)
    result = np.empty(count)
    time_s, last = float(times[-1]), float(values[-1])
    low, high = float(values.min()), float(values.max())
    for i in range(count):
        time_s += series.interval_s
        last += float((_features(np.array([time_s]), np.array([last - mean])) @ weights)[0])
        last = min(max(last, low), high)
        result[i] = last
    return result


def _features(times: NDArray[np.float64], previous: NDArray[np.float64]) -> NDArray[np.float64]:
    angle = 2 * math.pi * times / DAY_S
    return np.stack([np.sin(angle), np.cos(angle), previous], axis=1)


def _scale(inputs: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.diag(np.maximum((inputs**2).mean(axis=0), 1e-9))


def _seconds(text: str) -> float:
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
