"""Invalid events and decisions are rejected as a whole, and the engine continues."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.cluster import Node
from levada.core.decision import Reservation
from levada.core.job import Job
from levada.core.queue import Queue
from levada.core.reasons import Code
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld, faulty_world
from tests.engine.test_decisions import Wish, _spoiled, ruled_by


def _refusal(system: FaultyWorld) -> str:
    """The rejection text of the only rejected event; resets the counter."""
    assert system.engine.query.refused == 1
    state_of(system.engine).refused = 0
    return system.engine.query.last_rejection


@pytest.mark.parametrize(
    "options",
    [
        {"reservation_s": 0.0},
        {"rate_limit_s": math.inf},
        {"decide_limit_s": -1.0},
        {"op_timeout_s": 0.0},
        {"backoff_s": math.nan},
        {"max_rejections": 0},
        {"no_such_option": 1.0},
        {"min_run_s": "x"},
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any]) -> None:
    system = faulty_world(2)
    before = system.engine.query.options
    system.engine.handle(ev.OptionsChanged(at=0.0, options=options))
    assert system.engine.query.options == before
    assert next(iter(options)) in _refusal(system)
    system.submit()
    system.calm()
    assert system.sizes() == {"j1": 1}


def test_an_unknown_policy_is_rejected_and_the_current_one_stays() -> None:
    system = faulty_world(2)
    before = system.engine.query.policy
    system.engine.handle(ev.PolicyChanged(at=0.0, name="no-such-policy"))
    assert system.engine.query.policy is before
    assert "no-such-policy" in _refusal(system)


@pytest.mark.parametrize(
    "queues",
    [
        (Queue(name="q", limit={"v100": 1e17}),),
        (Queue(name="q", guaranteed={"v100": 1e17}),),
        (Queue(name="q", per_user_limit={"v100": math.inf}),),
        (Queue(name="q", weight=1e308),),
        (Queue(name="0"), *(Queue(name=str(n), parent=str(n - 1)) for n in range(1, 200))),
        tuple(Queue(name=str(n)) for n in range(2000)),
    ],
)
def test_out_of_range_queues_are_rejected(queues: tuple[Queue, ...]) -> None:
    system = faulty_world(2)
    system.engine.handle(ev.QueuesChanged(at=0.0, queues=queues))
    assert "queue" in _refusal(system)
    system.submit()
    system.calm()
    assert system.sizes() == {"j1": 1}


@pytest.mark.parametrize("at", [None, "soon", 10**400, math.nan, math.inf, 1e308])
def test_an_event_with_an_invalid_time_does_not_move_the_clock(at: Any) -> None:
    system = faulty_world(2)
    system.pass_time(10.0)
    system.engine.handle(ev.Tick(at=at))
    assert system.engine.query.now == 10.0
    state_of(system.engine).refused = 0
    system.submit()
    system.calm()
    assert system.sizes() == {"j1": 1}


@pytest.mark.parametrize("expires", ["x", math.nan, None])
@pytest.mark.parametrize("name", ["r", None, []])
def test_an_invalid_reservation_is_rejected(name: Any, expires: Any) -> None:
    if name == "r" and expires is None:
        name = 7
    system = faulty_world(2, policy="fifo")
    system.submit()
    reservation = Reservation(id=name, node=0, devices=((0, 1000, 0),), expires=expires)
    system.think(spoil=_spoiled(reservations=(reservation,)))
    assert system.engine.query.rejections == 1
    system.pass_time(30.0)
    system.calm()
    assert system.sizes() == {"j1": 1}


@pytest.mark.parametrize("columns", [{"reservations": None}, {"binds": None}])
def test_a_decision_with_missing_columns_is_rejected(columns: dict[str, Any]) -> None:
    system = faulty_world(2, policy="fifo")
    system.submit()
    system.think(spoil=_spoiled(**columns))
    assert system.engine.query.rejections == 1


def test_an_incomplete_decision_is_rejected() -> None:
    system = faulty_world(2, policy="fifo")
    system.submit()
    nothing = np.zeros(0, np.int64)
    names = ("number", "type", "count", "reason", "evidence", "rank")
    system.think(spoil=_spoiled(**dict.fromkeys(names, nothing)))
    assert system.why("j1") == "rejected"
    system.pass_time(30.0)
    system.calm()
    assert system.sizes() == {"j1": 1}


@pytest.mark.parametrize("gives", [("v100", 999), ("cpu", 1)])
def test_a_policy_that_is_always_wrong_about_one_job_is_replaced(gives: tuple[str, int]) -> None:
    system = ruled_by(Wish({0: gives}), Node.of("a", {"v100": 4}))
    system.submit()
    for _ in range(5):
        system.pass_time(60.0)
        system.calm()
    assert system.sizes() == {"j1": 1}


def test_a_new_policy_does_not_inherit_the_wake_time() -> None:
    system = faulty_world(2, policy="fifo")
    system.submit(steps=1e9)
    system.think(spoil=_spoiled(wake_at=1e7))
    system.calm()
    system.tell(ev.PolicyChanged(at=system.now, name="max_min_fairness", options={"mechanism": "gavel"}))
    system.calm()
    system.submit(steps=1e9)
    system.calm()
    for _ in range(3):
        assert system.wake < 1e6
        system.pass_time(max(system.wake - system.now, 0.0))
        system.calm()
    assert system.sizes()["j2"] == 1


@pytest.mark.parametrize("fields", [{"min": 2, "max": 10**30}, {"max": 10**18}, {"max": 3, "priority": "x"}])
def test_an_invalid_update_changes_nothing_and_the_next_one_applies(fields: dict[str, Any]) -> None:
    system = faulty_world(2)
    system.submit(max=2)
    system.submit(max=2)
    bad, good = ev.JobUpdate(number=0, **fields), ev.JobUpdate(number=1, priority=5)
    system.tell(ev.JobsUpdated(at=0.0, updates=(bad, good)))
    job = system.job("j1")
    assert (job["min"], job["max"], job["priority"]) == (1, 2, 0)
    assert system.job("j2")["priority"] == 5


@pytest.mark.parametrize("fields", [{"weight": math.inf}, {"steps": math.inf}])
def test_a_job_with_infinite_numbers_is_quarantined(fields: dict[str, Any]) -> None:
    system = faulty_world(2)
    system.submit(**fields)
    system.submit()
    system.calm()
    assert system.why("j1") == "invalid"
    assert system.sizes()["j2"] == 1


@pytest.mark.parametrize("submitted", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("policy", ["tiresias", "allox", "elastic-fifo"])
def test_a_job_without_a_valid_submission_time_is_submitted_now(policy: str, submitted: float) -> None:
    system = faulty_world(2, policy=policy)
    system.pass_time(5.0)
    batch = JobBatch.of([Job(id="j1", submitted=0.0, steps=100.0)])
    batch = msgspec.structs.replace(batch, columns={**batch.columns, "submitted": np.array([submitted])})
    system.tell(ev.JobsSubmitted(at=5.0, jobs=batch))
    system.calm()
    assert system.job("j1")["submitted"] == 5.0
    assert system.sizes() == {"j1": 1}


def test_a_quarantined_job_keeps_its_reason_after_a_rejected_decision() -> None:
    system = faulty_world(2)
    both = [Job(id=name, submitted=0.0) for name in ("j1", "j2")]
    system.tell(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of(both)))
    state = state_of(system.engine)
    aside = np.array([state.world.slot("j1")])
    state.world.table.aside[aside] = 1
    state.set_reason(aside, Code.SET_ASIDE, 5)
    system.think(fail=True)
    assert system.why("j1") == "set-aside"
    assert system.why("j2") == "rejected"


def test_a_job_without_observed_workers_restarts() -> None:
    system = faulty_world(2)
    system.submit(steps=1e9)
    system.calm()
    generation, _ = system.truth.pop(0)
    no_workers = ev.Observed(at=0.0, number=np.array([0]), generation=np.array([generation]), running=np.array([0]))
    system.tell(no_workers)
    assert system.why("j1") in ("interrupted", "restarting", "starting")
    system.pass_time(600.0)
    system.calm()
    assert system.sizes() == {"j1": 1}
    assert system.truth[0][0] > generation
