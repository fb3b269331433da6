import numpy as np
import pytest

from kareus.errors import InfeasibleError, InputError, UsageError
from kareus.plan.policies.perseus import plan_pipeline
from kareus.plan.policies.pipeline import (
    Operation,
    StageOption,
    data_parallel,
    interleaved,
    one_f_one_b,
    read_stage_profile,
)


def options(scale, clocks=(1400, 1200, 1000, 800)):
    """A convex toy stage: time goes with 1/clock, power with a constant plus the cube of the clock."""
    times = [scale * 1400 / c for c in clocks]
    return tuple(
        StageOption(sm_clock_mhz=c, time_s=t, energy_j=t * (90 + 300 * (c / 1400) ** 3))
        for c, t in zip(clocks, times, strict=True)
    )


def profile(stages, slow=None):
    return {
        (s, kind): options(base * (1.3 if s == slow else 1.0))
        for s in range(stages)
        for kind, base in (("forward", 0.05), ("backward", 0.1))
    }


def order(pipeline, stage):
    return [
        f"{op.kind[0]}{op.micro_batch}{'ab'[op.chunk]}" for op in pipeline.operations if op.stage == stage
    ]


def test_1f1b_orders_are_those_of_the_schedule():
    pipeline = one_f_one_b(3, 4)
    assert order(pipeline, 0) == ["f0a", "f1a", "f2a", "b0a", "f3a", "b1a", "b2a", "b3a"]
    assert order(pipeline, 1) == ["f0a", "f1a", "b0a", "f2a", "b1a", "f3a", "b2a", "b3a"]
    assert order(pipeline, 2) == ["f0a", "b0a", "f1a", "b1a", "f2a", "b2a", "f3a", "b3a"]
    assert len(pipeline.operations) == 2 * 3 * 4


def test_fewer_micro_batches_than_stages_still_works():
    assert order(one_f_one_b(4, 1), 0) == ["f0a", "b0a"]


def test_interleaved_follows_micro_batches_through_the_chunks_in_groups():
    pipeline = interleaved(2, 4, 2)
    # Rank 0 warms up with (2 - 0 - 1) * 2 + (2 - 1) * 2 = 4 forwards: two micro-batches through both chunks.
    assert order(pipeline, 0)[:6] == ["f0a", "f1a", "f0b", "f1b", "f2a", "b0b"]
    assert order(pipeline, 1)[:4] == ["f0a", "f1a", "f0b", "b0b"]
    index = {op: i for i, op in enumerate(pipeline.operations)}
    hop = (
        index[Operation(stage=1, kind="forward", micro_batch=0, chunk=0)],
        index[Operation(stage=0, kind="forward", micro_batch=0, chunk=1)],
    )
    assert hop in pipeline.edges


@pytest.mark.parametrize(
    ("stages", "batches", "chunks"), [(2, 2, 1), (3, 6, 1), (4, 8, 2), (2, 4, 3), (1, 3, 1)]
)
def test_schedules_have_no_cycle_and_the_known_length(stages, batches, chunks):
    pipeline = interleaved(stages, batches, chunks)
    assert len(pipeline.operations) == 2 * stages * batches * chunks
    flat = {
        (s, kind): (StageOption(sm_clock_mhz=1000, time_s=1.0, energy_j=100.0),)
        for s in range(stages)
        for kind in ("forward", "backward")
    }
    frontier = plan_pipeline(pipeline, flat, blocking_power_w=0.0, search_work=0)
    # Bubble of (stages - 1) forwards and backwards of one chunk each.
    assert frontier.time_s[0] == pytest.approx(2 * batches * chunks + 2 * (stages - 1))


def test_interleaving_needs_whole_groups():
    with pytest.raises(UsageError, match="multiples of the 4 stages"):
        interleaved(4, 6, 2)
    with pytest.raises(UsageError, match="at least one"):
        one_f_one_b(0, 3)


def test_bubbles_are_slowed_without_making_the_step_longer():
    pipeline = one_f_one_b(4, 6)
    frontier = plan_pipeline(pipeline, profile(4, slow=2), blocking_power_w=80.0, points=300, search_work=0)
    fastest = frontier.for_deadline(frontier.max_clock_time_s + 1e-6 * len(pipeline.operations))
    assert fastest.energy_j < 0.9 * frontier.max_clock_energy_j
    clocks = dict(zip(pipeline.operations, fastest.sm_clock_mhz, strict=True))
    slow = [clocks[op] for op in pipeline.operations if op.stage == 2]
    assert slow.count(1400) >= len(slow) - 2  # only the ends of the slowest stage may have slack
    assert min(fastest.sm_clock_mhz) == 800


def test_energy_counts_what_waiting_devices_draw():
    pipeline = one_f_one_b(2, 2)
    frontier = plan_pipeline(pipeline, profile(2), blocking_power_w=80.0, search_work=0)
    plan = frontier.plan(0)
    table = {(s, k): {o.sm_clock_mhz: o for o in opts} for (s, k), opts in profile(2).items()}
    used = [table[op.stage, op.kind][c] for op, c in zip(pipeline.operations, plan.sm_clock_mhz, strict=True)]
    waiting_s = 2 * plan.time_s - sum(o.time_s for o in used)
    assert plan.energy_j == pytest.approx(sum(o.energy_j for o in used) + 80.0 * waiting_s, rel=1e-5)


def test_straggler_lookup_takes_the_slack_up_to_the_energy_minimum():
    frontier = plan_pipeline(one_f_one_b(3, 4), profile(3), blocking_power_w=80.0, points=300, search_work=0)
    base = frontier.time_s[0]
    best = frontier.plan(frontier.least_energy_index)
    assert frontier.for_straggler(0.5 * base) == frontier.plan(0)
    near = frontier.for_straggler(1.05 * base)
    assert base < near.time_s <= 1.05 * base
    assert frontier.for_straggler(100 * base) == best
    # The others wait for the straggler either way, so the whole cluster's energy falls.
    end = 1.05 * base
    assert frontier.energy_until_j(near, end) < frontier.energy_until_j(frontier.plan(0), end)


def test_data_parallel_ranks_have_slack_only_beside_a_straggler():
    ranks = {(r, "forward"): options(0.2 if r else 0.25) for r in range(4)}
    frontier = plan_pipeline(data_parallel(4), ranks, blocking_power_w=80.0, search_work=0)
    first = frontier.plan(0)
    assert first.sm_clock_mhz[0] == 1400
    assert set(first.sm_clock_mhz[1:]) == {1200}  # 0.2 * 1400/1200 = 0.233 <= 0.25
    even = plan_pipeline(
        data_parallel(4), {k: options(0.2) for k in ranks}, blocking_power_w=80.0, search_work=0
    )
    assert set(even.plan(0).sm_clock_mhz) == {1400}


def test_deadline_before_the_fastest_plan_names_the_least_possible():
    frontier = plan_pipeline(one_f_one_b(2, 2), profile(2), blocking_power_w=80.0, search_work=0)
    with pytest.raises(InfeasibleError, match=f"fastest takes {frontier.time_s[0]:.6g} s"):
        frontier.for_deadline(frontier.time_s[0] * 0.9)


def test_bound_is_below_and_gap_is_what_separates_them():
    frontier = plan_pipeline(
        one_f_one_b(3, 4), profile(3), blocking_power_w=80.0, points=200, search_work=1e5
    )
    bound = frontier.bound_j(frontier.time_s)
    assert (bound <= frontier.energy_j * (1 + 1e-9)).all()
    assert ((frontier.energy_j - bound) / frontier.energy_j <= frontier.gap + 1e-9).all()
    assert np.isinf(frontier.bound_j(frontier.time_s[0] * 0.99)[0])


def test_missing_options_and_senseless_numbers_are_refused():
    with pytest.raises(InputError, match="no options for"):
        plan_pipeline(one_f_one_b(3, 2), profile(2), blocking_power_w=80.0, search_work=0)
    with pytest.raises(UsageError, match="blocking power"):
        plan_pipeline(one_f_one_b(2, 2), profile(2), blocking_power_w=float("nan"))
    with pytest.raises(UsageError, match="time unit"):
        plan_pipeline(one_f_one_b(2, 2), profile(2), blocking_power_w=80.0, time_unit_s=0.0)


def test_stage_profile_reader_names_the_bad_row(tmp_path):
    good = tmp_path / "good.csv"
    good.write_text(
        "stage,instruction,frequency,time,energy\n0,forward,1410,0.05,23.8\n0,backward,1410,0.1,44\n"
    )
    assert read_stage_profile(good)[0, "forward"] == (
        StageOption(sm_clock_mhz=1410, time_s=0.05, energy_j=23.8),
    )
    for bad, word in [
        ("0,sideways,1410,0.05,23.8", "forward or backward"),
        ("0,forward,1410,x,23.8", "expected numbers"),
        ("0,forward,1410,-1,23.8", "positive frequency and time"),
    ]:
        path = tmp_path / "bad.csv"
        path.write_text(f"stage,instruction,frequency,time,energy\n{bad}\n")
        with pytest.raises(InputError, match=f"row 1.*{word}"):
            read_stage_profile(path)
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    with pytest.raises(InputError, match="no rows"):
        read_stage_profile(empty)
    with pytest.raises(InputError, match="cannot read"):
        read_stage_profile(tmp_path / "absent.csv")
