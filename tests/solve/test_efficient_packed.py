"""Efficient shares where two jobs may share GPUs, against one program over all pairs of jobs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from levada.core.types import Floats, Ints
from levada.solve.classes import classify
from levada.solve.efficient import efficient
from levada.solve.leximin import leximin
from levada.solve.packed import efficient_packed, leximin_packed
from levada.solve.problem import Problem, Solution, problem, usable
from tests.solve.cases import check
from tests.solve.problems import problems
from tests.solve.test_packed import by_job, together

cases = st.tuples(problems(most_jobs=6, most_types=3), st.integers(0, 99), st.sampled_from([0.45, 0.8, 1.0]))
floors = st.sampled_from([0.0, 0.5, 1.0])


def speeds(rows: Problem, pairs: Ints, rate: Floats, found: Solution) -> Floats:
    """What each job reaches, alone and together, as parts of its best alone."""
    alone = usable(rows)
    best = np.where(alone.any(axis=1), alone.max(axis=1, initial=0.0), 1.0)
    got = (rows.each(alone) * found.share).sum(axis=1)
    if found.pairs is not None and found.pair_share is not None:
        assert rows.of is not None
        number = {(int(a), int(b)): at for at, (a, b) in enumerate(pairs)}
        for (a, b), share in zip(found.pairs.tolist(), found.pair_share, strict=True):
            one, other = int(rows.of[a]), int(rows.of[b])
            both = rate[number[one, other]] if (one, other) in number else rate[number[other, one]][:, ::-1]
            got[a] += share @ both[:, 0]
            got[b] += share @ both[:, 1]
    return got / rows.each(best)


def worth(rows: Problem, reached: Floats) -> float:
    """What `efficient` makes as large as it can."""
    return float(rows.each(rows.weight * rows.scale) @ reached)


def most(rows: Problem, pairs: Ints, rate: Floats, owed: Floats) -> float:
    """The largest worth at which each job has the speed it is *owed*: one column per job or two jobs, and type."""
    jobs, twos, rates = by_job(rows, pairs, rate)
    alone = usable(jobs)
    best = np.where(alone.any(axis=1), alone.max(axis=1, initial=0.0), 1.0)
    each = jobs.weight * jobs.scale
    columns = [
        (kind, {job: alone[job, kind] / best[job]}) for job in range(jobs.jobs) for kind in range(alone.shape[1])
    ]
    for (a, b), both in zip(twos.tolist(), rates, strict=True):
        if jobs.scale[a] == jobs.scale[b]:
            columns += [
                (kind, {a: both[kind, 0] / best[a], b: both[kind, 1] / best[b]}) for kind in range(alone.shape[1])
            ]
    time, level = np.zeros((jobs.jobs, len(columns))), np.zeros((jobs.jobs, len(columns)))
    use, gain = np.zeros((alone.shape[1], len(columns))), np.zeros(len(columns))
    for at, (kind, members) in enumerate(columns):
        for job, speed in members.items():
            time[job, at], level[job, at], use[kind, at] = 1.0, speed, jobs.scale[job]
            gain[at] += each[job] * speed
    limits = np.concatenate([np.ones(jobs.jobs), jobs.capacity, -owed + 1e-9])
    return -float(linprog(-gain, A_ub=np.concatenate([time, use, -level]), b_ub=limits).fun) if columns else 0.0


@given(cases, floors)
def test_all_keep_the_floor_and_nothing_is_faster(case: tuple[Problem, int, float], floor: float) -> None:
    rows = classify(case[0])
    pairs, rate = together(rows, *case[1:])
    found = check(rows, efficient_packed(rows, pairs, rate, floor))
    assert not found.alarm
    reached, fair = speeds(rows, pairs, rate, found), speeds(rows, pairs, rate, leximin(rows))
    assert (reached >= floor * fair - 1e-6).all()
    value = worth(rows, reached)
    assert value == pytest.approx(most(rows, pairs, rate, floor * fair), rel=1e-6, abs=1e-6)
    assert value >= worth(rows, fair) - 1e-6
    leximin_together = speeds(rows, pairs, rate, leximin_packed(rows, pairs, rate))
    if (leximin_together >= floor * fair).all():
        assert value >= worth(rows, leximin_together) - 1e-6


@given(cases, floors)
def test_pairs_that_help_nobody_change_nothing(case: tuple[Problem, int, float], floor: float) -> None:
    rows = classify(case[0])
    pairs, _ = together(rows, *case[1:])
    useless = 0.5 * np.stack([rows.rate[pairs[:, 0]], rows.rate[pairs[:, 1]]], axis=2)
    packed, plain = efficient_packed(rows, pairs, useless, floor), efficient(rows, floor)
    found, expected = (worth(rows, speeds(rows, pairs, useless, one)) for one in (packed, plain))
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert packed.pair_share is not None
    assert not packed.pair_share.any()


def test_those_share_who_lose_least() -> None:
    """One GPU, three jobs: the two that hardly disturb each other run together, the third has its floor."""
    rows = classify(problem([[1.0], [2.0], [4.0]], [1.0]))
    pairs = np.array([[0, 1], [0, 2], [1, 2]])
    rate = np.array([[[0.9, 1.8]], [[0.5, 2.2]], [[1.0, 2.1]]])
    found = efficient_packed(rows, pairs, rate, 0.5)
    assert found.pairs is not None
    assert found.pair_share is not None
    assert found.pairs[found.pair_share.any(axis=1)].tolist() == [[0, 1]]
    assert found.share[2] == pytest.approx(1 / 6)
    assert found.pair_share.sum() == pytest.approx(5 / 6)
