"""`kernels.efficient`: shares are feasible, and prices prove that they are optimal."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.solve.highs import Lp, LpModel
from tests.kernel_modes import Kernels

efficient_compiled = Kernels("efficient", "compiled")
price_shares_compiled = Kernels("price_shares", "compiled")

pytest.importorskip("numba")

Floats = np.ndarray[Any, np.dtype[np.float64]]
PROVED = 1e-9


class Case(NamedTuple):
    """Arguments of `most_speed`."""

    speed: Floats
    worth: Floats
    gpus: Floats
    owed: Floats
    capacity: Floats


@st.composite
def cases(draw: st.DrawFn, *, extreme: bool) -> Case:
    """Rows with ties, zeros and, if *extreme*, sizes and weights that differ by factors of millions."""
    rows, types = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    dice = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    speed = {
        "few": lambda: dice.choice([0.0, 0.2, 0.5, 1.0], (rows, types)),
        "any": lambda: dice.uniform(0.05, 1.0, (rows, types)),
        "can or cannot": lambda: dice.choice([0.0, 1.0], (rows, types)),
        "far apart": lambda: 10.0 ** dice.uniform(-4 if extreme else -1, 0, (rows, types)),
    }[draw(st.sampled_from(["few", "any", "can or cannot", "far apart"]))]()
    speed[np.arange(rows), dice.integers(0, types, rows)] = 1.0
    wide = 6.0 if extreme else 0.0
    gpus = dice.choice([1.0, 2.0, 4.0, 12.0], rows) * 10.0 ** (dice.uniform(-wide, wide, rows))
    worth = gpus * dice.choice([0.8, 1.0, 1.0, 5.0], rows) * 10.0 ** (dice.uniform(-wide, wide, rows))
    # From too few GPUs to more than enough.
    capacity = dice.integers(1, 9, types) * gpus.sum() * draw(st.sampled_from([0.02, 0.1, 0.5]))
    # The minimum speeds are a fraction of what some feasible shares reach.
    share = dice.random((rows, types)) * (speed > 0) * (dice.random((rows, types)) < 0.7)
    share /= np.maximum(share.sum(axis=1), 1.0)[:, None]
    share /= max((gpus @ share / capacity).max(), 1.0)
    owed = (speed * share).sum(axis=1) * draw(st.sampled_from([0.0, 0.5, 1 - 1e-9]))
    return Case(speed, worth, gpus, owed, capacity)


def most(case: Case, prices: Floats) -> float:
    """Upper bound: the cost of all GPUs plus the largest profit of each row."""
    bound = float(case.capacity @ prices)
    types = range(len(prices))
    for speed, worth, gpus, owed in zip(case.speed, case.worth, case.gpus, case.owed, strict=True):
        gain = worth * speed - gpus * prices
        # A corner is where two of these bind: a type alone or with idle time, or two types, with all time or what is
        # owed.
        corners = [0.0] if owed <= 0 else []
        for k in types:
            if speed[k] >= owed:
                corners.append(gain[k])
                if owed > 0:
                    corners.append(gain[k] * owed / speed[k])
        for j, k in product(types, types):
            if speed[j] < owed < speed[k]:
                part = (owed - speed[j]) / (speed[k] - speed[j])
                corners.append(part * gain[k] + (1 - part) * gain[j])
        bound += max(corners)
    return bound


def checked(case: Case, share: Floats) -> float:
    """The value of these shares; asserts that they are feasible."""
    assert (share >= 0).all()
    assert (share.sum(axis=1) <= 1 + PROVED).all()
    assert (case.gpus @ share <= case.capacity * (1 + PROVED)).all()
    reached = (case.speed * share).sum(axis=1)
    assert (reached >= case.owed * (1 - PROVED)).all()
    return float(case.worth @ reached)


@given(cases(extreme=True))
def test_solutions_are_feasible_and_proved(case: Case) -> None:
    solved, share, prices = efficient_compiled.most_speed(*case, PROVED)
    if solved:
        assert (prices >= -PROVED).all()
        bound = most(case, np.maximum(prices, 0.0))
        # The bound is a difference to the cost of all GPUs, which limits its precision.
        rounding = 1e-15 * len(case.worth) * float(case.capacity @ prices)
        assert checked(case, share) == pytest.approx(bound, rel=3e-9, abs=rounding)


@given(cases(extreme=False))
def test_solutions_equal_those_of_highs(case: Case) -> None:
    solved, share, _ = efficient_compiled.most_speed(*case, PROVED)
    assert solved
    # By rows: GPUs of each type, then time and speed of each row; a column is a row on a type.
    rows, types = case.speed.shape
    index = np.stack(
        [
            np.tile(np.arange(types), rows),
            types + np.repeat(np.arange(rows), types),
            types + rows + np.repeat(np.arange(rows), types),
        ],
        axis=1,
    )
    value = np.stack([np.repeat(case.gpus, types), np.ones(rows * types), case.speed.ravel()], axis=1)
    answer = LpModel(
        Lp(
            cost=(case.worth[:, None] * case.speed).ravel(),
            lower=np.zeros(rows * types),
            upper=np.full(rows * types, np.inf),
            row_lower=np.concatenate([np.full(types + rows, -np.inf), case.owed]),
            row_upper=np.concatenate([case.capacity, np.ones(rows), np.full(rows, np.inf)]),
            start=np.arange(0, 3 * rows * types + 1, 3),
            index=index.ravel(),
            value=value.ravel(),
        )
    ).solve()
    assert answer is not None
    assert checked(case, share) == pytest.approx(answer.value, rel=1e-9, abs=1e-12)


def test_infeasible_minimum_is_not_solved() -> None:
    """Two rows want all the time of one GPU."""
    one = np.ones(2)
    solved, _, _ = efficient_compiled.most_speed(np.ones((2, 1)), one, one, one, np.ones(1), PROVED)
    assert not solved


@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_best_types_are_optimal_if_there_is_room(rows: int, types: int, seed: int) -> None:
    dice = np.random.default_rng(seed)
    rate = dice.permuted(np.tile(np.arange(types, dtype=np.float64), (rows, 1)), axis=1) * dice.uniform(
        0.5, 2, (rows, 1)
    )
    rate[dice.random(rows) < 0.2] = 0.0
    scale, weight = dice.choice([1.0, 2.0, 4.0], rows), dice.choice([1.0, 3.0], rows)
    count = dice.integers(1, 5, rows).astype(np.float64)
    best = rate.argmax(axis=1)
    runs = rate.max(axis=1) > 0
    capacity = np.bincount(best[runs], (scale * count)[runs], types) + 1.0
    solved, share, levels, level, bound, prices = efficient_compiled.efficient_shares(
        rate, scale, weight, count, capacity, 0.5, np.arange(rows), np.ones(rows), count, 1e-11, PROVED, 1e-12
    )
    assert solved == runs.any()
    if not solved:
        return
    wanted = np.zeros((rows, types))
    wanted[runs, best[runs]] = 1.0
    assert share.tolist() == wanted.tolist()
    assert not prices.any()
    fair = price_shares_compiled.leximin_shares(
        rate, scale, weight, count, capacity, np.zeros((0, types)), 1e-11, PROVED, 1e-12
    )
    assert levels == pytest.approx(fair[2])
    assert level == bound == pytest.approx(fair[3])
