"""Guards leave young jobs alone, but not where their users want them otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from levada.core import events as ev
from levada.core.cluster import Node
from levada.core.job import Preemptible
from tests import kernel_modes
from tests.engine.chaos import Chaos, desk

GUARDS = {"min_run_s": 60.0, "cooldown_s": 30.0}


@pytest.fixture(params=["interpreted", "compiled"], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "compiled":
        pytest.importorskip("numba")
    kernel_modes.use(request.param)
    yield
    kernel_modes.use("interpreted")


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


@pytest.mark.parametrize("policy", ["elastic-fifo", "srjf"])
def test_a_job_that_its_user_calls_preemptible_is_not_spared_for_being_young(policy: str) -> None:
    for kind, sizes in ((Preemptible.ALWAYS, {"j1": 4, "j2": 0}), (Preemptible.AT_ONCE, {"j1": 2, "j2": 2})):
        chaos = running(4, preemptible=kind)
        if policy == "srjf":
            chaos = desk(4, **GUARDS)
            chaos.switch_policy(policy)
            chaos.submit(min=4, steps=1000.0, preemptible=kind, resizes_in_place=False)
            chaos.calm()
            sizes = {"j1": 4, "j2": 0} if kind == Preemptible.ALWAYS else {"j1": 0, "j2": 2}
        chaos.submit(min=2, steps=5.0)
        chaos.calm()
        assert chaos.sizes() == sizes


def test_a_job_that_its_user_calls_preemptible_is_left_alone_after_a_resize() -> None:
    chaos = running(4, preemptible=Preemptible.AT_ONCE)
    chaos.submit(min=1)
    chaos.calm()
    assert chaos.sizes() == {"j1": 3, "j2": 1}
    chaos.submit(min=1)
    chaos.calm()
    assert chaos.sizes() == {"j1": 3, "j2": 1, "j3": 0}
    chaos.pass_time(30.0)
    chaos.calm()
    assert chaos.sizes() == {"j1": 2, "j2": 1, "j3": 1}


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


# --- jobs for which another size costs next to nothing --------------------------------------------------------------


def cheap(chaos: Chaos, seconds: float = 0.1, times: int = 8) -> Chaos:
    """The same after its first job was seen to stand still so long for a resize."""
    for _ in range(times):
        told = {"number": np.array([0]), "generation": np.array([chaos.job("j1")["generation"]])}
        chaos.tell(ev.Paused(at=chaos.now, seconds=np.array([seconds]), **told))
    return chaos


def test_a_young_job_that_resizes_cheaply_shrinks_for_another_and_grows_again() -> None:
    chaos = cheap(running(4))
    chaos.submit(min=1, max=4)
    chaos.calm()
    assert chaos.sizes() == {"j1": 2, "j2": 2}
    assert chaos.now == 5.0
    chaos.users("cancel", 1)
    chaos.pass_time(29.0)
    chaos.calm()
    assert chaos.sizes() == {"j1": 2}, "a resize counts for a while, whatever it cost"
    chaos.pass_time(1.0)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4}
    assert chaos.now < GUARDS["min_run_s"]


@pytest.mark.parametrize(("fields", "seconds"), [({}, 5.0), ({"resizes_in_place": False}, 0.1)])
def test_a_young_job_for_which_it_is_dear_is_left_alone(fields: dict[str, object], seconds: float) -> None:
    chaos = cheap(running(4, preemptible=Preemptible.ALWAYS, **fields), seconds)
    chaos.submit(min=1, max=4)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4, "j2": 0}


def test_a_young_job_is_not_stopped_however_cheaply_it_resizes() -> None:
    chaos = cheap(running(4))
    chaos.submit(min=4, max=4, priority=9)
    chaos.calm()
    assert chaos.sizes() == {"j1": 1, "j2": 0}
    chaos.submit(min=3, max=3, priority=8)
    chaos.calm()
    assert chaos.sizes() == {"j1": 1, "j2": 0, "j3": 3}
    chaos.pass_time(120.0)
    chaos.calm()
    assert chaos.sizes() == {"j1": 0, "j2": 4, "j3": 0}


def test_a_young_job_does_not_go_to_another_type_however_cheaply_it_resizes() -> None:
    chaos = cheap(running(4))
    chaos.submit(min=1, max=4)
    chaos.calm()
    chaos.nodes["v"] = Node.of("v", {"a100": 4})
    chaos.tell(ev.NodesAdded(at=chaos.now, nodes=(chaos.nodes["v"],)))
    chaos.pass_time(40.0)
    chaos.calm()
    assert chaos.sizes() == {"j1": 2, "j2": 2}
    chaos.pass_time(60.0)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4, "j2": 4}


def test_why_a_young_job_has_its_size_is_told_as_it_is() -> None:
    chaos = running(4, max=8)
    assert "left alone" in chaos.engine.explain("j1").reason.text
    cheap(chaos)
    chaos.submit(min=1)
    chaos.calm()
    chaos.pass_time(31.0)
    assert "left alone" not in chaos.engine.explain("j1").reason.text
