"""Efficient shares: of equally fast choices, the least remaining work wins."""

from __future__ import annotations

import pytest

from levada.policies.gavel.instance import Instance
from levada.policies.gavel.lp_common import EFFICIENT, LEXIMIN
from levada.policies.gavel.max_min import FLOOR, MaxMinFairnessPerf
from tests.policies.gavel.instances import moment

HOUR_S = 3600.0
#: Twice as fast on the one type as on the other.
ALIKE = [2.0, 1.0]
BOTH_TYPES = {"v100": 1, "k80": 1}


def speeds(instance: Instance, shares: str = EFFICIENT) -> list[float]:
    """Steps per second of each job."""
    result, _ = MaxMinFairnessPerf(shares).shares(instance, instance.perf, None)
    assert not result.alarm
    return [float(rate) for rate in (instance.rate * result.share).sum(axis=1)]


def test_of_two_equal_jobs_the_one_with_less_left_has_the_rest_and_the_other_its_floor() -> None:
    instance = moment([[2.0], [2.0]], {"v100": 1}, steps=[100 * HOUR_S, HOUR_S], workload=["same"] * 2)
    assert speeds(instance, LEXIMIN) == pytest.approx([1.0, 1.0])
    assert speeds(instance) == pytest.approx([FLOOR, 2.0 - FLOOR], rel=1e-6)


def test_the_one_with_less_left_has_the_fast_type_too() -> None:
    instance = moment([ALIKE, ALIKE], BOTH_TYPES, steps=[100 * HOUR_S, HOUR_S])
    assert speeds(instance) == pytest.approx([1.0, 2.0], rel=1e-6)


def test_what_is_done_is_not_left() -> None:
    instance = moment([ALIKE, ALIKE], BOTH_TYPES, steps=[100 * HOUR_S, 10 * HOUR_S])
    instance.snap.table.steps_done[instance.snap.jobs.slots[0]] = 99 * HOUR_S
    assert speeds(instance) == pytest.approx([2.0, 1.0], rel=1e-6)


def test_a_large_job_needs_more_than_a_small_one_that_takes_as_long() -> None:
    instance = moment([[1.0], [1.0]], {"v100": 4}, scale=[4, 1], steps=[HOUR_S, HOUR_S])
    large, small = speeds(instance)
    assert small == pytest.approx(1.0)
    assert large == pytest.approx(0.75, rel=1e-6)


@pytest.mark.parametrize("done", [0.0, 3 * HOUR_S])
def test_who_said_nothing_or_goes_on_beyond_what_it_said_comes_last_and_has_its_floor(done: float) -> None:
    instance = moment([[2.0], [2.0]], {"v100": 1}, steps=[2 * HOUR_S if done else None, 1000 * HOUR_S])
    instance.snap.table.steps_done[instance.snap.jobs.slots[0]] = done
    assert speeds(instance) == pytest.approx([FLOOR, 2.0 - FLOOR], rel=1e-6)


def test_where_nobody_said_anything_equal_jobs_have_equal_speed() -> None:
    instance = moment([[2.0], [2.0], [2.0]], {"v100": 1}, workload=["same"] * 3)
    assert speeds(instance) == pytest.approx([2 / 3] * 3)


def test_no_speed_is_given_away_for_it() -> None:
    """The short job loses a tenth on the slow type, the long one two tenths."""
    rates = [[1.0, 0.8], [1.0, 0.9]]
    instance = moment(rates, BOTH_TYPES, steps=[1000 * HOUR_S, 60.0])
    assert speeds(instance) == pytest.approx([1.0, 0.9], rel=1e-6)
