"""The checks detect planted contradictions in a ledger."""

from __future__ import annotations

import pytest

from tests.interleavings.checks import (
    concurrent_generations,
    duplicate_starts,
    faults_of,
    starts_after_end,
    wrong_final_phase,
)
from tests.interleavings.processes import ProcessFact
from tests.interleavings.scenario import ClientJob


def _start(worker: str, size: int = 1) -> ProcessFact:
    return ProcessFact(0.0, "start", "a", worker, size=size)


def _end(worker: str, code: int | None = 0, asked: bool = False) -> ProcessFact:
    return ProcessFact(1.0, "end", "a", worker, code, asked)


def _plan(code: int = 0, cancelled: bool = False) -> ClientJob:
    plan = ClientJob("a", 1.0, code, "plain", {"min": 1, "max": 1})
    plan.id, plan.cancelled = "a", cancelled
    return plan


def _job(phase: str = "Succeeded", code: int | None = 0) -> dict[str, object]:
    return {"id": "a", "phase": phase, "exit_code": code, "reason": {}}


_GOOD = [_start("g1-0"), _end("g1-0", 75, asked=True), _start("g2-0", 2), _start("g2-1", 2), _end("g2-1"), _end("g2-0")]


def test_a_correct_ledger_has_no_fault() -> None:
    assert faults_of(_GOOD, [_job()], [_plan()]) == []


def test_a_worker_started_twice_is_detected() -> None:
    assert duplicate_starts([*_GOOD, _start("g2-0", 2)])


def test_a_start_after_the_end_is_detected() -> None:
    assert starts_after_end([*_GOOD, _start("g3-0")])


def test_a_late_start_of_a_peer_is_no_fault() -> None:
    assert starts_after_end([_start("g1-0", 2), _end("g1-0"), _start("g1-1", 2), _end("g1-1")]) == []


def test_two_concurrent_generations_are_detected() -> None:
    assert concurrent_generations([_start("g1-0"), _start("g2-0"), _end("g1-0"), _end("g2-0")])


def test_lost_and_unknown_jobs_are_detected() -> None:
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
def test_a_wrong_final_phase_is_detected(phase: str, code: int | None, plan: ClientJob) -> None:
    assert wrong_final_phase(_GOOD, _job(phase, code), plan)


def test_a_success_without_a_successful_worker_is_detected() -> None:
    assert wrong_final_phase([_start("g1-0"), _end("g1-0", -9)], _job(), _plan())


@pytest.mark.parametrize(
    ("failures", "killed", "suspensions", "expected"),
    [(2, 0, 0, False), (3, 0, 0, True), (4, 0, 0, False), (2, 1, 0, True), (4, 0, 1, True)],
)
def test_a_failure_counted_twice_or_never_is_detected(
    failures: int, killed: int, suspensions: int, expected: bool
) -> None:
    plan = _plan(code=3)
    plan.suspensions = suspensions
    ends = [_end(f"g{number}-0", 3) for number in range(failures)]
    ends += [_end(f"g9{number}-0", -9) for number in range(killed)]
    assert (wrong_final_phase(ends, _job("Failed", 3), plan) == []) == expected


def test_a_failure_beside_a_stopped_worker_may_be_ignored() -> None:
    ends = [_end("g1-0", 3), _end("g2-0", 3), _end("g3-0", 75, asked=True), _end("g3-1", 3), _end("g4-0", 3)]
    assert wrong_final_phase(ends, _job("Failed", 3), _plan(code=3)) == []
    assert wrong_final_phase(ends[1:], _job("Failed", 3), _plan(code=3)) == []
