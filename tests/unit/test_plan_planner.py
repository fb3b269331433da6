"""The main job offline: goals, limits, proof, and what the schedule says."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("ortools")

from plan_samples import COST, PLAIN, problem_of, recorded

from kareus.errors import InfeasibleError
from kareus.model.simulate import Simulation, simulate
from kareus.plan import planner
from kareus.plan.improve import WITHIN_NOISE, improve
from kareus.plan.knobs import Knobs
from kareus.plan.lower import Effects, decisions_of, lower
from kareus.plan.memory import ExtraMemory, extra_memory
from kareus.plan.planner import Goal, Plan, make_plan
from kareus.plan.problem import whole
from kareus.schedule import Decision, Effect, Path, Schedule
from kareus.trace.identity import collective_key, fingerprint
from kareus.trace.types import CollectiveKind
from solver import judge


def planned(goal: Goal | None = None, knobs: Knobs = PLAIN, **changes) -> Plan:
    return make_plan(recorded(), COST, knobs, goal or Goal(), **changes)


def bare(choices: tuple[int, ...], knobs: Knobs = PLAIN) -> Schedule:
    step = problem_of("fsdp2-nvlink-default", knobs)
    effect = Effect(time_us=1.0, energy_j=1.0, source="predicted")
    return lower(step, choices, Effects(stock=effect, predicted=effect, bound=None))


def by_time(schedule: Schedule, found: Simulation) -> tuple[float, float]:
    return 0.0, found.time_us


def test_stock_lowers_to_no_decisions_and_serialised_to_one_each():
    step = problem_of()
    assert bare(step.stock_choices).decisions == ()
    serial = bare(step.serial_choices).decisions
    assert all(d.serialise and d.num_ctas is None and d.launch is None for d in serial)
    assert len(serial) == sum(len(s.collectives) for s in step.spans)


def test_decisions_say_what_the_settings_hold():
    step = problem_of("fsdp2-nvlink-default", replace(PLAIN, copy_engine=True))
    for kind, table in enumerate(step.tables):
        span = next(s for s, k in zip(step.spans, step.problem.chain, strict=True) if k == kind)
        for row in set(table.row.tolist()):
            rows = tuple(
                row if s is span else step.tables[k].stock_row
                for s, k in zip(step.spans, step.problem.chain, strict=True)
            )
            found = {d.collective: d for d in decisions_of(step, rows)}
            assert len(found) <= len(span.collectives)
            copies = int((table.settings.num_ctas[row] == 0).sum())
            assert sum(d.path is Path.COPY_ENGINE for d in found.values()) == copies
            budgets = {int(c) for _, c in table.rungs(row)}
            assert {d.num_ctas for d in found.values()} - {None} == budgets


def test_the_plan_is_proven_simulated_and_no_worse_than_stock():
    plan = planned()
    assert plan.solution.status == "optimal"
    assert plan.solution.time_us <= plan.stock.time_us
    assert judge(plan.step.problem, plan.solution.choices).violations == ()
    assert plan.simulation.time_us <= plan.stock_simulation.time_us * 1.0005
    proof = plan.schedule.proof
    assert proof is not None
    assert plan.schedule.bound is not None
    if not plan.kept_stock:
        assert (proof.status, proof.certificate, proof.gap) == (
            str(plan.solution.status),
            plan.solution.certificate,
            plan.solution.gap,
        )
    again = simulate([recorded()], plan.schedule, COST)
    assert again.time_us == plan.simulation.time_us


def test_limits_nobody_meets_name_the_least_possible():
    with pytest.raises(InfeasibleError, match=r"time: at least \d+ us is needed, the limit is 1000 us"):
        planned(Goal(deadline_us=1000.0))
    with pytest.raises(InfeasibleError, match=r"energy: at least \d+ mJ is needed, the limit is 1000 mJ"):
        planned(Goal(energy_budget_j=1.0))


def test_a_limit_equal_to_a_points_own_figures_allows_that_point():
    assert all(whole(mj / 1000 * 1000) == mj for mj in range(1, 100_000))
    assert [whole(x) for x in (4.035 * 1000, 4034.99, 100 * 1.15)] == [4035, 4034, 115]
    found = planned().solution
    again = planned(Goal(energy_budget_j=found.energy_mj / 1000)).solution
    assert again.time_us <= found.time_us
    assert again.energy_mj <= found.energy_mj


def test_more_knobs_and_more_time_never_cost():
    few = planned(knobs=Knobs(cta_budgets=False, launch_points=False))
    more = planned()
    assert more.solution.bound <= few.solution.time_us
    free = replace(PLAIN, clocks="advise")
    tight, loose = planned(Goal(max_slowdown=0.0), free), planned(Goal(max_slowdown=0.1), free)
    assert loose.solution.bound <= tight.solution.energy_mj
    assert loose.solution.time_us <= tight.stock.time_us * 1.1 + 1


def test_robust_never_promises_a_better_worst_case_than_it_bounds():
    usual, robust = planned(), planned(robust=True)
    assert robust.solution.bound <= usual.solution.worst_time_us
    assert robust.solution.bound <= robust.solution.worst_time_us
    assert robust.solution.worst_time_us >= robust.solution.time_us


def test_a_plan_the_simulator_does_not_confirm_is_left_for_stock(monkeypatch: pytest.MonkeyPatch):
    def slower(graphs, schedule, cost):
        found = simulate(graphs, schedule, cost)
        return found if schedule is None else replace(found, time_us=found.time_us * 2)

    monkeypatch.setattr(planner, "simulate", slower)
    monkeypatch.setattr("kareus.plan.improve.simulate", slower)
    plan = planned()
    assert plan.kept_stock.startswith("kept as stock")
    assert plan.schedule.decisions == ()
    assert plan.improved is None
    assert plan.solution.choices == plan.step.stock_choices


def test_clock_regions_begin_where_the_clock_changes():
    step = problem_of("fsdp2-nvlink-default", replace(PLAIN, clocks="advise"))

    def at(level: int, span: int) -> int:
        table = step.tables[step.problem.chain[span]]
        return next(
            i
            for i, o in enumerate(table.kind.options)
            if o.clock == level and table.row[i] == table.stock_row
        )

    spans = len(step.spans)
    low = tuple(at(0, i) for i in range(spans))
    (whole,) = bare(low, replace(PLAIN, clocks="advise")).clocks
    assert (whole.start, whole.sm_clock_mhz) == (None, step.problem.clocks_mhz[0])
    mixed = (*low[: spans // 2], *(at(1, i) for i in range(spans // 2, spans)))
    regions = bare(mixed, replace(PLAIN, clocks="advise")).clocks
    assert [r.sm_clock_mhz for r in regions] == list(step.problem.clocks_mhz[:2])
    assert all(r.start is not None for r in regions)


def test_local_search_mends_a_bad_plan_and_keeps_to_its_limit_of_steps():
    step = problem_of()
    start = bare(step.serial_choices)
    found = improve(step, step.serial_choices, start, by_time, max_evaluations=40)
    assert found.gain > 0
    assert found.moves > 0
    assert found.evaluations <= 40
    assert found.best < found.start
    assert found.simulation.time_us <= found.best[1] * (1 + WITHIN_NOISE)
    again = improve(step, step.serial_choices, start, by_time, max_evaluations=40)
    assert again.schedule == found.schedule


def test_among_plans_within_noise_the_one_with_fewest_changes_wins():
    step = problem_of()
    found = improve(step, step.stock_choices, bare(step.stock_choices), lambda *_: (0.0, 1.0))
    assert found.schedule.decisions == ()  # all are equal here, and stock is among them
    assert found.gain == 0
    assert 0 < len(found.finalists) <= 3
    assert all(f.decisions for f in found.finalists)


def test_local_search_keeps_to_the_ladders():
    step = problem_of()
    one = replace(step, problem=replace(step.problem, max_rungs=1))
    found = improve(one, step.serial_choices, bare(step.serial_choices), by_time, max_evaluations=40)
    for schedule in (found.schedule, *found.finalists):
        budgets: dict[str, set[int]] = {}
        for decision in schedule.decisions:
            if decision.num_ctas is not None:
                budgets.setdefault(decision.collective.kind, set()).add(decision.num_ctas)
        assert all(len(used) == 1 for used in budgets.values())


WITH_COPIES = replace(PLAIN, copy_engine=True)


def test_a_memory_limit_is_kept_and_more_memory_never_makes_it_worse():
    plans = {mb: planned(Goal(memory_bytes=mb * 10**6), WITH_COPIES) for mb in (0, 400, 800, 10_000)}
    for mb, plan in plans.items():
        assert plan.memory.total <= mb * 10**6
        assert judge(plan.step.problem, plan.solution.choices).violations == ()
    assert plans[0].memory == ExtraMemory()
    assert all(d.num_ctas is None and d.path is Path.NCCL for d in plans[0].schedule.decisions)
    times = [plans[mb].solution.time_us for mb in sorted(plans)]
    assert times == sorted(times, reverse=True)
    free = planned(Goal(), WITH_COPIES)
    assert plans[10_000].solution.time_us <= free.solution.time_us * (1 + WITHIN_NOISE)


def test_extra_memory_counts_each_communicator_once_and_the_largest_buffer():
    graph = recorded()
    stock = simulate([graph], None, COST)
    keys = [(collective_key(c), c) for c in graph.collectives if c.kind == CollectiveKind.ALL_GATHER]
    budgets = tuple(Decision(collective=key, num_ctas=8) for key, _ in keys if key is not None)
    copies = tuple(Decision(collective=key, path=Path.COPY_ENGINE) for key, _ in keys if key is not None)
    plan = Schedule(fingerprint=fingerprint(graph), decisions=budgets)
    found = extra_memory(plan, graph, COST, stock=stock, planned=stock)
    assert found == ExtraMemory(communicators=round(COST["communicator_mb"] * 1e6))
    plan = Schedule(fingerprint=fingerprint(graph), decisions=copies)
    found = extra_memory(plan, graph, COST, stock=stock, planned=stock)
    shard = max(c.num_bytes // len(c.group) for _, c in keys)
    assert found == ExtraMemory(copy_buffers=2 * shard)
    early = replace(stock, peak_gathered_bytes=stock.peak_gathered_bytes + 5)
    assert extra_memory(plan, graph, COST, stock=stock, planned=early).gathered == 5


def test_a_plan_that_lost_launch_points_to_a_circle_is_improved_too():
    graph = recorded("fsdp2-nvlink-collected")
    plan = make_plan(graph, COST, PLAIN, Goal())
    notes = [note for note in plan.schedule.notes if "in a circle" in note]
    assert len(notes) == 1
    assert plan.improved is not None
    assert plan.improved.evaluations > 1
    assert plan.improved.best <= plan.improved.start
    launched = {str(d.collective) for d in plan.schedule.decisions if d.launch is not None}
    assert not any(name in notes[0] for name in launched)
    assert simulate([graph], plan.schedule, COST).time_us == plan.simulation.time_us
