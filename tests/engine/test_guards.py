"""Guards protect young jobs from the policy, but not from requests of their users."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from levada.core import events as ev
from levada.core.cluster import Node
from levada.core.job import Preemptible
from tests import kernel_modes
from tests.engine.faulty_world import FaultyWorld, faulty_world

GUARDS = {"min_run_s": 60.0, "cooldown_s": 30.0}


@pytest.fixture(params=["interpreted", "compiled"], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "compiled":
        pytest.importorskip("numba")
    kernel_modes.use(request.param)
    yield
    kernel_modes.use("interpreted")


def running(*gpus: int, **fields: object) -> FaultyWorld:
    """A cluster of these nodes with a job that has just started."""
    system = faulty_world(*gpus, **GUARDS)
    system.submit(**{"min": 1, "max": 4, **fields})
    system.calm()
    system.pass_time(5.0)
    system.calm()
    return system


def test_a_shrink_by_the_user_ignores_the_guard() -> None:
    system = running(4)
    assert system.sizes() == {"j1": 4}
    system.users("update", 0, min=2, max=2)
    system.calm()
    assert system.job("j1")["held"] == 2
    assert system.now == 5.0


def test_a_growth_by_the_user_ignores_the_guard() -> None:
    system = running(4, max=1)
    system.users("update", 0, min=3, max=3)
    system.calm()
    assert system.job("j1")["held"] == 3


def test_a_change_during_the_start_is_applied_when_the_job_runs() -> None:
    system = faulty_world(4, **GUARDS)
    system.submit(min=1, max=4)
    system.think()
    system.users("update", 0, min=2, max=2)
    system.calm()
    assert system.job("j1")["held"] == 2


def test_a_change_that_keeps_the_size_valid_does_not_lift_the_guards() -> None:
    system = running(4)
    system.users("update", 0, min=2, max=4)
    system.submit(min=2)
    system.calm()
    assert system.sizes() == {"j1": 4, "j2": 0}
    system.pass_time(55.0)
    system.calm()
    assert system.sizes() == {"j1": 2, "j2": 2}


@pytest.mark.parametrize("policy", ["elastic-fifo", "srjf"])
def test_a_young_preemptible_job_is_preempted(policy: str) -> None:
    for kind, sizes in ((Preemptible.ALWAYS, {"j1": 4, "j2": 0}), (Preemptible.AT_ONCE, {"j1": 2, "j2": 2})):
        system = running(4, preemptible=kind)
        if policy == "srjf":
            system = faulty_world(4, **GUARDS)
            system.switch_policy(policy)
            system.submit(min=4, steps=1000.0, preemptible=kind, resizes_in_place=False)
            system.calm()
            sizes = {"j1": 4, "j2": 0} if kind == Preemptible.ALWAYS else {"j1": 0, "j2": 2}
        system.submit(min=2, steps=5.0)
        system.calm()
        assert system.sizes() == sizes


def test_a_preemptible_job_is_guarded_after_a_resize() -> None:
    system = running(4, preemptible=Preemptible.AT_ONCE)
    system.submit(min=1)
    system.calm()
    assert system.sizes() == {"j1": 3, "j2": 1}
    system.submit(min=1)
    system.calm()
    assert system.sizes() == {"j1": 3, "j2": 1, "j3": 0}
    system.pass_time(30.0)
    system.calm()
    assert system.sizes() == {"j1": 2, "j2": 1, "j3": 1}


def test_a_shrink_by_the_user_ignores_the_payback_guard() -> None:
    system = faulty_world(4, **GUARDS)
    system.submit(min=1, max=4, steps=40.0, resizes_in_place=False)
    system.calm()
    system.users("update", 0, min=2, max=2)
    system.calm()
    assert system.job("j1")["held"] == 2


def test_only_the_first_checkpoint_of_a_run_triggers_a_decision() -> None:
    system = running(4, resizes_in_place=False, preemptible=Preemptible.AUTO)
    decisions = system.decisions
    for _ in range(5):
        system.pass_time(3.0)
        saved = ev.CheckpointSaved(at=system.now, number=np.array([0]), generation=np.array([1]))
        system.tell(saved)
        system.calm()
    assert system.job("j1")["saved"] == 1
    assert system.decisions == decisions + 1


# --- jobs with cheap resizes ----------------------------------------------------------------------------------------


def cheap(system: FaultyWorld, seconds: float = 0.1, times: int = 8) -> FaultyWorld:
    """The same after its first job reported resize pauses of *seconds*."""
    for _ in range(times):
        fields = {"number": np.array([0]), "generation": np.array([system.job("j1")["generation"]])}
        system.tell(ev.Paused(at=system.now, seconds=np.array([seconds]), **fields))
    return system


def test_a_young_job_with_cheap_resizes_shrinks_and_grows_again() -> None:
    system = cheap(running(4))
    system.submit(min=1, max=4)
    system.calm()
    assert system.sizes() == {"j1": 2, "j2": 2}
    assert system.now == 5.0
    system.users("cancel", 1)
    system.pass_time(29.0)
    system.calm()
    assert system.sizes() == {"j1": 2}, "the cooldown follows every resize, whatever its cost"
    system.pass_time(1.0)
    system.calm()
    assert system.sizes() == {"j1": 4}
    assert system.now < GUARDS["min_run_s"]


@pytest.mark.parametrize(("fields", "seconds"), [({}, 5.0), ({"resizes_in_place": False}, 0.1)])
def test_a_young_job_with_costly_resizes_is_guarded(fields: dict[str, object], seconds: float) -> None:
    system = cheap(running(4, preemptible=Preemptible.ALWAYS, **fields), seconds)
    system.submit(min=1, max=4)
    system.calm()
    assert system.sizes() == {"j1": 4, "j2": 0}


def test_a_young_job_with_cheap_resizes_is_not_stopped() -> None:
    system = cheap(running(4))
    system.submit(min=4, max=4, priority=9)
    system.calm()
    assert system.sizes() == {"j1": 1, "j2": 0}
    system.submit(min=3, max=3, priority=8)
    system.calm()
    assert system.sizes() == {"j1": 1, "j2": 0, "j3": 3}
    system.pass_time(120.0)
    system.calm()
    assert system.sizes() == {"j1": 0, "j2": 4, "j3": 0}


def test_a_young_job_with_cheap_resizes_does_not_change_type() -> None:
    system = cheap(running(4))
    system.submit(min=1, max=4)
    system.calm()
    system.nodes["v"] = Node.of("v", {"a100": 4})
    system.tell(ev.NodesAdded(at=system.now, nodes=(system.nodes["v"],)))
    system.pass_time(40.0)
    system.calm()
    assert system.sizes() == {"j1": 2, "j2": 2}
    system.pass_time(60.0)
    system.calm()
    assert system.sizes() == {"j1": 4, "j2": 4}


def test_explain_reports_the_guard_of_a_young_job() -> None:
    system = running(4, max=8)
    assert "Not resized for another" in system.engine.explain("j1").reason.text
    cheap(system)
    system.submit(min=1)
    system.calm()
    system.pass_time(31.0)
    assert "Not resized for another" not in system.engine.explain("j1").reason.text
