"""What no shell should say and no policy should decide: it is refused as a whole, and life goes on."""

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
from tests.engine.chaos import desk
from tests.engine.inspect import state_of
from tests.engine.test_decisions import Wish, _spoiled, ruled_by


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
def test_options_with_which_nothing_could_run_are_refused(options: dict[str, Any]) -> None:
    chaos = desk(2)
    before = chaos.engine.query.options
    chaos.tell(ev.OptionsChanged(at=0.0, options=options))
    assert chaos.engine.query.options == before
    assert next(iter(options)) in chaos.engine.query.last_rejection
    chaos.submit()
    chaos.calm()
    assert chaos.sizes() == {"j1": 1}


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
def test_queues_beyond_all_bounds_are_refused(queues: tuple[Queue, ...]) -> None:
    chaos = desk(2)
    chaos.set_queues(queues)
    assert chaos.engine.query.last_rejection
    chaos.submit()
    chaos.calm()
    assert chaos.sizes() == {"j1": 1}


@pytest.mark.parametrize("at", [None, "soon", 10**400, math.nan, math.inf, 1e308])
def test_an_event_at_no_time_does_not_move_the_clock(at: Any) -> None:
    chaos = desk(2)
    chaos.pass_time(10.0)
    chaos.engine.handle(ev.Tick(at=at))
    assert chaos.engine.query.now == 10.0
    state_of(chaos.engine).refused = 0
    chaos.submit()
    chaos.calm()
    assert chaos.sizes() == {"j1": 1}


@pytest.mark.parametrize("expires", ["x", math.nan, None])
@pytest.mark.parametrize("name", ["r", None, []])
def test_a_reservation_that_cannot_be_kept_is_never_made(name: Any, expires: Any) -> None:
    if name == "r" and expires is None:
        name = 7
    chaos = desk(2, policy="fifo")
    chaos.submit()
    kept = Reservation(id=name, node=0, devices=((0, 1000, 0),), expires=expires)
    chaos.think(spoil=_spoiled(reservations=(kept,)))
    assert chaos.engine.query.rejections == 1
    chaos.pass_time(30.0)
    chaos.calm()
    assert chaos.sizes() == {"j1": 1}


@pytest.mark.parametrize("columns", [{"reservations": None}, {"binds": None}])
def test_a_decision_without_its_lists_is_refused(columns: dict[str, Any]) -> None:
    chaos = desk(2, policy="fifo")
    chaos.submit()
    chaos.think(spoil=_spoiled(**columns))
    assert chaos.engine.query.rejections == 1


def test_a_decision_that_leaves_jobs_out_is_refused() -> None:
    chaos = desk(2, policy="fifo")
    chaos.submit()
    nothing = np.zeros(0, np.int64)
    names = ("number", "type", "count", "reason", "evidence", "rank")
    chaos.think(spoil=_spoiled(**dict.fromkeys(names, nothing)))
    assert chaos.why("j1") == "rejected"
    chaos.pass_time(30.0)
    chaos.calm()
    assert chaos.sizes() == {"j1": 1}


@pytest.mark.parametrize("gives", [("v100", 999), ("cpu", 1)])
def test_a_policy_that_is_always_wrong_about_a_lone_job_is_replaced(gives: tuple[str, int]) -> None:
    chaos = ruled_by(Wish({0: gives}), Node.of("a", {"v100": 4}))
    chaos.submit()
    for _ in range(5):
        chaos.pass_time(60.0)
        chaos.calm()
    assert chaos.sizes() == {"j1": 1}


def test_a_new_policy_does_not_sleep_as_long_as_the_old_one_would() -> None:
    chaos = desk(2, policy="fifo")
    chaos.submit(steps=1e9)
    chaos.think(spoil=_spoiled(wake_at=1e7))
    chaos.calm()
    chaos.tell(ev.PolicyChanged(at=chaos.now, name="max_min_fairness", options={"mechanism": "gavel"}))
    chaos.calm()
    chaos.submit(steps=1e9)
    chaos.calm()
    for _ in range(3):
        assert chaos.wake < 1e6
        chaos.pass_time(max(chaos.wake - chaos.now, 0.0))
        chaos.calm()
    assert chaos.sizes()["j2"] == 1


@pytest.mark.parametrize("fields", [{"min": 2, "max": 10**30}, {"max": 10**18}, {"max": 3, "priority": "x"}])
def test_an_update_that_cannot_be_changes_nothing_and_the_next_one_counts(fields: dict[str, Any]) -> None:
    chaos = desk(2)
    chaos.submit(max=2)
    chaos.submit(max=2)
    bad, good = ev.JobUpdate(number=0, **fields), ev.JobUpdate(number=1, priority=5)
    chaos.tell(ev.JobsUpdated(at=0.0, updates=(bad, good)))
    job = chaos.job("j1")
    assert (job["min"], job["max"], job["priority"]) == (1, 2, 0)
    assert chaos.job("j2")["priority"] == 5


@pytest.mark.parametrize("fields", [{"weight": math.inf}, {"steps": math.inf}])
def test_a_job_with_endless_numbers_is_set_aside(fields: dict[str, Any]) -> None:
    chaos = desk(2)
    chaos.submit(**fields)
    chaos.submit()
    chaos.calm()
    assert chaos.why("j1") == "invalid"
    assert chaos.sizes()["j2"] == 1


@pytest.mark.parametrize("submitted", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("policy", ["tiresias", "allox", "elastic-fifo"])
def test_a_job_that_came_at_no_time_came_now(policy: str, submitted: float) -> None:
    chaos = desk(2, policy=policy)
    chaos.pass_time(5.0)
    batch = JobBatch.of([Job(id="j1", submitted=0.0, steps=100.0)])
    batch = msgspec.structs.replace(batch, columns={**batch.columns, "submitted": np.array([submitted])})
    chaos.tell(ev.JobsSubmitted(at=5.0, jobs=batch))
    chaos.calm()
    assert chaos.job("j1")["submitted"] == 5.0
    assert chaos.sizes() == {"j1": 1}


def test_a_job_that_was_set_aside_meanwhile_keeps_that_reason_when_a_decision_is_refused() -> None:
    chaos = desk(2)
    both = [Job(id=name, submitted=0.0) for name in ("j1", "j2")]
    chaos.tell(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of(both)))
    state = state_of(chaos.engine)
    aside = np.array([state.world.slot("j1")])
    state.world.table.aside[aside] = 1
    state.say(aside, Code.SET_ASIDE, 5)
    chaos.think(fail=True)
    assert chaos.why("j1") == "set-aside"
    assert chaos.why("j2") == "rejected"


def test_a_job_none_of_whose_workers_is_seen_starts_again() -> None:
    chaos = desk(2)
    chaos.submit(steps=1e9)
    chaos.calm()
    generation, _ = chaos.truth.pop(0)
    nobody = ev.Observed(at=0.0, number=np.array([0]), generation=np.array([generation]), running=np.array([0]))
    chaos.tell(nobody)
    assert chaos.why("j1") in ("interrupted", "restarting", "starting")
    chaos.pass_time(600.0)
    chaos.calm()
    assert chaos.sizes() == {"j1": 1}
    assert chaos.truth[0][0] > generation
