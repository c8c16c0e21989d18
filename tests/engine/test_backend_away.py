"""An unreachable backend: nothing is issued, nothing times out, and no job fails."""

from __future__ import annotations

import math

import numpy as np

from levada.core import events as ev
from levada.core.commands import Apply, Decide
from levada.engine import persist
from levada.policies import registry
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld, faulty_world


def _away(system: FaultyWorld) -> None:
    system.tell(ev.BackendAway(at=system.now))


def _back(system: FaultyWorld) -> None:
    system.tell(ev.BackendBack(at=system.now))


def test_nothing_is_issued_while_the_backend_is_away() -> None:
    system = faulty_world(4)
    _away(system)
    system.submit(min=2)
    system.pass_time(1000.0)
    assert not system.ops
    assert not system.thoughts
    _back(system)
    system.calm()
    assert system.sizes() == {"j1": 2}


def test_a_decision_under_way_is_kept_and_issued_later() -> None:
    system = faulty_world(4)
    system.submit(min=2)
    _away(system)
    system.think()
    assert not system.ops
    assert system.job("j1")["count"] == 2
    _back(system)
    assert len(system.ops) == 1


def test_deadlines_move_by_the_length_of_the_outage() -> None:
    system = faulty_world(4, op_timeout_s=60.0)
    system.submit(min=2)
    system.think()
    system.pass_time(50.0)
    _away(system)
    for _ in range(10):
        system.pass_time(500.0)
    assert system.job("j1")["failures"] == 0
    _back(system)
    system.pass_time(9.0)
    assert system.job("j1")["failures"] == 0
    assert system.job("j1")["op_deadline"] == system.now + 1.0
    system.pass_time(2.0)
    assert system.job("j1")["failures"] == 1


def test_an_outage_is_not_learned_as_the_duration_of_a_stop() -> None:
    system = faulty_world(4)
    system.submit(min=2)
    system.think()
    issued = system.job("j1")["issued_at"]
    _away(system)
    system.pass_time(500.0)
    _back(system)
    assert system.job("j1")["issued_at"] == issued + 500.0


def test_a_pending_job_says_that_the_backend_is_unreachable() -> None:
    system = faulty_world(4)
    system.submit(min=2)
    system.submit(min=9)
    _away(system)
    system.submit(min=4)
    system.pass_time(120.0)
    for name in ("j1", "j3"):
        reason = system.engine.query.reason(name)
        assert reason.code == "backend-away"
        assert reason.text == "The backend has been unreachable for 120 s; nothing is started or stopped."
    assert system.engine.query.reason("j2").code == "too-large", "that does not depend on the backend"
    _back(system)
    assert system.engine.query.reason("j1").code != "backend-away"


def test_cancelled_jobs_stop_when_the_backend_is_back() -> None:
    system = faulty_world(4)
    system.submit(min=2)
    system.calm()
    _away(system)
    system.users("cancel", 0)
    assert not system.ops
    _back(system)
    system.calm()
    assert system.ended == [0]


def test_repeated_reports_change_nothing() -> None:
    system = faulty_world(4, op_timeout_s=60.0)
    _back(system)
    system.submit(min=2)
    system.think()
    _away(system)
    system.pass_time(30.0)
    _away(system)
    system.pass_time(30.0)
    _back(system)
    _back(system)
    assert system.job("j1")["op_deadline"] == 120.0


def test_reservations_do_not_expire_while_the_backend_is_away() -> None:
    system = faulty_world(4, reservation_s=60.0)
    system.foreign("web", milli=1000, serving=True)
    system.calm()
    system.pass_time(50.0)
    _away(system)
    system.pass_time(500.0)
    assert "web" in system.engine.query.reservations
    _back(system)
    system.pass_time(9.0)
    assert "web" in system.engine.query.reservations
    system.pass_time(2.0)
    assert "web" not in system.engine.query.reservations


def test_the_outage_is_dumped_and_ends_with_a_restart() -> None:
    system = faulty_world(4)
    system.submit(min=2)
    system.think()
    system.pass_time(10.0)
    _away(system)
    engine = persist.load(persist.dump(system.engine), registry.make).engine
    assert state_of(engine).away_since == 10.0
    assert not [c for c in engine.handle(ev.Tick(at=5000.0)) if isinstance(c, Apply | Decide)]
    engine.handle(ev.Restarted(at=5000.0))
    state = state_of(engine)
    assert state.away_since is None
    assert state.world.table.op_deadline[state.living()].min() > 5000.0


def test_no_wake_is_due_for_operations_while_away() -> None:
    system = faulty_world(4)
    system.submit(min=2)
    system.think()
    _away(system)
    assert system.wake == math.inf
    _back(system)
    assert np.isfinite(system.wake)
