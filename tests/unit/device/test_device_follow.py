from itertools import pairwise

from kareus.device.follow import RegionFollower
from kareus.device.readback import ReadBack, Verdict


def test_first_region_is_applied_at_once_and_only_on_change():
    follower = RegionFollower(min_dwell_s=1.0)
    assert follower.due(0.0) is None
    follower.entered(0, 0.0)
    assert follower.due(0.0) == 0
    follower.has_applied(0, 0.0)
    assert follower.due(5.0) is None
    assert follower.next_due_s(5.0) is None


def test_dwell_defers_and_the_latest_wish_wins():
    follower = RegionFollower(min_dwell_s=1.0)
    follower.entered(0, 0.0)
    follower.has_applied(0, 0.0)
    follower.entered(1, 0.2)
    assert follower.due(0.2) is None
    assert follower.next_due_s(0.2) == 1.0
    follower.entered(2, 0.4)
    assert follower.due(0.99) is None
    assert follower.due(1.0) == 2
    assert (follower.deferred, follower.overtaken) == (2, 1)


def test_a_region_left_within_the_dwell_costs_no_change():
    follower = RegionFollower(min_dwell_s=1.0)
    follower.entered(0, 0.0)
    follower.has_applied(0, 0.0)
    follower.entered(1, 0.2)
    assert follower.due(0.2) is None
    follower.entered(0, 0.4)
    assert follower.due(1.5) is None
    assert follower.overtaken == 1


def test_changes_are_never_closer_than_the_dwell():
    follower = RegionFollower(min_dwell_s=1.0)
    changes = []
    for tick in range(2000):  # regions of 70 ms for 20 s, looked at every 10 ms
        now = tick * 0.01
        if tick % 7 == 0:
            follower.entered(tick // 7 % 3, now)
        region = follower.due(now)
        if region is not None:
            follower.has_applied(region, now)
            changes.append(now)
    assert len(changes) >= 15
    assert all(later - earlier >= 1.0 - 1e-9 for earlier, later in pairwise(changes))


def cycle(follower, until_s, step_s=0.001, first_s=2.0, second_s=3.0):
    """Two regions that alternate; returns when each change was made against when its region began."""
    lateness, begin, region, now = [], 0.0, 0, 0.0
    follower.entered(0, 0.0)
    while now < until_s:
        if now >= begin + (first_s if region == 0 else second_s):
            begin += first_s if region == 0 else second_s
            region = 1 - region
            follower.entered(region, now)
        wish = follower.due(now)
        if wish is not None:
            follower.has_applied(wish, now)
            start = begin if wish == region else begin + (first_s if region == 0 else second_s)
            lateness.append(now - start)
        now += step_s
    return lateness


def test_steady_regions_are_led_by_the_switching_time():
    follower = RegionFollower(min_dwell_s=1.0, lead_s=0.05)
    lateness = cycle(follower, 60.0)
    assert follower.predicted > 10
    assert follower.mispredicted == 0
    assert all(-0.052 <= late <= -0.04 for late in lateness[-8:])


def test_without_a_measured_switching_time_nothing_is_led():
    follower = RegionFollower(min_dwell_s=1.0)
    assert all(0 <= late <= 0.002 for late in cycle(follower, 40.0))
    assert follower.predicted == 0


def test_a_prediction_that_fails_is_counted_and_corrected():
    follower = RegionFollower(min_dwell_s=1.0, lead_s=0.05)
    cycle(follower, 41.0)
    assert follower.current is not None
    other = 2
    follower.has_applied(1 - follower.current, 50.0)
    follower.entered(other, 52.0)
    assert follower.mispredicted == 1
    assert follower.due(52.0) == other


def test_read_back_verdicts():
    back = ReadBack(target_mhz=1410, before_mhz=1980, set_s=0.0)
    assert back.judge(0.1, 1980, 0) is None
    assert back.judge(0.1, 1410, 0) is Verdict.REACHED
    assert back.judge(0.1, 1410, 1) is None  # idle: a clock says nothing about the lock
    assert back.judge(5.0, 345, 1) is None
    assert back.judge(1.1, 1300, 4) is Verdict.CAPPED
    assert back.judge(1.1, 1300, 0) is Verdict.NOT_TAKEN
    assert back.judge(1.1, 1980, 4) is Verdict.NOT_TAKEN
    assert back.judge(1.1, None, None) is Verdict.UNJUDGED
    assert back.switch_time_s(0.1) == 0.1
    assert ReadBack(target_mhz=1410, before_mhz=1410, set_s=0.0).switch_time_s(0.1) is None
