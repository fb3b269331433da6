"""Launch points of a recorded job are hooks that fire where the point is, once in a span."""

from pathlib import Path

import numpy as np
import pytest

from kareus.trace.graph import graphs
from kareus.trace.ranks import TraceSet
from kareus.trace.spans import find_spans
from kareus.trace.types import Phase

RECORDED = Path(__file__).parents[2] / "traces/fsdp2-nvlink-collected"


@pytest.fixture(scope="module")
def step():
    return graphs(TraceSet.open(RECORDED).load(0))[-1]


def inside(name, module):
    return name == module or name.startswith(module + ".")


def test_every_point_is_where_its_hook_fires(step):
    names = [step.modules[m] if m >= 0 else "" for m in step.ops.module]
    sides = []
    for span in find_spans(step):
        rows = span.compute
        for member in span.collectives:
            for position, text in zip(member.positions, member.points, strict=True):
                if not text or position == 0:
                    continue
                side, module, phase = text.split("|")
                there = step.ops.phase == Phase[phase.upper()]
                own = np.flatnonzero([there[row] and inside(names[row], module) for row in rows])
                assert position == (own[0] if side == "before" else own[-1] + 1), (span.name, text)
                sides.append(side)
    assert {"before", "after"} == set(sides)


def test_no_point_is_offered_twice_to_one_collective(step):
    for span in find_spans(step):
        for member in span.collectives:
            named = [text for text in member.points if text]
            assert len(named) == len(set(named))
