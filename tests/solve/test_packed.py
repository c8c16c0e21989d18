"""Pairs by class against pairs by job, and what pairs must never do."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.core.types import Floats, Ints
from levada.solve.classes import classify
from levada.solve.finish_time import finish_time, makespan
from levada.solve.instance import instance
from levada.solve.interior_packed import max_min_packed_interior
from levada.solve.leximin import hierarchical, leximin
from levada.solve.max_min import max_min
from levada.solve.packed import (
    finish_time_packed,
    hierarchical_packed,
    leximin_packed,
    makespan_packed,
    max_min_packed,
    total_packed,
)
from levada.solve.problem import Problem
from levada.solve.total import UNMET, total
from tests.solve.cases import check
from tests.solve.joblevel_packed import hierarchical_levels, leximin_levels_packed, rise
from tests.solve.problems import problems


def together(asked: Problem, seed: int, best: float) -> tuple[Ints, Floats]:
    """Pairs of all rows, with themselves too, and rates that are up to *best* of what each reaches alone."""
    rows = len(asked.rate)
    pairs = np.array([(a, b) for a in range(rows) for b in range(a, rows)], int).reshape(-1, 2)
    random = np.random.default_rng(seed)
    part = random.choice([0.0, 0.3, 0.6, best], (len(pairs), asked.rate.shape[1], 2))
    part[pairs[:, 0] == pairs[:, 1]] = part[pairs[:, 0] == pairs[:, 1]][:, :, :1]
    return pairs, part * np.stack([asked.rate[pairs[:, 0]], asked.rate[pairs[:, 1]]], axis=2)


def by_job(rows: Problem, pairs: Ints, rate: Floats) -> tuple[Problem, Ints, Floats]:
    """The same with one row per job and a pair for every two jobs."""
    assert rows.of is not None
    of = rows.of
    alone = Problem(
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
def test_classes_of_pairs_are_exact(case: tuple[Problem, int, float]) -> None:
    rows = classify(case[0])
    pairs, rate = together(rows, *case[1:])
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
        check(rows, small)
        check(jobs, large)
        assert small.level == pytest.approx(large.level, rel=1e-6, abs=1e-9)
        assert small.bound == pytest.approx(small.level, rel=1e-6, abs=1e-9)
    levels = leximin_packed(rows, pairs, rate).levels, leximin_packed(jobs, twos, rates).levels
    assert levels[0] == pytest.approx(levels[1], rel=1e-6, abs=1e-9)


@given(cases)
def test_the_middle_of_all_pairs_is_as_good_as_a_corner_and_alike_for_equal_jobs(
    case: tuple[Problem, int, float],
) -> None:
    rows = classify(case[0])
    pairs, rate = together(rows, *case[1:])
    jobs, twos, rates = by_job(rows, pairs, rate)
    corner = max_min_packed(rows, pairs, rate)
    small, large = max_min_packed_interior(rows, pairs, rate), max_min_packed_interior(jobs, twos, rates)
    for asked, found in ((rows, small), (jobs, large)):
        if found.how == "equal":
            continue  # the path ends nowhere where numbers are far apart: whoever asks takes the corner then
        check(asked, found)
        assert found.level == pytest.approx(corner.level, rel=1e-5, abs=1e-8)
    if small.how == large.how == "interior":
        assert small.share == pytest.approx(large.share, abs=1e-3)


@given(cases)
def test_levels_of_pairs_are_those_of_a_program_per_job(case: tuple[Problem, int, float]) -> None:
    rows = classify(case[0])
    pairs, rate = together(rows, *case[1:])
    found = check(rows, leximin_packed(rows, pairs, rate))
    assert found.levels == pytest.approx(leximin_levels_packed(*by_job(rows, pairs, rate)), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize(("load", "most"), [(0.5, 1.1), (1.5, 1.0), (6.0, 1.0)])
def test_hundreds_of_different_jobs_have_the_right_levels(load: float, most: float) -> None:
    """Together each reaches up to *most* of its rate alone. Levels of some jobs are proved by programs of their own."""
    random = np.random.default_rng(7)
    alike = instance(250, 3, load, seed=7)
    jobs = msgspec.structs.replace(alike, rate=alike.rate * np.exp(random.normal(0.0, 0.2, alike.rate.shape)))
    a, b = np.triu_indices(jobs.jobs, 1)
    kept = (jobs.scale[a] == jobs.scale[b]) & (random.random(len(a)) < 0.1)
    pairs = np.stack([a[kept], b[kept]], axis=1)
    part = random.uniform(0.3, most, (len(pairs), 3, 2))
    rates = part * np.stack([jobs.rate[pairs[:, 0]], jobs.rate[pairs[:, 1]]], axis=2)
    found = check(jobs, leximin_packed(jobs, pairs, rates))
    assert found.levels is not None
    for job in random.choice(jobs.jobs, 6, replace=False).tolist():
        level = float(found.levels[job])
        lowered = np.where(np.arange(jobs.jobs) == job, 0.999 * level, found.levels)
        assert rise(jobs, pairs, rates, found.levels, job) < 1e-6 * level
        assert rise(jobs, pairs, rates, lowered, job) > 5e-4 * level


@given(
    cases,
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
    st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_entities_share_as_a_program_per_job_says(
    case: tuple[Problem, int, float], owner: list[int], weights: list[float], in_turn: list[bool]
) -> None:
    entity = np.array(owner[: case[0].jobs], int)
    rows = classify(msgspec.structs.replace(case[0], entity=entity))
    weight, fifo = np.array(weights), np.array(in_turn)
    pairs, rate = together(rows, *case[1:])
    jobs, twos, rates = by_job(rows, pairs, rate)
    expected = hierarchical_levels(jobs, twos, rates, weight, fifo)
    for found in (
        check(rows, hierarchical_packed(rows, pairs, rate, weight, fifo)),
        check(jobs, hierarchical_packed(jobs, twos, rates, weight, fifo)),
    ):
        assert found.levels == pytest.approx(expected, rel=1e-5, abs=1e-8)
    expected = hierarchical_levels(jobs, twos[:0], rates[:0], weight, fifo)
    for plain in (
        check(rows, hierarchical(rows, weight, fifo)),
        check(rows, hierarchical_packed(rows, pairs[:0], rate[:0], weight, fifo)),
    ):
        assert plain.levels == pytest.approx(expected, rel=1e-5, abs=1e-8)


@given(cases)
def test_pairs_of_jobs_give_what_is_said(case: tuple[Problem, int, float]) -> None:
    """Levels recomputed from the shares of jobs and pairs of jobs; nobody is paired with itself."""
    rows = classify(case[0])
    pairs, rate = together(rows, *case[1:])
    found = check(rows, makespan_packed(rows, pairs, rate, np.ones(rows.jobs)))
    assert rows.of is not None
    assert found.pairs is not None
    assert found.pair_share is not None
    assert (found.pairs[:, 0] != found.pairs[:, 1]).all()
    number = {(int(a), int(b)): at for at, (a, b) in enumerate(pairs)}
    got = (np.where(rows.capacity > 0, rows.rate, 0.0)[rows.of] * found.share).sum(axis=1)
    for (a, b), share in zip(found.pairs.tolist(), found.pair_share, strict=True):
        one, other = int(rows.of[a]), int(rows.of[b])
        assert rows.scale[one] == rows.scale[other]
        speeds = rate[number[one, other]] if (one, other) in number else rate[number[other, one]][:, ::-1]
        got[a] += share @ speeds[:, 0]
        got[b] += share @ speeds[:, 1]
    assert got == pytest.approx(found.levels, rel=1e-9, abs=1e-9)


@given(cases)
def test_sharing_never_hurts_and_useless_pairs_change_nothing(case: tuple[Problem, int, float]) -> None:
    rows = classify(case[0])
    pairs, rate = together(rows, *case[1:])
    steps = np.ones(rows.jobs)
    alone = max_min(rows).level, total(rows).level, makespan(rows, steps).level
    found = (
        max_min_packed(rows, pairs, rate).level,
        total_packed(rows, pairs, rate).level,
        makespan_packed(rows, pairs, rate, steps).level,
    )
    assert found[0] >= alone[0] * (1 - 1e-7)
    assert found[1] >= alone[1] * (1 - 1e-7)
    assert found[2] <= alone[2] * (1 + 1e-7)
    useless = 0.5 * np.stack([rows.rate[pairs[:, 0]], rows.rate[pairs[:, 1]]], axis=2)
    assert max_min_packed(rows, pairs, useless).level == pytest.approx(alone[0], rel=1e-7)
    assert leximin_packed(rows, pairs, useless).levels == pytest.approx(leximin(rows).levels, rel=1e-6, abs=1e-9)
    assert total_packed(rows, pairs, useless).level == pytest.approx(alone[1], rel=1e-7)
    ratio = finish_time_packed(rows, pairs, useless, steps, steps, steps).level
    assert ratio == pytest.approx(finish_time(rows, steps, steps, steps).level, rel=1e-7)


@given(problems(most_jobs=5, most_types=3), st.floats(0.01, 8.0))
def test_needs_that_cannot_be_met_are_left_out_and_told(asked: Problem, need: float) -> None:
    pairs, rate = np.zeros((0, 2), int), np.zeros((0, len(asked.capacity), 2))
    needs = np.full(asked.jobs, need)
    packed, plain = total_packed(asked, pairs, rate, need=needs), total(asked, need=needs)
    assert packed.alarm == plain.alarm
    assert packed.alarm in ("", UNMET)
    assert packed.level == pytest.approx(plain.level, rel=1e-6, abs=1e-9)
