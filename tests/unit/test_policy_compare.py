import argparse
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from kareus.cli import compare
from kareus.errors import UsageError
from kareus.plan.knobs import knobs_from
from kareus.plan.policies import shortfall
from kareus.plan.policies.ground import compare_step
from kareus.plan.policies.kareus26 import budget_for
from kareus.plan.problem import build_problem
from solver import Objective, Solution, Status

pytest.importorskip("ortools")
TRACE = Path(__file__).parents[2] / "traces/ddp-nvlink-default"
NAMES = [
    "stock", "serialised", "one clock", "zeus power limit", "perseus", "twente", "twente, free switching",
    "kareus '26", "kareus", "kareus with clocks",
]  # fmt: skip


def parse(*arguments):
    parser = argparse.ArgumentParser()
    compare.add_parser(parser.add_subparsers())
    return parser.parse_args(["compare", str(TRACE), *arguments])


@cache
def document():
    step = compare.read_step(parse())
    outcomes = compare_step(step.graph, step.cost, step.traces.manifest.capabilities, time_limit_s=3.0)
    return compare.compare_document(outcomes, step)


def rows():
    return {policy["name"]: policy for policy in document()["policies"]}


def test_every_policy_has_a_row_and_stock_comes_first():
    assert document()["schema"] == "kareus.compare/1"
    assert [p["name"] for p in document()["policies"]] == NAMES
    assert {p["source"] for p in document()["policies"]} == {"simulated"}
    json.dumps(document())


def test_no_policy_is_slower_than_stock_where_it_claims_a_saving():
    stock = rows()["stock"]
    for policy in document()["policies"]:
        if policy["saving_at_equal_time"] is not None:
            assert policy["time_us"] <= stock["time_us"]
            expected = 1 - policy["energy_j"] / stock["energy_j"]
            assert policy["saving_at_equal_time"] == pytest.approx(expected)
        if policy["name"] != "serialised":
            assert policy["energy_j"] <= stock["energy_j"]
            assert policy["equal_energy_time_us"] <= stock["time_us"]
        if policy["time_us"]:
            assert policy["average_power_w"] == pytest.approx(policy["energy_j"] / policy["time_us"] * 1e6)


def test_a_larger_space_is_never_worse_and_bounds_hold():
    found = rows()
    certified = found["kareus with clocks"]
    slack = 1.001  # what the solver may leave on the table
    for name in ("stock", "one clock", "zeus power limit", "perseus", "twente", "kareus '26", "kareus"):
        assert certified["energy_j"] <= found[name]["energy_j"] * slack
        assert certified["equal_energy_time_us"] <= found[name]["equal_energy_time_us"] * slack
        assert certified["bound_j"] <= found[name]["energy_j"]
    assert found["twente, free switching"]["energy_j"] <= found["twente"]["energy_j"] * slack
    assert found["twente"]["energy_j"] <= found["one clock"]["energy_j"] * slack
    for policy in document()["policies"]:
        if policy["bound_j"] is not None:
            assert policy["bound_j"] <= policy["energy_j"]


def test_a_plan_of_more_energy_than_stock_has_no_time_at_equal_energy():
    found = rows()
    assert found["serialised"]["energy_j"] > found["stock"]["energy_j"]
    assert found["serialised"]["equal_energy_time_us"] is None
    assert found["serialised"]["time_change_at_equal_energy"] is None


def test_the_budgeted_search_says_what_it_was_allowed_and_what_it_spent():
    said = re.match(
        r"search budget (\d+) of (\d+) settings \((\d+) %\) over (\d+) kinds of span, (\d+) evaluated",
        rows()["kareus '26"]["note"],
    )
    allowed, settings, share, kinds, evaluated = map(int, said.groups())
    step = compare.read_step(parse())
    tables = build_problem(step.graph, step.cost, knobs_from({}, clocks="advise")).tables
    assert settings == sum(len(table.kind.options) for table in tables)
    assert kinds == len(tables)
    assert allowed == sum(
        min(b.initial + b.rounds * b.batch, len(t.kind.options))
        for t in tables
        for b in [budget_for(len(t.kind.options))]
    )
    assert 0 < evaluated <= allowed <= settings
    assert share == round(100 * allowed / settings)


def test_what_the_machine_may_not_do_is_marked_and_still_simulated():
    found = rows()
    for name in ("one clock", "zeus power limit", "perseus", "twente", "kareus '26", "kareus with clocks"):
        assert not found[name]["runnable"]
        assert found[name]["missing"]
        assert found[name]["energy_j"] is not None
    assert found["stock"]["runnable"]
    assert found["kareus"]["runnable"]
    assert found["kareus"]["needs"] == []


def test_command_prints_a_table_and_a_document(capsys, monkeypatch):
    monkeypatch.setattr(compare, "compare_step", lambda *args, **kwargs: outcomes())
    assert compare.run(parse()) == 0
    printed = capsys.readouterr()
    head = [line.split() for line in printed.out.splitlines()[1:4]]
    assert head[0] == ["saved", "at", "time", "at"]
    assert head[2] == ["time", "energy", "time", "energy", "power", "bound"]
    table = printed.out.split("\n\n")[0].splitlines()
    assert max(map(len, table)) <= 80
    assert "kareus with clocks" in printed.out
    assert "one clock: needs clock permission (not here)" in printed.out
    for policy in document()["policies"]:
        assert policy["note"] in printed.out
        assert f"\n{policy['name']}: needs " in printed.out
    assert "search budget" in printed.out
    assert "(measured)" in printed.err
    assert compare.run(parse("--json")) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "kareus.compare/1"


def outcomes():
    """The rows already computed, back from the document."""
    from kareus.plan.policies.ground import Outcome

    return tuple(
        Outcome(
            **{
                k: p[k]
                for k in (
                    "name",
                    "time_us",
                    "energy_j",
                    "equal_energy_time_us",
                    "bound_j",
                    "missing",
                    "note",
                    "lacks",
                )
            },
            needs=tuple(p["needs"]),
        )
        for p in document()["policies"]
    )


def test_rows_for_the_report_carry_the_same_figures():
    for row, policy in zip(compare.policy_rows(outcomes()), document()["policies"], strict=True):
        assert (row.name, row.effect.time_us, row.effect.energy_j) == (
            policy["name"], policy["time_us"], policy["energy_j"],
        )  # fmt: skip
        assert row.effect.source == "predicted"
        assert row.runnable == policy["runnable"]
        assert row.note == "; ".join(filter(None, (policy["lacks"], policy["note"])))


def test_a_missing_figure_is_explained_in_table_and_report(capsys, monkeypatch):
    stock, serialised = (next(o for o in outcomes() if o.name == n) for n in ("stock", "serialised"))
    assert serialised.lacks.startswith(f"no plan within {stock.time_us / 1e3:.2f} ms, its fastest takes ")
    assert f"its least needs {serialised.energy_j:.2f} J, stock {stock.energy_j:.2f} J" in serialised.lacks
    none = replace(
        stock,
        name="zeus",
        time_us=None,
        energy_j=None,
        equal_energy_time_us=None,
        lacks="no clock keeps within",
    )
    monkeypatch.setattr(compare, "compare_step", lambda *args, **kwargs: (stock, serialised, none))
    assert compare.run(parse()) == 0
    printed = capsys.readouterr().out.splitlines()
    assert next(line for line in printed if line.startswith("zeus")).split() == ["zeus", *"------"]
    assert "zeus: needs nothing; no clock keeps within" in printed
    assert f"serialised: needs nothing; {serialised.lacks}; {serialised.note}" in printed
    row = compare.policy_rows((stock, none))[1]
    assert (row.effect, row.note) == (None, "no clock keeps within")


def test_unsolved_limits_are_told_apart_from_proven_ones():
    found = Solution(status=Status.OPTIMAL, objective=Objective.ENERGY, choices=(0,))
    unknown = Solution(status=Status.UNKNOWN, objective=Objective.ENERGY)
    proven = Solution(status=Status.INFEASIBLE, objective=Objective.TIME)
    assert shortfall.of_solves(found, found, 1000, 5.0) == ""
    assert shortfall.of_solves(unknown, proven, 1500, 5.0) == (
        "no plan within 1.50 ms, none found in 5 s, which proves nothing; allow more with --time-limit; "
        "no plan without more energy than stock, proven"
    )


def test_a_rule_whose_plans_are_all_too_slow_names_its_fastest():
    assert shortfall.of_points([(900, 60), (1000, 50)], 1000, 60) == ""
    assert shortfall.of_points([(1200, 70), (1300, 65)], 1000, 60) == (
        "no plan within 1.00 ms, its fastest takes 1.20 ms; "
        "no plan without more energy than stock, its least needs 0.07 J, stock 0.06 J"
    )


def test_slower_plans_save_more_and_say_how_much_slower_was_allowed(capsys, monkeypatch):
    step = compare.read_step(parse())
    slower = compare_step(
        step.graph, step.cost, step.traces.manifest.capabilities, max_slowdown=0.1, time_limit_s=3.0
    )
    stock = rows()["stock"]
    for outcome in slower:
        if outcome.name != "serialised":
            assert outcome.time_us <= 1.1 * stock["time_us"]
            assert outcome.energy_j <= rows()[outcome.name]["energy_j"] * 1.001
    found = {o.name: o for o in slower}
    assert found["one clock"].energy_j < 0.97 * stock["energy_j"]
    assert found["kareus with clocks"].energy_j <= found["twente"].energy_j * 1.001
    monkeypatch.setattr(compare, "compare_step", lambda *args, **kwargs: slower)
    assert compare.run(parse("--max-slowdown", "10%")) == 0
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()[1:3]] == ["saved", "within"]
    assert "+10.0 %" in printed.splitlines()[3]
    # Serialised is slower than allowed, so what it saves is nobody's.
    line = next(line for line in printed.splitlines() if line.startswith("serialised"))
    assert f"{slower[1].time_us / 1e3:.2f} ms" in line
    assert slower[1].time_us > 1.1 * stock["time_us"]
    assert line.split("J")[1].split()[0] == "-"
    assert compare.run(parse("--max-slowdown", "10%", "--json")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["max_slowdown"] == 0.1
    for policy in printed["policies"]:
        if policy["time_us"] > stock["time_us"]:
            assert policy["saving_at_equal_time"] is None
            assert policy["saving"] is not None


def test_a_senseless_time_limit_is_refused():
    with pytest.raises(UsageError, match="positive number of seconds"):
        compare.run(parse("--time-limit", "-1"))
