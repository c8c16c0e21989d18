"""The checks of the ledger detect planted contradictions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.soak.ledger import Fact, JobPlan, faults_of


def _plan(kind: str = "saves", steps: int = 2, code: int = 0, retries: int = 0, **changes: Any) -> JobPlan:
    plan = JobPlan("a", kind, steps, code, retries)
    plan.id = "a-1"
    for name, value in changes.items():
        setattr(plan, name, value)
    return plan


def _job(phase: str = "Succeeded", code: int | None = 0, **changes: Any) -> dict[str, Any]:
    fields = {"phase": phase, "exit_code": code, "reason": {}, "progress": {"step": 2}}
    return {"id": "a-1", "workload": "a", **fields, **changes}


def _fact(kind: str, worker: str = "g1-0", **more: Any) -> Fact:
    generation = int(worker[1:].partition("-")[0])
    return {"type": kind, "job": "a-1", "worker": worker, "generation": generation, "at": 0.0, "size": 1, **more}


_GOOD = [
    _fact("start"),
    _fact("resume", step=0),
    _fact("step", step=1),
    _fact("saved", step=1),
    _fact("sigterm"),
    _fact("start", "g2-0", size=2),
    _fact("start", "g2-1", size=2),
    _fact("resume", "g2-0", step=1),
    _fact("step", "g2-0", step=2),
    _fact("end", "g2-1", code=0),
    _fact("end", "g2-0", code=0),
]


@pytest.mark.parametrize("kind", ["saves", "messy", "elastic", "lease"])
def test_a_correct_ledger_has_no_fault(kind: str) -> None:
    assert faults_of(_GOOD, [_plan(kind)], [_job()]) == []


def _without(what: str, at: int) -> list[Fact]:
    index = [place for place, fact in enumerate(_GOOD) if fact["type"] == what][at]
    return [*_GOOD[:index], *_GOOD[index + 1 :]]


@pytest.mark.parametrize(
    ("why", "facts"),
    [
        ("started 2 times", [*_GOOD, _fact("start", "g2-0", size=2)]),
        ("was complete in g2", [*_GOOD, _fact("start", "g3-0")]),
        ("conflicts with another worker", [*_GOOD, _fact("conflict", what="device n0 1")]),
        ("does step 4 after 2", [*_GOOD, _fact("step", "g2-0", step=4)]),
        ("Succeeded after 1 of 2", _without("step", 1)),
        ("does step 2 after 2", [*_GOOD, _fact("step", "g2-0", step=2)]),
        ("resumes at 0; done 2, saved 1", [*_GOOD, _fact("resume", "g2-0", step=0)]),
        ("its state has 1", [*_GOOD, _fact("miscount", step=2, state=1)]),
        ("its workers ended with []", [fact for fact in _GOOD if fact["type"] != "end"]),
        ("the server does not know it", [*_GOOD, {**_fact("start"), "job": "b-1"}]),
    ],
)
def test_wrong_facts_are_detected(why: str, facts: list[Fact]) -> None:
    assert any(why in fault for fault in faults_of(facts, [_plan()], [_job()]))


@pytest.mark.parametrize(
    ("why", "plan", "job"),
    [
        ("is lost", _plan(), _job(id="b-1", workload="b")),
        ("unknown job", _plan(), _job(workload="b")),
        ("was rejected and is listed", _plan(id="", rejected=True), _job()),
        ("never ended", _plan(), _job("Running", None)),
        ("Cancelled without a request", _plan(), _job("Cancelled", None)),
        ("Succeeded with 1", _plan(), _job(code=1)),
        ("Succeeded with 0, expected 3", _plan(code=3), _job()),
        ("Failed with 3", _plan(), _job("Failed", 3)),
        ("failed 2 times, with 0 retries", _plan(code=3), _job("Failed", 3)),
        ("exited with 5", _plan(killed=["g1-0"]), _job("Failed", 5)),
        ("was over and g2-0 started", _plan(over_at=-1.0), _job()),
        ("shows 1 of 2 steps", _plan("elastic"), _job(progress={"step": 1})),
        ("is Starting", _plan(cancelling=True, cancelled=True), _job("Starting", None)),
    ],
)
def test_a_contradicting_server_is_detected(why: str, plan: JobPlan, job: dict[str, Any]) -> None:
    facts = (
        [*_GOOD, _fact("end", "g2-0", code=3), _fact("end", "g3-0", code=3)]
        if plan.code and job["exit_code"] == 3
        else _GOOD
    )
    assert any(why in fault for fault in faults_of(facts, [plan], [job]))


def test_a_duplicate_job_is_detected() -> None:
    assert any("2 times" in fault for fault in faults_of(_GOOD, [_plan()], [_job(), _job(id="a-2")]))


def test_a_worker_killed_or_stopped_at_the_end_may_start_again() -> None:
    restarted = [*_GOOD, _fact("start", "g3-0"), _fact("resume", "g3-0", step=2), _fact("end", "g3-0", code=0)]
    assert faults_of(restarted, [_plan(killed=["g2-1"])], [_job()]) == []
    assert faults_of([*_GOOD[:-1], _fact("sigterm", "g2-0"), *restarted[10:]], [_plan()], [_job()]) == []


def test_a_late_fact_of_an_abandoned_worker_is_ignored() -> None:
    late = [*_GOOD[:8], _fact("step", "g1-0", step=2), *_GOOD[8:]]
    assert faults_of(late, [_plan()], [_job()]) == []


@pytest.mark.parametrize(
    ("sizes", "retries", "expected"),
    [((1, 1), 1, True), ((1,), 1, False), ((1, 1), 0, False), ((1, 2), 0, True), ((2, 2, 1), 2, True)],
)
def test_failures_are_counted_except_those_concurrent_with_a_stop(
    sizes: tuple[int, ...], retries: int, expected: bool
) -> None:
    """In generations of 2 one worker recorded no end: it may have been stopped."""
    names = [f"g{number}-0" for number in range(2, 2 + len(sizes))]
    failed = [_fact("start", name, size=size) for name, size in zip(names, sizes, strict=True)]
    failed += [_fact("end", name, code=3) for name in names]
    plan = _plan("plain", code=3, retries=retries)
    assert (faults_of([*_GOOD[:5], *failed], [plan], [_job("Failed", 3)]) == []) == expected
