"""A job that leaves by itself with a checkpoint starts again, and never fails by it."""

from __future__ import annotations

import itertools

from levada.core.reasons import Code, reason
from tests.engine.chaos import Chaos, desk
from tests.engine.inspect import state_of


def left(chaos: Chaos) -> float:
    """Lets the job start and leave; for how long it is left to wait."""
    chaos.calm()
    chaos.leave(0)
    assert chaos.job("j1")["reason"] == Code.LEFT
    pause = float(chaos.job("j1")["retry_at"]) - chaos.now
    chaos.pass_time(pause + 1.0)
    return pause


def test_it_starts_again_without_a_retry_after_pauses_that_grow() -> None:
    chaos = desk(4, backoff_s=5.0, backoff_max_s=300.0)
    chaos.submit(min=2, retries=0)
    pauses = [left(chaos) for _ in range(10)]
    chaos.calm()
    assert chaos.sizes() == {"j1": 2}
    assert (chaos.job("j1")["restarts"], chaos.job("j1")["retried"]) == (10, 0)
    assert all(later > 1.1 * sooner for sooner, later in itertools.pairwise(pauses[:6]))
    assert 3 <= pauses[0] <= 7
    assert max(pauses) <= 375
    chaos.pass_time(100.0)
    assert left(chaos) <= 7, "it had run for a while"


def test_others_may_have_its_devices_meanwhile_and_it_says_why_it_waits() -> None:
    chaos = desk(2)
    chaos.submit(min=2)
    chaos.calm()
    chaos.leave(0)
    chaos.submit(min=2)
    chaos.calm()
    assert chaos.sizes() == {"j1": 0, "j2": 2}
    assert chaos.job("j1")["reason"] == Code.LEFT
    assert "left by itself with exit code 75" in reason(Code.LEFT, 1).text


def test_one_that_is_being_cancelled_just_goes() -> None:
    chaos = desk(2)
    chaos.submit(min=2)
    chaos.calm()
    chaos.users("cancel", 0)
    chaos.leave(0)
    chaos.calm()
    assert chaos.active() == []
    assert not state_of(chaos.engine).leaves
