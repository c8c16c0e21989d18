"""Efficient shares with packed pairs, compared with one program over all pairs of jobs."""

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
from levada.solve.problem import ShareProblem, Solution, problem, usable
from tests.solve.golden_cases import assert_feasible
from tests.solve.problems import problems
from tests.solve.test_packed import by_job, random_pairs

cases = st.tuples(problems(most_jobs=6, most_types=3), st.integers(0, 99), st.sampled_from([0.45, 0.8, 1.0]))
floors = st.sampled_from([0.0, 0.5, 1.0])


def speeds(rows: ShareProblem, pairs: Ints, rate: Floats, solution: Solution) -> Floats:
    """The speed of each job, alone and packed, as a fraction of its best speed alone."""
    alone = usable(rows)
    best = np.where(alone.any(axis=1), alone.max(axis=1, initial=0.0), 1.0)
    reached = (rows.per_job(alone) * solution.share).sum(axis=1)
    if solution.pairs is not None and solution.pair_share is not None:
        assert rows.of is not None
        number = {(int(a), int(b)): at for at, (a, b) in enumerate(pairs)}
        for (a, b), share in zip(solution.pairs.tolist(), solution.pair_share, strict=True):
            one, other = int(rows.of[a]), int(rows.of[b])
            both = rate[number[one, other]] if (one, other) in number else rate[number[other, one]][:, ::-1]
            reached[a] += share @ both[:, 0]
            reached[b] += share @ both[:, 1]
    return reached / rows.per_job(best)


def total_speed(rows: ShareProblem, reached: Floats) -> float:
    """The objective of `efficient`."""
    return float(rows.per_job(rows.weight * rows.scale) @ reached)


def best_total_speed(rows: ShareProblem, pairs: Ints, rate: Floats, owed: Floats) -> float:
    """The largest objective with speeds of at least *owed*: one column per job or pair, and type."""
    jobs, twos, rates = by_job(rows, pairs, rate)
    alone = usable(jobs)
    best = np.where(alone.any(axis=1), alone.max(axis=1, initial=0.0), 1.0)
    value = jobs.weight * jobs.scale
    columns = [
        (gpu_type, {job: alone[job, gpu_type] / best[job]})
        for job in range(jobs.jobs)
        for gpu_type in range(alone.shape[1])
    ]
    for (a, b), both in zip(twos.tolist(), rates, strict=True):
        if jobs.scale[a] == jobs.scale[b]:
            columns += [
                (gpu_type, {a: both[gpu_type, 0] / best[a], b: both[gpu_type, 1] / best[b]})
                for gpu_type in range(alone.shape[1])
            ]
    time, level = np.zeros((jobs.jobs, len(columns))), np.zeros((jobs.jobs, len(columns)))
    use, gain = np.zeros((alone.shape[1], len(columns))), np.zeros(len(columns))
    for at, (gpu_type, members) in enumerate(columns):
        for job, speed in members.items():
            time[job, at], level[job, at], use[gpu_type, at] = 1.0, speed, jobs.scale[job]
            gain[at] += value[job] * speed
    limits = np.concatenate([np.ones(jobs.jobs), jobs.capacity, -owed + 1e-9])
    return -float(linprog(-gain, A_ub=np.concatenate([time, use, -level]), b_ub=limits).fun) if columns else 0.0


@given(cases, floors)
def test_every_job_has_its_floor_and_the_speed_is_optimal(case: tuple[ShareProblem, int, float], floor: float) -> None:
    rows = classify(case[0])
    pairs, rate = random_pairs(rows, *case[1:])
    solution = assert_feasible(rows, efficient_packed(rows, pairs, rate, floor))
    assert not solution.alarm
    reached, fair = speeds(rows, pairs, rate, solution), speeds(rows, pairs, rate, leximin(rows))
    assert (reached >= floor * fair - 1e-6).all()
    value = total_speed(rows, reached)
    assert value == pytest.approx(best_total_speed(rows, pairs, rate, floor * fair), rel=1e-6, abs=1e-6)
    assert value >= total_speed(rows, fair) - 1e-6
    leximin_together = speeds(rows, pairs, rate, leximin_packed(rows, pairs, rate))
    if (leximin_together >= floor * fair).all():
        assert value >= total_speed(rows, leximin_together) - 1e-6


@given(cases, floors)
def test_pairs_without_gain_change_nothing(case: tuple[ShareProblem, int, float], floor: float) -> None:
    rows = classify(case[0])
    pairs, _ = random_pairs(rows, *case[1:])
    useless = 0.5 * np.stack([rows.rate[pairs[:, 0]], rows.rate[pairs[:, 1]]], axis=2)
    packed, plain = efficient_packed(rows, pairs, useless, floor), efficient(rows, floor)
    solution, expected = (total_speed(rows, speeds(rows, pairs, useless, one)) for one in (packed, plain))
    assert solution == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert packed.pair_share is not None
    assert not packed.pair_share.any()


def test_the_pair_with_the_least_loss_shares_the_gpu() -> None:
    """One GPU, three jobs: the pair with little interference is packed, the third job has its floor."""
    rows = classify(problem([[1.0], [2.0], [4.0]], [1.0]))
    pairs = np.array([[0, 1], [0, 2], [1, 2]])
    rate = np.array([[[0.9, 1.8]], [[0.5, 2.2]], [[1.0, 2.1]]])
    solution = efficient_packed(rows, pairs, rate, 0.5)
    assert solution.pairs is not None
    assert solution.pair_share is not None
    assert solution.pairs[solution.pair_share.any(axis=1)].tolist() == [[0, 1]]
    assert solution.share[2] == pytest.approx(1 / 6)
    assert solution.pair_share.sum() == pytest.approx(5 / 6)
