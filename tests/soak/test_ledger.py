"""The ledger's checks can fail: each finds what it is for in facts that were made up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.soak.ledger import Fact, Plan, faults_of


def _plan(kind: str = "saves", steps: int = 2, code: int = 0, retries: int = 0, **changes: Any) -> Plan:
    plan = Plan("a", kind, steps, code, retries)
    plan.id = "a-1"
    for name, value in changes.items():
        setattr(plan, name, value)
    return plan


def _job(phase: str = "Succeeded", code: int | None = 0, **changes: Any) -> dict[str, Any]:
    told = {"phase": phase, "exit_code": code, "reason": {}, "progress": {"step": 2}}
    return {"id": "a-1", "workload": "a", **told, **changes}


def _fact(kind: str, worker: str = "g1-0", **more: Any) -> Fact:
    generation = int(worker[1:].partition("-")[0])
    return {"type": kind, "job": "a-1", "worker": worker, "generation": generation, "at": 0.0, "size": 1, **more}


_GOOD = [
    _fact("start"),
    _fact("resume", step=0),
    _fact("step", step=1),
    _fact("saved", step=1),
    _fact("asked"),
    _fact("start", "g2-0", size=2),
    _fact("start", "g2-1", size=2),
    _fact("resume", "g2-0", step=1),
    _fact("step", "g2-0", step=2),
    _fact("end", "g2-1", code=0),
    _fact("end", "g2-0", code=0),
]


@pytest.mark.parametrize("kind", ["saves", "messy", "elastic", "lease"])
def test_what_is_right_has_no_fault(kind: str) -> None:
    assert faults_of(_GOOD, [_plan(kind)], [_job()]) == []


def _without(what: str, at: int) -> list[Fact]:
    found = [place for place, fact in enumerate(_GOOD) if fact["type"] == what][at]
    return [*_GOOD[:found], *_GOOD[found + 1 :]]


@pytest.mark.parametrize(
    ("why", "facts"),
    [
        ("started 2 times", [*_GOOD, _fact("start", "g2-0", size=2)]),
        ("was done in g2", [*_GOOD, _fact("start", "g3-0")]),
        ("met another one", [*_GOOD, _fact("clash", what="device n0 1")]),
        ("does step 4 after 2", [*_GOOD, _fact("step", "g2-0", step=4)]),
        ("Succeeded after 1 of 2", _without("step", 1)),
        ("does step 2 after 2", [*_GOOD, _fact("step", "g2-0", step=2)]),
        ("resumes at 0; done 2, saved 1", [*_GOOD, _fact("resume", "g2-0", step=0)]),
        ("its state has 1", [*_GOOD, _fact("miscount", step=2, state=1)]),
        ("its workers ended with []", [fact for fact in _GOOD if fact["type"] != "end"]),
        ("the server does not know it", [*_GOOD, {**_fact("start"), "job": "b-1"}]),
    ],
)
def test_wrong_facts_are_found(why: str, facts: list[Fact]) -> None:
    assert any(why in fault for fault in faults_of(facts, [_plan()], [_job()]))


@pytest.mark.parametrize(
    ("why", "plan", "job"),
    [
        ("is lost", _plan(), _job(id="b-1", workload="b")),
        ("nobody submitted", _plan(), _job(workload="b")),
        ("was refused and is there", _plan(id="", refused=True), _job()),
        ("never ended", _plan(), _job("Running", None)),
        ("nobody asked", _plan(), _job("Cancelled", None)),
        ("Succeeded with 1", _plan(), _job(code=1)),
        ("Succeeded with 0, meant 3", _plan(code=3), _job()),
        ("Failed with 3", _plan(), _job("Failed", 3)),
        ("failed 2 times, with 0 retries", _plan(code=3), _job("Failed", 3)),
        ("left with 5", _plan(hurt=["g1-0"]), _job("Failed", 5)),
        ("was over and g2-0 started", _plan(over_at=-1.0), _job()),
        ("shows 1 of 2 steps", _plan("elastic"), _job(progress={"step": 1})),
        ("is Starting", _plan(cancelling=True, cancelled=True), _job("Starting", None)),
    ],
)
def test_a_server_that_tells_otherwise_is_found(why: str, plan: Plan, job: dict[str, Any]) -> None:
    facts = (
        [*_GOOD, _fact("end", "g2-0", code=3), _fact("end", "g3-0", code=3)]
        if plan.code and job["exit_code"] == 3
        else _GOOD
    )
    assert any(why in fault for fault in faults_of(facts, [plan], [job]))


def test_a_job_that_is_there_twice_is_found() -> None:
    assert any("2 times" in fault for fault in faults_of(_GOOD, [_plan()], [_job(), _job(id="a-2")]))


def test_who_was_killed_or_asked_at_the_end_may_start_again() -> None:
    again = [*_GOOD, _fact("start", "g3-0"), _fact("resume", "g3-0", step=2), _fact("end", "g3-0", code=0)]
    assert faults_of(again, [_plan(hurt=["g2-1"])], [_job()]) == []
    assert faults_of([*_GOOD[:-1], _fact("asked", "g2-0"), *again[10:]], [_plan()], [_job()]) == []


def test_the_late_word_of_a_worker_that_others_went_on_without_counts_for_nothing() -> None:
    late = [*_GOOD[:8], _fact("step", "g1-0", step=2), *_GOOD[8:]]
    assert faults_of(late, [_plan()], [_job()]) == []


@pytest.mark.parametrize(
    ("sizes", "retries", "right"),
    [((1, 1), 1, True), ((1,), 1, False), ((1, 1), 0, False), ((1, 2), 0, True), ((2, 2, 1), 2, True)],
)
def test_failures_are_counted_but_for_those_that_may_have_crossed_with_a_stop(
    sizes: tuple[int, ...], retries: int, right: bool
) -> None:
    """Of the larger generations one worker never said how it ended: it may have been asked to leave."""
    names = [f"g{number}-0" for number in range(2, 2 + len(sizes))]
    failed = [_fact("start", name, size=size) for name, size in zip(names, sizes, strict=True)]
    failed += [_fact("end", name, code=3) for name in names]
    plan = _plan("plain", code=3, retries=retries)
    assert (faults_of([*_GOOD[:5], *failed], [plan], [_job("Failed", 3)]) == []) == right
