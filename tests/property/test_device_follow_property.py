from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.device.follow import RegionFollower

DWELL_S = 1.0
TICK_S = 0.05

visits = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 80)), min_size=1, max_size=30)


def play(follower, plan):
    """Go through (region, ticks) visits; return changes (time, region) and visits (start, end, region)."""
    changes, spent, tick = [], [], 0
    for region, ticks in plan:
        follower.entered(region, tick * TICK_S)
        spent.append((tick * TICK_S, (tick + ticks) * TICK_S, region))
        for _ in range(ticks):
            now = tick * TICK_S
            wish = follower.due(now)
            if wish is not None:
                follower.has_applied(wish, now)
                changes.append((now, wish))
            tick += 1
    return changes, spent


@settings(deadline=None)
@given(visits)
def test_changes_keep_the_dwell_and_only_change(plan):
    changes, _ = play(RegionFollower(min_dwell_s=DWELL_S), plan)
    for (earlier, before), (later, after) in pairwise(changes):
        assert later - earlier >= DWELL_S - 1e-9
        assert before != after


@settings(deadline=None)
@given(visits)
def test_every_region_is_in_force_within_one_dwell_of_its_start(plan):
    changes, spent = play(RegionFollower(min_dwell_s=DWELL_S), plan)
    for start, end, region in spent:
        due = start + DWELL_S + TICK_S
        if end <= due:
            continue
        in_force = [wish for when, wish in changes if when <= due]
        assert in_force[-1] == region


@settings(deadline=None)
@given(visits, st.floats(0.001, 0.5))
def test_leading_never_breaks_the_dwell(plan, lead_s):
    follower = RegionFollower(min_dwell_s=DWELL_S, lead_s=lead_s)
    changes, _ = play(follower, plan * 3)
    assert all(later[0] - earlier[0] >= DWELL_S - 1e-9 for earlier, later in pairwise(changes))
    assert follower.mispredicted <= follower.predicted
