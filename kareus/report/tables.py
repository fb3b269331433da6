"""Results on stdout: rich tables on a terminal, plain aligned text in a pipe or with NO_COLOR.

Each function takes the same document that `--json` prints, so both ways of printing show one set of
figures.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kareus.report.numbers import change, joules, ms, percent, plain, signed_percent

Row = Sequence[str]

_SHORT = 24  # characters: up to here texts of a column are kept on one line each


def console(file: IO[str] | None = None) -> Console:
    """Return a console for results: colours only on a terminal, and never where NO_COLOR is set."""
    target = sys.stdout if file is None else file
    return Console(file=target, highlight=False, soft_wrap=not target.isatty())


def grid(
    out: Console, columns: Sequence[str], rows: Sequence[Row], *, left: Sequence[int] = (0,), title: str = ""
) -> None:
    """Print one table.

    Args:
        out: where to. columns: header texts, of several lines where they hold newlines. rows: cells, plain text.
        left: columns set flush left, the others hold figures. title: a line above, "" none.
    """
    if not out.is_terminal:
        # A pipe has no width: nothing may be wrapped or cut.
        lines = ([title] if title else []) + _aligned([*_head_lines(columns), *rows], left)
        out.file.write("".join(plain(line) + "\n" for line in lines))
        return
    fits = "utf" in out.encoding
    table = Table(
        box=SIMPLE_HEAD,
        title=title or None,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        pad_edge=False,
        padding=(0, 2 if out.width >= 100 else 1, 0, 0),
    )
    for index, column in enumerate(columns):
        flush = index in left
        whole = not flush or max((len(row[index]) for row in rows), default=0) <= _SHORT
        table.add_column(column, justify="left" if flush else "right", overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*(Text(cell if fits else plain(cell)) for cell in row))
    out.print(table)


def _head_lines(columns: Sequence[str]) -> list[Row]:
    """Headers line by line; shorter ones stand at the bottom, next to their figures."""
    parts = [column.split("\n") for column in columns]
    height = max(map(len, parts))
    padded = [[""] * (height - len(part)) + part for part in parts]
    return [list(line) for line in zip(*padded, strict=True)]


def _aligned(rows: Sequence[Row], left: Sequence[int]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(wide) if index in left else cell.rjust(wide)
            for index, (cell, wide) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def print_solve(document: Mapping[str, Any], *, output: str, file: IO[str] | None = None) -> None:
    """Print a `kareus.solve/1` document: the points, the proof and where the schedule went."""
    out = console(file)
    stock = document["stock"]
    chosen = document["predicted"]
    rows = [
        _measured(document),
        _point("stock", stock, stock, "predicted"),
        _point("serialised", document.get("serialised"), stock, "predicted"),
        _point("chosen", chosen, stock, "predicted"),
        _bound(document),
    ]
    grid(out, _POINT_COLUMNS, [row for row in rows if row], left=(0, 5))
    facts = [
        ("proof", _proof(document)),
        ("simulated", _simulated(document)),
        ("improver", _improver(document)),
        ("worst case", _worst_case(document)),
        ("memory", _memory(document)),
        ("schedule", _wrote(document, output)),
        ("costs", document.get("costs", "")),
        ("kept stock", document.get("kept_stock", "")),
        ("early", _early(document.get("early_gathers", 0))),
    ]
    _facts(out, facts)


def print_simulate(document: Mapping[str, Any], *, file: IO[str] | None = None) -> None:
    """Print a `kareus.simulate/1` document: stock and scheduled step side by side."""
    out = console(file)
    stock, scheduled = document["stock"], document["scheduled"]
    rows = []
    for name, words, shown in _SIMULATED:
        if name in stock and name in scheduled:
            before, after = stock[name], scheduled[name]
            if before is None or after is None:
                continue
            rows.append([words, shown(before), shown(after), signed_percent(change(before, after))])
    grid(out, ("predicted", "stock", "scheduled", "change"), rows)
    measured = document["measured"]["time_us"]
    error = signed_percent(document["composition_error"])
    facts = [
        ("recorded step", f"{ms(measured)} (measured)"),
        ("composition error", f"{error}: stock as simulated, against the recorded step"),
        ("costs", document.get("costs", "")),
    ]
    _facts(out, facts)


def print_scaling(document: Mapping[str, Any], *, file: IO[str] | None = None) -> None:
    """Print the clusters of a `kareus.simulate/1` document, and under them what was assumed."""
    out = console(file)
    rows = []
    assumed: dict[str, None] = {}
    for row in document["scaling"]:
        before, after = row["stock"], row["scheduled"]
        exposed = percent(before["exposed_comm_us"] / before["time_us"])
        rows.append([
            row["label"], str(row["ranks"]), str(row["hosts"]), ms(before["time_us"]), exposed,
            ms(after["time_us"]), signed_percent(change(before["time_us"], after["time_us"])),
            signed_percent(change(before["energy_j"], after["energy_j"])),
        ])  # fmt: skip
        assumed |= dict.fromkeys(row["assumptions"])
    head = ("links", "ranks", "hosts", "stock", "exposed", "scheduled", "time", "energy a GPU")
    grid(out, head, rows)
    how = "solved for each" if document["scaling"][0]["solved_for_cluster"] else "one schedule for all"
    out.print(f"predicted by the cost model, {how}; nothing here was run on such a cluster. Assumed:")
    for sentence in assumed:
        out.print(f"  {sentence}")


_POINT_COLUMNS = ("", "time", "change", "energy", "change", "source")
_SIMULATED = (
    ("time_us", "step time", ms),
    ("energy_j", "energy per GPU", joules),
    ("compute_us", "compute", ms),
    ("comm_us", "communication", ms),
    ("exposed_comm_us", "exposed communication", ms),
    ("idle_us", "idle", ms),
    ("average_power_w", "average power", lambda value: f"{value:.0f} W"),
    ("sm_clock_mhz", "SM clock", lambda value: f"{value:.0f} MHz"),
    ("peak_gathered_bytes", "gathered parameters, peak", lambda value: f"{value / 1e6:.1f} MB"),
)


def _point(name: str, point: Mapping[str, Any] | None, stock: Mapping[str, Any], source: str) -> list[str]:
    if point is None:
        return []
    cells = [name]
    for key, shown in (("time_us", ms), ("energy_j", joules)):
        value, base = point.get(key), stock.get(key)
        cells.append(shown(value) if value is not None else "unknown")
        if value is None or base is None or point is stock:
            cells.append("")
        else:
            cells.append(signed_percent(change(base, value)))
    return [*cells, source]


def _measured(document: Mapping[str, Any]) -> list[str]:
    measured = document.get("measured")
    if not measured or measured.get("time_us") is None:
        return []
    return ["recorded", ms(measured["time_us"]), "", "", "", "measured"]


def _bound(document: Mapping[str, Any]) -> list[str]:
    bound = document.get("bound") or {}
    energy, time = bound.get("energy_j"), bound.get("time_us")
    said = "proven, of the worst case" if bound.get("of") == "worst_case" else "proven"
    if document.get("objective") == "time" and time is not None:
        return ["bound", ms(time), "", "", "", said]
    return ["bound", "", "", joules(energy), "", said] if energy is not None else []


def _proof(document: Mapping[str, Any]) -> str:
    parts = [str(document["status"])]
    if _bound(document) and document.get("gap") is not None:
        parts.append(f"gap {percent(document['gap'], 2)}")
    certificate = (document.get("bound") or {}).get("certificate")
    parts.append(f"confirmed by {certificate}" if certificate else "no second proof")
    if document.get("solve_s") is not None:
        parts.append(f"{document['solve_s']:.2f} s")
    return ", ".join(parts)


def _simulated(document: Mapping[str, Any]) -> str:
    both = document.get("simulated")
    if not both:
        return ""
    before, after = both["stock"]["time_us"], both["scheduled"]["time_us"]
    words = (
        f"whole step {ms(before)}, under the schedule {ms(after)} ({signed_percent(change(before, after))})"
    )
    error = document.get("composition_error") or {}
    if error.get("scheduled") is not None:
        words += f"; sum of its spans off by {signed_percent(error['scheduled'])}"
        if document.get("may_run_on"):
            words += f", {document['may_run_on']} collectives that may run on into a later one priced as ending in theirs"
    recorded = (document.get("measured") or {}).get("time_us")
    if recorded:
        words += f"; stock off the recorded step by {signed_percent(change(recorded, before))}"
    return words


def _improver(document: Mapping[str, Any]) -> str:
    found = document.get("improver")
    if not found:
        return ""
    words = (
        f"local search on the simulated step gained {percent(found['gain'], 2)} over the plan made span by span "
        f"({found['evaluations']} steps simulated)"
    )
    if found["finalists"]:
        words += f"; {found['finalists']} other plans are within noise, see --finalists"
    return words


def _memory(document: Mapping[str, Any]) -> str:
    """What the schedule takes beyond stock; nothing where it takes none and no limit was given."""
    found = document.get("memory")
    if not found or (not found["total_bytes"] and found["limit_bytes"] is None):
        return ""
    parts = [
        f"{words} {found[name] / 1e6:.0f} MB"
        for words, name in (
            ("communicators", "communicators_bytes"),
            ("copy-engine buffers", "copy_buffers_bytes"),
            ("parameters gathered for longer", "gathered_bytes"),
        )
        if found[name]
    ]
    total = f"{found['total_bytes'] / 1e6:.0f} MB beyond stock on each GPU"
    limit = "" if found["limit_bytes"] is None else f"; limit {found['limit_bytes'] / 1e6:.0f} MB"
    return total + (f" ({', '.join(parts)})" if parts else "") + limit


def _worst_case(document: Mapping[str, Any]) -> str:
    worst = document.get("worst_case")
    if not worst or not worst["time_us"]:
        return ""
    return f"{ms(worst['time_us'])}, {joules(worst['energy_j'])}: every cost at its 90 % upper figure"


def _wrote(document: Mapping[str, Any], output: str) -> str:
    changed = document.get("changed_collectives")
    if changed is None:
        return output
    cap_mb = document.get("ddp_bucket_cap_mb")
    buckets = "" if cap_mb is None else f", DDP buckets of {cap_mb:g} MB"
    return f"{output}, {changed} collective{'' if changed == 1 else 's'} changed{buckets}"


def _facts(out: Console, facts: Sequence[tuple[str, str]]) -> None:
    shown = [(name, words) for name, words in facts if words]
    if not shown:
        return
    wide = max(len(name) for name, _ in shown) + 2
    out.print()
    for name, words in shown:
        value = words if out.is_terminal and "utf" in out.encoding else plain(words)
        out.print(Text.assemble((name.ljust(wide), "dim"), value))


def _early(units: int) -> str:
    """Say what early gathers do; the figures of the table above are without them."""
    if not units:
        return ""
    return f"the next step's first {units} unit(s) are gathered inside optimizer.step(); simulated, not in the bound"
