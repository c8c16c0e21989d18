"""A job that exits voluntarily with a checkpoint is restarted and does not fail."""

from __future__ import annotations

import itertools

from levada.core.reasons import Code, reason
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld, faulty_world


def restart_backoff(system: FaultyWorld) -> float:
    """Let the job start and exit; return its backoff."""
    system.calm()
    system.leave(0)
    assert system.job("j1")["reason"] == Code.LEFT
    pause = float(system.job("j1")["retry_at"]) - system.now
    system.pass_time(pause + 1.0)
    return pause


def test_a_voluntary_exit_is_restarted_with_backoff_and_without_a_retry() -> None:
    system = faulty_world(4, backoff_s=5.0, backoff_max_s=300.0)
    system.submit(min=2, retries=0)
    pauses = [restart_backoff(system) for _ in range(10)]
    system.calm()
    assert system.sizes() == {"j1": 2}
    assert (system.job("j1")["restarts"], system.job("j1")["retried"]) == (10, 0)
    assert all(later > 1.1 * sooner for sooner, later in itertools.pairwise(pauses[:6]))
    assert 3 <= pauses[0] <= 7
    assert max(pauses) <= 375
    system.pass_time(100.0)
    assert restart_backoff(system) <= 7, "the backoff is reset after a long run"


def test_other_jobs_may_use_the_devices_during_the_backoff() -> None:
    system = faulty_world(2)
    system.submit(min=2)
    system.calm()
    system.leave(0)
    system.submit(min=2)
    system.calm()
    assert system.sizes() == {"j1": 0, "j2": 2}
    assert system.job("j1")["reason"] == Code.LEFT
    assert "Exited with code 75" in reason(Code.LEFT, 1).text


def test_a_cancelled_job_that_exits_voluntarily_ends() -> None:
    system = faulty_world(2)
    system.submit(min=2)
    system.calm()
    system.users("cancel", 0)
    system.leave(0)
    system.calm()
    assert system.active() == []
    assert not state_of(system.engine).leaves
