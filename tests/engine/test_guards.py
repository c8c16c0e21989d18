"""Guards leave young jobs alone, but not where their users want them otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from levada.core import events as ev
from levada.core.job import Preemptible
from levada.kernels import switch
from tests.engine.chaos import Chaos, desk

GUARDS = {"min_run_s": 60.0, "cooldown_s": 30.0}


@pytest.fixture(params=["numpy", "numba"], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "numba":
        pytest.importorskip("numba")
    switch.use(request.param)
    yield
    switch.use("numpy")


def running(*gpus: int, **fields: object) -> Chaos:
    """A cluster of these nodes, and a job on it that has just started."""
    chaos = desk(*gpus, **GUARDS)
    chaos.submit(**{"min": 1, "max": 4, **fields})
    chaos.calm()
    chaos.pass_time(5.0)
    chaos.calm()
    return chaos


def test_a_user_who_makes_a_young_job_smaller_need_not_wait() -> None:
    chaos = running(4)
    assert chaos.sizes() == {"j1": 4}
    chaos.users("update", 0, min=2, max=2)
    chaos.calm()
    assert chaos.job("j1")["held"] == 2
    assert chaos.now == 5.0


def test_a_user_who_makes_a_young_job_larger_need_not_wait() -> None:
    chaos = running(4, max=1)
    chaos.users("update", 0, min=3, max=3)
    chaos.calm()
    assert chaos.job("j1")["held"] == 3


def test_a_change_that_comes_while_a_job_starts_is_made_when_it_runs() -> None:
    chaos = desk(4, **GUARDS)
    chaos.submit(min=1, max=4)
    chaos.think()
    chaos.users("update", 0, min=2, max=2)
    chaos.calm()
    assert chaos.job("j1")["held"] == 2


def test_a_change_within_which_the_job_stays_does_not_lift_its_guards() -> None:
    chaos = running(4)
    chaos.users("update", 0, min=2, max=4)
    chaos.submit(min=2)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4, "j2": 0}
    chaos.pass_time(55.0)
    chaos.calm()
    assert chaos.sizes() == {"j1": 2, "j2": 2}


def test_a_job_that_would_end_soon_is_made_smaller_all_the_same_when_its_user_says_so() -> None:
    chaos = desk(4, **GUARDS)
    chaos.submit(min=1, max=4, steps=40.0, resizes_in_place=False)
    chaos.calm()
    chaos.users("update", 0, min=2, max=2)
    chaos.calm()
    assert chaos.job("j1")["held"] == 2


def test_only_the_first_checkpoint_of_a_run_is_news() -> None:
    chaos = running(4, resizes_in_place=False, preemptible=Preemptible.AUTO)
    decisions = chaos.decisions
    for _ in range(5):
        chaos.pass_time(3.0)
        saved = ev.CheckpointSaved(at=chaos.now, number=np.array([0]), generation=np.array([1]))
        chaos.tell(saved)
        chaos.calm()
    assert chaos.job("j1")["saved"] == 1
    assert chaos.decisions == decisions + 1
