import numpy as np
import pytest

from kareus.model import rates
from kareus.model.cost import CostModel
from kareus.model.span_cost import evaluate
from kareus.model.span_work import SpanConfigs, SpanWork

COST = CostModel.assumed("NVIDIA H200", 132)


def work(m: int = 12, k: int = 2, seed: int = 0, **changes) -> SpanWork:
    rng = np.random.default_rng(seed)
    values = {
        "alone_us": rng.uniform(20, 400, m),
        "kernel_class": rng.integers(0, 3, m).astype(np.int8),
        "grid": rng.integers(100, 4000, m).astype(np.int32),
        "kind": np.arange(k, dtype=np.int8) % 2,
        "num_bytes": np.full(k, 4.56e8),
        "group": np.zeros(k, np.int64),
        "group_size": np.full(k, 2),
        "phase": np.zeros(k, np.int8),
        "stock_ctas": np.full(k, 24),
        "ready": np.zeros(k, np.int64),
        "required_at": np.full(k, m),
        "scale": np.ones(k),
        "blocks_at": np.full(k, -1, np.int64),
    }
    return SpanWork(**{**values, **changes})


def configs(ctas, position, serialise=None, clock: float | None = None) -> SpanConfigs:
    ctas, position = np.array(ctas), np.array(position)
    n = len(ctas)
    return SpanConfigs(
        num_ctas=ctas,
        position=position,
        serialise=np.zeros(n, bool) if serialise is None else np.array(serialise),
        sm_clock_mhz=np.full(n, COST["reference_clock_mhz"] if clock is None else clock),
    )


def stepwise(w: SpanWork, ctas, position, serial: bool, dt: float = 0.5) -> float:
    """An independent judge: marches in small time steps and knows no events or prefix sums."""
    coef, clock = COST.coefficients, COST["reference_clock_mhz"]
    m, k = len(w.alone_us), len(w.kind)
    flows = [rates.Flow(kind=int(w.kind[j]), num_ctas=int(ctas[j])) for j in range(k)]
    left = [
        rates.wire_bytes(w.kind[j], w.num_bytes[j], w.group_size[j])
        + rates.latency_us(coef, flows[j]) * rates.alone_bytes_per_us(coef, flows[j], clock)
        for j in range(k)
    ]
    todo, op, now = w.alone_us.copy(), 0, 0.0
    lane = [(-1 if ctas[j] == w.stock_ctas[j] else (int(w.kind[j]), int(ctas[j]))) for j in range(k)]
    running = [False] * k
    while op < m or any(x > 0 for x in left):
        for j in range(k):
            blocked = any(left[i] > 0 and lane[i] == lane[j] for i in range(j))
            running[j] = running[j] or (not blocked and op >= position[j])
        active = [j for j in range(k) if running[j] and left[j] > 0]
        waiting = op >= m or any(left[j] > 0 and op >= w.required_at[j] for j in range(k))
        waiting = waiting or (serial and any(left[j] > 0 and op >= position[j] for j in range(k)))
        chosen = tuple(flows[j] for j in active)
        if waiting:
            speeds = rates.shared_bytes_per_us(coef, chosen, clock)
        else:
            stretch, table = rates.beside(coef, chosen, w.kernel_class, w.grid, clock)
            speeds = table[:, op]
            todo[op] -= dt / stretch[op]
            if todo[op] <= 0:
                op += 1
        for j, speed in zip(active, speeds, strict=True):
            left[j] -= speed * dt
        now += dt
    return now


@pytest.mark.parametrize("seed", range(6))
def test_agrees_with_a_time_marching_judge(seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = work(m=8, seed=seed)
    ctas = rng.choice([0, 2, 8, 24], (3, 2))
    position = np.sort(rng.integers(0, 8, (3, 2)), axis=1)
    serial = [False, seed % 2 == 0, False]
    found = evaluate(w, configs(ctas, position, serial), COST)
    for row in range(3):
        expected = stepwise(w, ctas[row], position[row], serial[row]) + serial[row] * 2 * COST["serialise_us"]
        assert found.time_us[row] == pytest.approx(expected, abs=0.5 * 14)


def test_without_collectives_time_is_the_sum_of_durations() -> None:
    w = work(k=0)
    found = evaluate(w, configs(np.zeros((2, 0), int), np.zeros((2, 0), int)), COST)
    assert found.time_us == pytest.approx(w.alone_us.sum())
    assert found.exposed_us == pytest.approx(0)
    assert np.all(found.energy_j > 0)


def test_serialised_costs_the_sum_and_is_never_hidden() -> None:
    w = work(k=1)
    found = evaluate(w, configs([[24]], [[0]], [True]), COST)
    flow = rates.Flow(kind=0, num_ctas=24)
    coef = COST.coefficients
    alone = 2.28e8 / rates.alone_bytes_per_us(coef, flow, coef.reference_clock_mhz) + rates.latency_us(
        coef, flow
    )
    assert found.exposed_us[0] == pytest.approx(alone + COST["serialise_us"])
    assert found.time_us[0] == pytest.approx(w.alone_us.sum() + alone + COST["serialise_us"])


def test_a_budget_of_one_is_slow_and_a_late_launch_is_exposed() -> None:
    w = work(k=1)
    found = evaluate(w, configs([[24], [1], [24]], [[0], [0], [12]]), COST)
    assert found.time_us[1] > found.time_us[0]
    assert found.exposed_us[2] > found.exposed_us[0]


def test_required_at_stops_compute_in_the_middle() -> None:
    w = work(k=1, required_at=np.array([3]))
    late = work(k=1)
    early, barrier = (evaluate(x, configs([[1]], [[0]]), COST) for x in (w, late))
    assert early.time_us[0] > barrier.time_us[0]


def test_what_the_span_does_not_wait_for_is_carried() -> None:
    w = work(m=3, k=1, required_at=np.array([4]))
    found = evaluate(w, configs([[1]], [[2]]), COST)
    assert found.carry_us[0] > 0
    assert found.exposed_us[0] == 0


def test_two_collectives_of_one_communicator_run_in_turn() -> None:
    same = evaluate(work(m=2), configs([[24, 24]], [[0, 0]]), COST)
    split = evaluate(work(m=2, group=np.array([0, 1])), configs([[24, 24]], [[0, 0]]), COST)
    assert same.time_us[0] >= split.time_us[0] - 1e-6


def test_a_launch_order_that_would_deadlock_is_settled() -> None:
    found = evaluate(work(), configs([[24, 24]], [[10, 2]], [True]), COST)
    assert np.isfinite(found.time_us).all()


def test_a_higher_clock_is_faster_and_costs_more() -> None:
    slow = evaluate(work(), configs([[8, 8]], [[0, 0]], clock=1200.0), COST)
    fast = evaluate(work(), configs([[8, 8]], [[0, 0]], clock=1900.0), COST)
    assert fast.time_us[0] < slow.time_us[0]
    assert fast.energy_j[0] > slow.energy_j[0]


def test_hundreds_of_buckets_of_one_budget() -> None:
    k = 120
    w = work(m=40, k=k, kind=np.full(k, 2, np.int8), num_bytes=np.full(k, 2.5e7))
    position = np.sort(np.random.default_rng(1).integers(0, 40, (2, k)), axis=1)
    found = evaluate(w, configs(np.full((2, k), 24), position), COST)
    assert np.isfinite(found.time_us).all()


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="expected both"):
        evaluate(work(), configs([[24]], [[0]]), COST)
