"""The checks can fail: each finds what it is for in a ledger that was made up."""

from __future__ import annotations

import pytest

from tests.interleavings.checks import after_the_end, doubled, faults_of, overlapping, untrue
from tests.interleavings.processes import Fact
from tests.interleavings.scenario import Plan


def _start(worker: str, size: int = 1) -> Fact:
    return Fact(0.0, "start", "a", worker, size=size)


def _end(worker: str, code: int | None = 0, asked: bool = False) -> Fact:
    return Fact(1.0, "end", "a", worker, code, asked)


def _plan(code: int = 0, cancelled: bool = False) -> Plan:
    plan = Plan("a", 1.0, code, "plain", {"min": 1, "max": 1})
    plan.id, plan.cancelled = "a", cancelled
    return plan


def _job(phase: str = "Succeeded", code: int | None = 0) -> dict[str, object]:
    return {"id": "a", "phase": phase, "exit_code": code, "reason": {}}


_GOOD = [_start("g1-0"), _end("g1-0", 75, asked=True), _start("g2-0", 2), _start("g2-1", 2), _end("g2-1"), _end("g2-0")]


def test_a_good_ledger_has_no_fault() -> None:
    assert faults_of(_GOOD, [_job()], [_plan()]) == []


def test_a_worker_that_starts_twice_is_found() -> None:
    assert doubled([*_GOOD, _start("g2-0", 2)])


def test_a_start_after_the_end_is_found() -> None:
    assert after_the_end([*_GOOD, _start("g3-0")])


def test_a_peer_that_starts_late_is_no_start_after_the_end() -> None:
    assert after_the_end([_start("g1-0", 2), _end("g1-0"), _start("g1-1", 2), _end("g1-1")]) == []


def test_two_generations_at_once_are_found() -> None:
    assert overlapping([_start("g1-0"), _start("g2-0"), _end("g1-0"), _end("g2-0")])


def test_a_lost_job_and_one_that_nobody_submitted_are_found() -> None:
    assert faults_of(_GOOD, [], [_plan()])
    assert faults_of(_GOOD, [_job()], [])


@pytest.mark.parametrize(
    ("phase", "code", "plan"),
    [
        ("Succeeded", 1, _plan()),
        ("Succeeded", 0, _plan(code=3)),
        ("Failed", 3, _plan()),
        ("Failed", 4, _plan(code=3)),
        ("Cancelled", None, _plan()),
        ("Starting", None, _plan()),
    ],
)
def test_an_untrue_end_is_found(phase: str, code: int | None, plan: Plan) -> None:
    assert untrue(_GOOD, _job(phase, code), plan)


def test_a_success_that_no_worker_had_is_found() -> None:
    assert untrue([_start("g1-0"), _end("g1-0", -9)], _job(), _plan())


@pytest.mark.parametrize(
    ("failures", "killed", "suspensions", "right"),
    [(2, 0, 0, False), (3, 0, 0, True), (4, 0, 0, False), (2, 1, 0, True), (4, 0, 1, True)],
)
def test_a_failure_that_counted_twice_or_never_is_found(
    failures: int, killed: int, suspensions: int, right: bool
) -> None:
    plan = _plan(code=3)
    plan.suspensions = suspensions
    ends = [_end(f"g{number}-0", 3) for number in range(failures)]
    ends += [_end(f"g9{number}-0", -9) for number in range(killed)]
    assert (untrue(ends, _job("Failed", 3), plan) == []) == right


def test_a_failure_may_not_count_where_another_worker_was_asked_to_leave() -> None:
    ends = [_end("g1-0", 3), _end("g2-0", 3), _end("g3-0", 75, asked=True), _end("g3-1", 3), _end("g4-0", 3)]
    assert untrue(ends, _job("Failed", 3), _plan(code=3)) == []
    assert untrue(ends[1:], _job("Failed", 3), _plan(code=3)) == []
