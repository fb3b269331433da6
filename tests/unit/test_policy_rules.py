"""Rules as users write them."""

import pytest

from kareus.errors import InfeasibleError, UsageError
from kareus.plan.policies.choose import Point
from kareus.plan.policies.rules import parse_rule

A = Point(label="a", time_s=10.0, energy_j=1000.0)
B = Point(label="b", time_s=10.4, energy_j=900.0)
C = Point(label="c", time_s=12.0, energy_j=800.0)
POINTS = (C, A, B)


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("fastest", A),
        ("least-energy", C),
        ("slowdown=4%", B),
        ("slowdown=3", A),
        ("deadline=11s", B),
        ("deadline=12000ms", C),
        ("energy=0.9kJ", B),
        ("power=90W", B),
        ("edp", B),
        ("ed2p", B),
        ("carbon=400", C),
        ("carbon=400,1000000", A),
        ("money=0.3,0", C),
        (" money=0.3,5 ", A),
    ],
)
def test_rules_choose_what_they_say(text: str, chosen: Point) -> None:
    rule = parse_rule(text)
    assert rule(POINTS) == chosen
    assert rule.text == text.strip()


def test_slowdown_is_against_the_reference_where_there_is_one() -> None:
    assert parse_rule("slowdown=0%")(POINTS, 10.5) == B
    with pytest.raises(InfeasibleError, match="fastest takes 10 s"):
        parse_rule("slowdown=0%")(POINTS, 9.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected one of least-energy"),
        ("cheap", "expected one of least-energy"),
        ("edp=2", "expected 0 figures, found 1"),
        ("money=0.3", "expected 2 figures, found 1"),
        ("carbon=1,2,3", "expected 1 or 2 figures, found 3"),
        ("power=-5W", "a number of at least 0"),
        ("deadline=soon", "found 'soon'"),
        ("energy=nan", "a number of at least 0"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_rule(text)


def test_an_empty_frontier_is_refused() -> None:
    for text in ("least-energy", "fastest", "edp", "deadline=1s"):
        with pytest.raises(UsageError, match="at least one point"):
            parse_rule(text)([])
