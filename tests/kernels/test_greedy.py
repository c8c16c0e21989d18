"""`kernels.greedy`: compiled and interpreted results are bit-identical and correct."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel_modes import Kernels
from tests.kernels import mode_parity

greedy_interpreted = Kernels("greedy", "interpreted")


greedy_compiled = Kernels("greedy", "compiled")

Columns = dict[str, Any]

costs = st.sampled_from([1, 1, 1, 2, 3, 5, 250, 1000])
values = st.integers(-8, 48).map(lambda n: n / 16) | st.floats(-2, 4, allow_nan=False)


def ints(numbers: list[int]) -> Any:
    return np.array(numbers, np.int64)


def equal_in_both_modes(name: str, columns: Columns) -> Any:
    """The result of both modes; asserts that they are equal and leave their arguments unchanged."""
    arguments = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in columns.items()}
    result = getattr(greedy_interpreted, name)(**arguments)
    compiled = getattr(greedy_compiled, name)(**arguments)
    assert result.dtype == compiled.dtype
    assert result.tolist() == compiled.tolist()
    for key, value in columns.items():
        assert np.array_equal(
            arguments[key], value, equal_nan=isinstance(value, np.ndarray) and value.dtype.kind == "f"
        )
    return result


@st.composite
def ladders(draw: st.DrawFn, spare: int) -> Columns:
    """Arguments of a greedy loop; each table has *spare* more entries than grants."""
    count = draw(st.integers(0, 7))
    lengths = [draw(st.integers(0, 6)) + spare for _ in range(count)]
    waits = np.array([draw(st.booleans()) for _ in range(count)], bool)
    cost = [draw(costs) for _ in range(count)]
    need = [draw(st.integers(1, 4)) for _ in range(count)]
    return {
        "first": ints([c * n if w else c for c, n, w in zip(cost, need, waits, strict=True)]),
        "cost": ints(cost),
        "waits": waits,
        "start": ints([0, *np.cumsum(lengths)]),
        "free": draw(st.integers(0, 30) | st.integers(0, 3000)),
        "more": np.array([draw(st.integers(0, 4)) == 0 for _ in range(count)], bool),
    }


@given(ladders(0), st.data())
def test_grow_by_gain(columns: Columns, data: st.DataObject) -> None:
    columns["gain"] = np.array([data.draw(values) for _ in range(columns["start"][-1])], np.float64)
    grants = equal_in_both_modes("grow_by_gain", columns)
    assert grants.tolist() == grown_by_gain(**columns)


def grown_by_gain(first: Any, cost: Any, waits: Any, gain: Any, start: Any, free: int, more: Any) -> list[int]:
    """The rule, implemented naively."""
    grants = [0] * len(first)
    while free > 0:
        fitting = []
        for j in range(len(first)):
            price = first[j] if grants[j] == 0 else cost[j]
            at = start[j] + grants[j]
            if at < start[j + 1] and gain[at] > 0 and price <= free:
                fitting.append((-gain[at], not (waits[j] and grants[j] == 0), j, price))
        if not fitting:
            break
        _, _, j, price = min(fitting)
        grants[j] += 1
        free -= price
        if more[j] and start[j] + grants[j] == start[j + 1]:
            break
    return grants


@st.composite
def tables(draw: st.DrawFn) -> Columns:
    lengths = draw(st.lists(st.integers(1, 4), max_size=4))
    exact = st.integers(-8, 48).map(lambda n: n / 16)
    return {
        "value": np.array([draw(exact) for _ in range(sum(lengths))], np.float64),
        "start": ints([0, *np.cumsum(lengths)]),
        "cost": ints([draw(st.integers(1, 3)) for _ in lengths]),
        "slack": draw(st.integers(0, 8)),
    }


@given(tables())
def test_best_sum_is_the_best_and_leaves_the_least_to_the_last(columns: Columns) -> None:
    steps = equal_in_both_modes("best_sum", columns)
    value, start, cost = columns["value"], columns["start"], columns["cost"]
    ranges = [range(int(b - a)) for a, b in pairwise(start)]
    options = [
        (-sum(value[start[j] + s] for j, s in enumerate(choice)), choice[::-1])
        for choice in product(*ranges)
        if sum(s * c for s, c in zip(choice, cost, strict=True)) <= columns["slack"]
    ]
    assert tuple(steps.tolist()) == min(options)[1][::-1]


@given(tables(), st.data())
def test_best_sum_is_equal_in_both_modes_for_any_floats(columns: Columns, data: st.DataObject) -> None:
    size = len(columns["value"])
    columns["value"] = np.array(data.draw(st.lists(st.floats(-3, 3), min_size=size, max_size=size)), np.float64)
    equal_in_both_modes("best_sum", columns)


@given(ladders(1), st.data())
def test_pick_winners(columns: Columns, data: st.DataObject) -> None:
    count = len(columns["first"])
    lengths = st.sampled_from([0.0, 10.0, 20.0, 20.0, 160.0, np.inf]) | st.floats(0, 100)
    columns["length"] = np.array([data.draw(lengths) for _ in range(count)], np.float64)
    columns["weight"] = columns["cost"] / 1000
    speed = [data.draw(values) for _ in range(columns["start"][-1])]
    columns["speed"] = np.maximum(np.array(speed, np.float64), 0.0)
    columns["speed"][columns["start"][:-1][columns["waits"]]] = 0.0
    equal_in_both_modes("pick_winners", columns)


@given(st.integers(1, 250), st.integers(0, 300), st.integers(0, 2**32 - 1))
def test_pick_winners_of_many(jobs: int, free: int, seed: int) -> None:
    """More jobs than hypothesis draws one by one."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, 6, jobs)
    start = np.concatenate([[0], lengths.cumsum()])
    speed = rng.integers(1, 32, start[-1]) / 8
    speed[start[:-1]] = 0.0
    cost = np.ones(jobs, np.int64)
    columns: Columns = {
        "first": rng.integers(1, 4, jobs),
        "cost": cost,
        "waits": np.ones(jobs, bool),
        "length": np.sort(rng.integers(1, 500, jobs) * 10.0)[:: -1 if seed % 2 else 1].copy(),
        "weight": np.ones(jobs),
        "speed": speed,
        "start": start,
        "free": free,
        "more": np.zeros(jobs, bool),
    }
    equal_in_both_modes("pick_winners", columns)


def _fastest_one_by_one(rate: Any, scale: Any, capacity: Any, order: list[int]) -> tuple[list[int], int]:
    free, kinds = list(capacity), [kind for kind in order if capacity[kind] > 0]
    chosen = [-1] * len(scale)
    for row in range(len(scale)):
        if not kinds:
            return chosen, row
        fitting = [kind for kind in kinds if free[kind] >= scale[row] - 1e-9]
        if not fitting:
            return chosen, row + 1
        best = max(fitting, key=lambda kind: rate[row][kind])
        if rate[row][best] > 0:
            chosen[row] = best
            free[best] -= scale[row]
            if free[best] < 1e-9:
                kinds.remove(best)
    return chosen, len(scale)


@given(
    jobs=st.lists(
        st.tuples(
            st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0]),
            st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=3, max_size=3),
        ),
        max_size=12,
    ),
    capacity=st.lists(st.sampled_from([0.0, 1.0, 2.5, 6.0]), min_size=3, max_size=3),
    order=st.permutations([0, 1, 2]),
)
def test_each_job_takes_the_fastest_type_with_room(jobs: list[Any], capacity: list[float], order: list[int]) -> None:
    scale, rate = np.array([job[0] for job in jobs], np.float64), np.array([job[1] for job in jobs]).reshape(-1, 3)
    modules: Any = (Kernels("greedy", "interpreted"), Kernels("greedy", "compiled"))
    share, kinds, rest = mode_parity.equal_in_both_modes(
        modules, "fastest_free", rate, scale, np.array(capacity), np.array(order)
    )
    assert (kinds.tolist(), rest) == _fastest_one_by_one(rate.tolist(), scale.tolist(), capacity, order)
    assert (share == (kinds[:, None] == np.arange(3))).all()
