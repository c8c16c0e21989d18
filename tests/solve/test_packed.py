"""Packed pairs: by class as by job, and never worse than alone."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.compat.gavel.solver.interior_packed import max_min_packed_interior
from levada.core.types import Floats, Ints
from levada.solve.classes import classify
from levada.solve.finish_time import finish_time, makespan
from levada.solve.leximin import hierarchical, leximin
from levada.solve.max_min import max_min
from levada.solve.max_throughput import UNMET, total
from levada.solve.packed import (
    finish_time_packed,
    hierarchical_packed,
    leximin_packed,
    makespan_packed,
    max_min_packed,
    total_packed,
)
from levada.solve.problem import ShareProblem
from tests.solve.golden_cases import assert_feasible
from tests.solve.problems import problems
from tests.solve.random_problem import random_problem
from tests.solve.reference_packed import hierarchical_levels, leximin_levels_packed, rise


def random_pairs(problem: ShareProblem, seed: int, best: float) -> tuple[Ints, Floats]:
    """All pairs of rows, also a row with itself, with rates of up to *best* of the rates alone."""
    rows = len(problem.rate)
    pairs = np.array([(a, b) for a in range(rows) for b in range(a, rows)], int).reshape(-1, 2)
    random = np.random.default_rng(seed)
    part = random.choice([0.0, 0.3, 0.6, best], (len(pairs), problem.rate.shape[1], 2))
    part[pairs[:, 0] == pairs[:, 1]] = part[pairs[:, 0] == pairs[:, 1]][:, :, :1]
    return pairs, part * np.stack([problem.rate[pairs[:, 0]], problem.rate[pairs[:, 1]]], axis=2)


def by_job(rows: ShareProblem, pairs: Ints, rate: Floats) -> tuple[ShareProblem, Ints, Floats]:
    """The same problem with one row per job and one pair per two jobs."""
    assert rows.of is not None
    of = rows.of
    alone = ShareProblem(
        rate=rows.rate[of],
        scale=rows.scale[of],
        weight=rows.weight[of],
        entity=rows.entity[of],
        capacity=rows.capacity,
    )
    number = {(int(a), int(b)): at for at, (a, b) in enumerate(pairs)}
    twos, rates = [], []
    for i in range(len(of)):
        for j in range(i):
            one, other = (j, i) if of[j] <= of[i] else (i, j)
            twos.append((one, other))
            rates.append(rate[number[int(of[one]), int(of[other])]])
    return alone, np.array(twos, int).reshape(-1, 2), np.array(rates).reshape(-1, rate.shape[1], 2)


cases = st.tuples(problems(most_jobs=6, most_types=3), st.integers(0, 99), st.sampled_from([0.45, 0.8, 1.0]))


@given(cases)
def test_pairs_by_class_equal_pairs_by_job(case: tuple[ShareProblem, int, float]) -> None:
    rows = classify(case[0])
    pairs, rate = random_pairs(rows, *case[1:])
    jobs, twos, rates = by_job(rows, pairs, rate)
    steps = 1.0 + np.arange(jobs.jobs) % 3
    for small, large in (
        (max_min_packed(rows, pairs, rate), max_min_packed(jobs, twos, rates)),
        (leximin_packed(rows, pairs, rate), leximin_packed(jobs, twos, rates)),
        (makespan_packed(rows, pairs, rate, steps), makespan_packed(jobs, twos, rates, steps)),
        (
            finish_time_packed(rows, pairs, rate, steps, steps, steps),
            finish_time_packed(jobs, twos, rates, steps, steps, steps),
        ),
        (total_packed(rows, pairs, rate), total_packed(jobs, twos, rates)),
    ):
        assert_feasible(rows, small)
        assert_feasible(jobs, large)
        assert small.level == pytest.approx(large.level, rel=1e-6, abs=1e-9)
        assert small.bound == pytest.approx(small.level, rel=1e-6, abs=1e-9)
    levels = leximin_packed(rows, pairs, rate).levels, leximin_packed(jobs, twos, rates).levels
    assert levels[0] == pytest.approx(levels[1], rel=1e-6, abs=1e-9)


@given(cases)
def test_interior_points_with_pairs_are_optimal_and_equal_for_equal_jobs(
    case: tuple[ShareProblem, int, float],
) -> None:
    rows = classify(case[0])
    pairs, rate = random_pairs(rows, *case[1:])
    jobs, twos, rates = by_job(rows, pairs, rate)
    vertex = max_min_packed(rows, pairs, rate)
    small, large = max_min_packed_interior(rows, pairs, rate), max_min_packed_interior(jobs, twos, rates)
    for problem, solution in ((rows, small), (jobs, large)):
        if solution.method == "equal":
            continue  # the path diverges for ill-conditioned numbers; callers use the vertex then
        assert_feasible(problem, solution)
        assert solution.level == pytest.approx(vertex.level, rel=1e-5, abs=1e-8)
    if small.method == large.method == "interior":
        assert small.share == pytest.approx(large.share, abs=1e-3)


@given(cases)
def test_leximin_levels_with_pairs_equal_those_of_one_program_per_job(case: tuple[ShareProblem, int, float]) -> None:
    rows = classify(case[0])
    pairs, rate = random_pairs(rows, *case[1:])
    solution = assert_feasible(rows, leximin_packed(rows, pairs, rate))
    assert solution.levels == pytest.approx(leximin_levels_packed(*by_job(rows, pairs, rate)), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize(("load", "most"), [(0.5, 1.1), (1.5, 1.0), (6.0, 1.0)])
def test_leximin_levels_of_250_different_jobs_with_pairs_are_maximal(load: float, most: float) -> None:
    """Packed jobs have up to *most* of their rate alone. Separate programs prove the levels of some jobs."""
    random = np.random.default_rng(7)
    base = random_problem(250, 3, load, seed=7)
    jobs = msgspec.structs.replace(base, rate=base.rate * np.exp(random.normal(0.0, 0.2, base.rate.shape)))
    a, b = np.triu_indices(jobs.jobs, 1)
    selected = (jobs.scale[a] == jobs.scale[b]) & (random.random(len(a)) < 0.1)
    pairs = np.stack([a[selected], b[selected]], axis=1)
    part = random.uniform(0.3, most, (len(pairs), 3, 2))
    rates = part * np.stack([jobs.rate[pairs[:, 0]], jobs.rate[pairs[:, 1]]], axis=2)
    solution = assert_feasible(jobs, leximin_packed(jobs, pairs, rates))
    assert solution.levels is not None
    for job in random.choice(jobs.jobs, 6, replace=False).tolist():
        level = float(solution.levels[job])
        lowered = np.where(np.arange(jobs.jobs) == job, 0.999 * level, solution.levels)
        assert rise(jobs, pairs, rates, solution.levels, job) < 1e-6 * level
        assert rise(jobs, pairs, rates, lowered, job) > 5e-4 * level


@given(
    cases,
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
    st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_hierarchical_levels_with_pairs_equal_those_of_one_program_per_job(
    case: tuple[ShareProblem, int, float], owner: list[int], weights: list[float], in_turn: list[bool]
) -> None:
    entity = np.array(owner[: case[0].jobs], int)
    rows = classify(msgspec.structs.replace(case[0], entity=entity))
    weight, fifo = np.array(weights), np.array(in_turn)
    pairs, rate = random_pairs(rows, *case[1:])
    jobs, twos, rates = by_job(rows, pairs, rate)
    expected = hierarchical_levels(jobs, twos, rates, weight, fifo)
    for solution in (
        assert_feasible(rows, hierarchical_packed(rows, pairs, rate, weight, fifo)),
        assert_feasible(jobs, hierarchical_packed(jobs, twos, rates, weight, fifo)),
    ):
        assert solution.levels == pytest.approx(expected, rel=1e-5, abs=1e-8)
    expected = hierarchical_levels(jobs, twos[:0], rates[:0], weight, fifo)
    for plain in (
        assert_feasible(rows, hierarchical(rows, weight, fifo)),
        assert_feasible(rows, hierarchical_packed(rows, pairs[:0], rate[:0], weight, fifo)),
    ):
        assert plain.levels == pytest.approx(expected, rel=1e-5, abs=1e-8)


@given(cases)
def test_reported_levels_follow_from_shares_of_jobs_and_pairs(case: tuple[ShareProblem, int, float]) -> None:
    """Levels are recomputed from the shares; no job is paired with itself."""
    rows = classify(case[0])
    pairs, rate = random_pairs(rows, *case[1:])
    solution = assert_feasible(rows, makespan_packed(rows, pairs, rate, np.ones(rows.jobs)))
    assert rows.of is not None
    assert solution.pairs is not None
    assert solution.pair_share is not None
    assert (solution.pairs[:, 0] != solution.pairs[:, 1]).all()
    number = {(int(a), int(b)): at for at, (a, b) in enumerate(pairs)}
    reached = (np.where(rows.capacity > 0, rows.rate, 0.0)[rows.of] * solution.share).sum(axis=1)
    for (a, b), share in zip(solution.pairs.tolist(), solution.pair_share, strict=True):
        one, other = int(rows.of[a]), int(rows.of[b])
        assert rows.scale[one] == rows.scale[other]
        speeds = rate[number[one, other]] if (one, other) in number else rate[number[other, one]][:, ::-1]
        reached[a] += share @ speeds[:, 0]
        reached[b] += share @ speeds[:, 1]
    assert reached == pytest.approx(solution.levels, rel=1e-9, abs=1e-9)


@given(cases)
def test_pairs_never_lower_the_objective_and_pairs_without_gain_change_nothing(
    case: tuple[ShareProblem, int, float],
) -> None:
    rows = classify(case[0])
    pairs, rate = random_pairs(rows, *case[1:])
    steps = np.ones(rows.jobs)
    alone = max_min(rows).level, total(rows).level, makespan(rows, steps).level
    solution = (
        max_min_packed(rows, pairs, rate).level,
        total_packed(rows, pairs, rate).level,
        makespan_packed(rows, pairs, rate, steps).level,
    )
    assert solution[0] >= alone[0] * (1 - 1e-7)
    assert solution[1] >= alone[1] * (1 - 1e-7)
    assert solution[2] <= alone[2] * (1 + 1e-7)
    useless = 0.5 * np.stack([rows.rate[pairs[:, 0]], rows.rate[pairs[:, 1]]], axis=2)
    assert max_min_packed(rows, pairs, useless).level == pytest.approx(alone[0], rel=1e-7)
    assert leximin_packed(rows, pairs, useless).levels == pytest.approx(leximin(rows).levels, rel=1e-6, abs=1e-9)
    assert total_packed(rows, pairs, useless).level == pytest.approx(alone[1], rel=1e-7)
    ratio = finish_time_packed(rows, pairs, useless, steps, steps, steps).level
    assert ratio == pytest.approx(finish_time(rows, steps, steps, steps).level, rel=1e-7)


@given(problems(most_jobs=5, most_types=3), st.floats(0.01, 8.0))
def test_infeasible_minimum_rates_are_dropped_with_an_alarm(problem: ShareProblem, need: float) -> None:
    pairs, rate = np.zeros((0, 2), int), np.zeros((0, len(problem.capacity), 2))
    needs = np.full(problem.jobs, need)
    packed, plain = total_packed(problem, pairs, rate, need=needs), total(problem, need=needs)
    assert packed.alarm == plain.alarm
    assert packed.alarm in ("", UNMET)
    assert packed.level == pytest.approx(plain.level, rel=1e-6, abs=1e-9)
