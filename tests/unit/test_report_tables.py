"""Tables and progress lines: plain in a pipe, complete, and the same figures as the JSON document."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any

from kareus.report.progress import SolverProgress, describe
from kareus.report.tables import console, grid, print_simulate, print_solve

SOLVE: dict[str, Any] = {
    "schema": "kareus.solve/1",
    "status": "optimal",
    "objective": "energy",
    "stock": {"time_us": 127_000, "energy_j": 88.0},
    "serialised": {"time_us": 139_700, "energy_j": 94.6},
    "predicted": {"time_us": 123_190, "energy_j": 86.24},
    "bound": {"energy_j": 86.2, "time_us": None, "certificate": "dynamic programme"},
    "gap": 0.00046,
    "solve_s": 1.25,
    "measured": {"time_us": 128_100},
    "simulated": {"stock": {"time_us": 126_500}, "scheduled": {"time_us": 123_000}},
    "composition_error": {"stock": 0.004, "scheduled": 0.0015},
    "costs": "unverified: assumed",
    "kept_stock": "",
    "changed_collectives": 14,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(printed: io.StringIO) -> list[str]:
    return [" ".join(line.split()) for line in printed.getvalue().splitlines()]


def test_solve_lists_points_proof_and_file() -> None:
    out = io.StringIO()
    print_solve(SOLVE, output="schedule.json", file=out)
    assert "\x1b" not in out.getvalue()
    assert lines(out) == [
        "time change energy change source",
        "recorded 128.10 ms measured",
        "stock 127.00 ms 88.00 J predicted",
        "serialised 139.70 ms +10.0 % 94.60 J +7.5 % predicted",
        "chosen 123.19 ms -3.0 % 86.24 J -2.0 % predicted",
        "bound 86.20 J proven",
        "",
        "proof optimal, gap 0.05 %, confirmed by dynamic programme, 1.25 s",
        "simulated whole step 126.50 ms, under the schedule 123.00 ms (-2.8 %); "
        "sum of its spans off by +0.1 %; stock off the recorded step by -1.2 %",
        "schedule schedule.json, 14 collectives changed",
        "costs unverified: assumed",
    ]


def test_solve_without_proof_says_so() -> None:
    out = io.StringIO()
    bare = {**SOLVE, "status": "heuristic", "bound": {"energy_j": None, "time_us": None, "certificate": ""}}
    print_solve(bare, output="s.json", file=out)
    assert "proof heuristic, no second proof, 1.25 s" in lines(out)
    assert not any(line.startswith("bound") for line in lines(out))


def test_a_time_objective_shows_its_bound_in_time() -> None:
    out = io.StringIO()
    bound = {"time_us": 123_000, "energy_j": 86.0, "certificate": ""}
    print_solve({**SOLVE, "objective": "time", "bound": bound}, output="s.json", file=out)
    assert "bound 123.00 ms proven" in lines(out)


def test_simulate_puts_both_steps_side_by_side() -> None:
    out = io.StringIO()
    document = {
        "stock": {"time_us": 127_000, "energy_j": 88.0, "exposed_comm_us": 5_600},
        "scheduled": {"time_us": 123_190, "energy_j": 86.24, "exposed_comm_us": 2_800},
        "measured": {"time_us": 128_100},
        "composition_error": -0.0086,
    }
    print_simulate(document, file=out)
    assert lines(out) == [
        "predicted stock scheduled change",
        "step time 127.00 ms 123.19 ms -3.0 %",
        "energy per GPU 88.00 J 86.24 J -2.0 %",
        "exposed communication 5.60 ms 2.80 ms -50.0 %",
        "",
        "recorded step 128.10 ms (measured)",
        "composition error -0.9 %: stock as simulated, against the recorded step",
    ]


def test_nothing_is_cut_in_a_pipe() -> None:
    out = io.StringIO()
    grid(console(out), ("", "needs"), [["x" * 150, "odd [name]"]], left=(0, 1))
    assert "x" * 150 in out.getvalue().replace("\n", "")
    assert "odd [name]" in out.getvalue()


def test_headers_of_several_lines_stand_above_their_figures_in_a_pipe() -> None:
    out = io.StringIO()
    grid(console(out), ("", "time at\nequal\nenergy", "power"), [["stock", "0.0 %", "692 W"]])
    assert out.getvalue() == (
        "       time at\n"
        "         equal\n"
        "        energy  power\n"
        "stock    0.0 %  692 W\n"
    )  # fmt: skip


def test_no_color_is_obeyed(monkeypatch: Any) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert console(Terminal()).no_color


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, kw_only=True)
class Report:
    best: float | None = None
    bound: float = -math.inf
    gap: float = 1.0
    elapsed_s: float = 0.0


def test_progress_in_a_log_is_a_plain_line_every_few_seconds() -> None:
    out, clock = io.StringIO(), Clock()
    with SolverProgress(file=out, clock=clock) as progress:
        for second in range(12):
            clock.now = float(second)
            progress(Report(best=1000.0, bound=990.0, gap=0.01, elapsed_s=second + 0.5))
    assert lines(out) == [f"{t}.5 s best 1000 bound 990 gap 1.00 %" for t in (0, 5, 10)]


def test_progress_on_a_terminal_redraws_one_line_and_clears_it() -> None:
    out, clock = Terminal(), Clock()
    with SolverProgress(file=out, clock=clock) as progress:
        progress(Report())
        clock.now = 0.05
        progress(Report(best=5.0, bound=4.0, gap=0.2))  # too soon to redraw
        clock.now = 0.2
        progress(Report(best=4.0, bound=4.0, gap=0.0, elapsed_s=0.2))
    shown = out.getvalue()
    assert "\n" not in shown
    assert [part for part in shown.split("\r\x1b[K") if part] == [
        "0.0 s  best none yet  bound none yet  gap unknown",
        "0.2 s  best 4  bound 4  gap 0.00 %",
    ]
    assert shown.endswith("\r\x1b[K")


def test_a_broken_stderr_never_stops_a_solve() -> None:
    broken = Broken()
    with SolverProgress(file=broken) as progress:
        progress(Report(best=1.0))
        progress(Report(best=1.0))
    assert progress.quiet
    assert broken.writes == 1


class Broken(io.StringIO):
    writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        raise BrokenPipeError


def test_quiet_shows_nothing() -> None:
    out = io.StringIO()
    with SolverProgress(file=out, quiet=True) as progress:
        progress(Report(best=1.0, bound=1.0, gap=0.0))
    assert out.getvalue() == ""


def test_the_solver_reports_what_is_shown_here() -> None:
    from solver.engine import Progress

    line = describe(Progress(best=86_400.0, bound=86_360.0, gap=0.00046, elapsed_s=1.25))
    assert line == "1.2 s  best 86400  bound 86360  gap 0.05 %"
