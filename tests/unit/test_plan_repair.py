"""Launch points that wait for each other in a circle are dropped, and no others."""

import pytest

from kareus.errors import InputError
from kareus.plan import repair
from kareus.schedule import CollectiveKey, Decision, Fingerprint, LaunchPoint, Schedule

POINT = LaunchPoint(module="blocks.0.mlp", phase="forward", side="before")


def decision(unit, *, num_ctas=8, launch=POINT):
    key = CollectiveKey(kind="all_gather", unit=unit, phase="forward")
    return Decision(collective=key, num_ctas=num_ctas, launch=launch)


def schedule(*decisions):
    return Schedule(fingerprint=Fingerprint(wrapper="fsdp2", world_size=2, units=()), decisions=decisions)


@pytest.fixture
def circle_of_a_and_c(monkeypatch):
    """A step in which a's and c's launch points cannot both be kept; the simulation is what was launched."""

    def simulate(graphs, plan, cost):
        launched = {d.collective.unit for d in plan.decisions if d.launch is not None}
        if {"a", "c"} <= launched:
            raise InputError("a circle")
        return launched

    monkeypatch.setattr(repair, "simulate", simulate)


def test_only_the_point_that_closes_the_circle_goes(circle_of_a_and_c):
    plan = schedule(decision("a"), decision("b"), decision("c"), decision("d", launch=None))
    found, simulation, dropped = repair.without_circles(None, plan, None)
    assert simulation == {"a", "b"}
    assert {d.collective.unit: d.launch for d in found.decisions} == {
        "a": POINT,
        "b": POINT,
        "c": None,
        "d": None,
    }
    assert [d.num_ctas for d in found.decisions] == [8] * 4
    assert dropped == (decision("c").collective,)


def test_a_decision_that_was_a_launch_point_alone_is_left_out(circle_of_a_and_c):
    plan = schedule(decision("a"), decision("c", num_ctas=None))
    found, _, _ = repair.without_circles(None, plan, None)
    assert [d.collective.unit for d in found.decisions] == ["a"]


def test_a_plan_that_cannot_be_played_at_all_says_so(monkeypatch):
    def simulate(graphs, plan, cost):
        raise InputError("a circle")

    monkeypatch.setattr(repair, "simulate", simulate)
    with pytest.raises(InputError, match="circle"):
        repair.without_circles(None, schedule(decision("a")), None)
