"""Sizes that users fix: a wish inside the job's own range. And what a restart costs a job that has saved nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from levada.core import events as ev
from levada.core.job import Phase, Preemptible
from levada.core.queue import Queue
from tests import kernel_modes
from tests.engine.chaos import Chaos, desk


@pytest.fixture(params=["interpreted", "compiled"], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "compiled":
        pytest.importorskip("numba")
    kernel_modes.use(request.param)
    yield
    kernel_modes.use("interpreted")


def fixed(*gpus: int, size: int, policy: str = "elastic-fifo", **fields: object) -> Chaos:
    """A job with a range of 1 to 4 that its user fixed at a size."""
    chaos = desk(*gpus, policy=policy)
    chaos.submit(**{"min": 1, "max": 4, **fields})
    chaos.calm()
    chaos.users("update", 0, fixed=size)
    chaos.calm()
    assert chaos.sizes()["j1"] == size
    return chaos


@pytest.mark.parametrize("policy", ["elastic-fifo", "fifo", "elastic-srjf", "tiresias", "ffdl", "max_min_fairness"])
def test_it_survives_a_lost_worker_and_grows_back(policy: str) -> None:
    chaos = fixed(4, size=3, policy=policy, steps=1e9)
    chaos.break_worker(0, 2)
    assert (chaos.job("j1")["phase"], chaos.job("j1")["count"]) == (Phase.RUNNING, 2), "no retry is needed"
    chaos.calm()
    chaos.pass_time(61.0)
    chaos.calm()
    assert chaos.sizes() == {"j1": 3}
    assert (chaos.job("j1")["restarts"], chaos.job("j1")["min"]) == (0, 3)


def test_it_is_smaller_while_its_size_cannot_be_had() -> None:
    chaos = fixed(2, 2, size=4)
    home = chaos.engine.explain("j1").nodes
    assert home == ("n0", "n1")
    (first, _), *_ = chaos.truth[0][1][0]
    away = "n1" if first == "n0" else "n0"
    chaos.lose_node(away)
    chaos.calm()
    assert chaos.sizes() == {"j1": 2}
    chaos.pass_time(61.0)
    chaos.calm()
    assert (chaos.sizes(), chaos.job("j1")["restarts"]) == ({"j1": 2}, 0)
    chaos.return_node(away)
    chaos.calm()
    chaos.pass_time(61.0)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4}


@pytest.mark.parametrize("policy", ["tiresias", "elastic-tiresias", "fifo", "max_min_fairness"])
def test_a_policy_that_gives_the_asked_size_or_nothing_does_not_stop_it_after_a_loss(policy: str) -> None:
    chaos = fixed(4, 2, 2, size=4, policy=policy, milli=2000, steps=1e9)
    chaos.lose_node("n0")
    for _ in range(3):
        chaos.calm()
        chaos.pass_time(61.0)
    assert chaos.sizes() == {"j1": 2}, "two nodes with room for one worker each are left"
    chaos.return_node("n0")
    for _ in range(3):
        chaos.calm()
        chaos.pass_time(61.0)
    assert chaos.sizes() == {"j1": 4}
    assert (chaos.job("j1")["min"], chaos.job("j1")["desired"]) == (4, 4)


@pytest.mark.parametrize("policy", ["elastic-fifo", "fifo", "tiresias", "srjf", "afs-l", "ffdl", "max_min_fairness"])
@pytest.mark.parametrize("limit", ["gpus", "queue", "user"])
def test_a_running_job_that_is_fixed_at_more_than_there_is_room_for_goes_on(policy: str, limit: str) -> None:
    chaos = desk(4 if limit == "gpus" else 8, policy=policy)
    limits = {"queue": {"limit": {"v100": 4}}, "user": {"per_user_limit": {"v100": 4}}}.get(limit, {})
    chaos.set_queues((Queue(name="lab", **limits),))
    chaos.submit(min=2, max=2, queue="lab", steps=1e9)
    chaos.submit(min=1, max=4, queue="lab", steps=1e9)
    chaos.calm()
    chaos.users("update", 1, fixed=2)
    chaos.calm()
    chaos.users("update", 1, fixed=3)
    for _ in range(3):
        chaos.calm()
        chaos.pass_time(61.0)
    assert chaos.sizes() == {"j1": 2, "j2": 2}
    assert (chaos.job("j2")["restarts"], chaos.job("j2")["fixed"]) == (0, 3)
    chaos.finish(0)
    for _ in range(3):
        chaos.calm()
        chaos.pass_time(61.0)
    assert chaos.sizes() == {"j2": 3}
    assert (chaos.job("j2")["min"], chaos.job("j2")["below_fixed"]) == (3, 0)


def test_nobody_makes_it_smaller_and_a_new_range_ends_it() -> None:
    chaos = fixed(4, size=3)
    chaos.submit(min=2)
    chaos.calm()
    assert chaos.sizes() == {"j1": 3, "j2": 0}
    assert (chaos.job("j1")["own_min"], chaos.job("j1")["own_max"]) == (1, 4)
    assert "Its user fixed it at 3 workers." in chaos.engine.explain("j1").reason.text
    chaos.users("update", 0, max=4)
    chaos.pass_time(61.0)
    chaos.calm()
    assert chaos.sizes() == {"j1": 2, "j2": 2}
    assert chaos.job("j1")["fixed"] == 0


def test_a_size_outside_its_range_widens_it() -> None:
    chaos = fixed(6, size=6)
    assert (chaos.job("j1")["own_min"], chaos.job("j1")["own_max"]) == (1, 6)


def test_a_forced_size_is_taken_once_and_then_the_job_is_protected_again() -> None:
    chaos = desk(4)
    chaos.submit(min=1, max=4, preemptible=Preemptible.AUTO, resizes_in_place=False)
    chaos.calm()
    chaos.users("update", 0, fixed=2)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4}, "it has saved nothing"
    chaos.users("update", 0, fixed=2, force=True)
    chaos.calm()
    assert chaos.job("j1")["held"] == 2
    chaos.users("update", 0, min=1, max=1)
    chaos.calm()
    assert chaos.job("j1")["held"] == 2
    chaos.save(0)
    chaos.calm()
    assert chaos.job("j1")["held"] == 1


def test_force_does_not_open_a_job_to_others() -> None:
    chaos = desk(4)
    chaos.submit(min=1, max=3, preemptible=Preemptible.AUTO, resizes_in_place=False)
    chaos.calm()
    chaos.users("update", 0, fixed=3, force=True)
    chaos.submit(min=2)
    chaos.pass_time(61.0)
    chaos.calm()
    assert chaos.sizes() == {"j1": 3, "j2": 0}, "it has the size that was asked for"


def test_a_restart_within_a_resize_is_counted_and_what_was_saved_before_is_no_checkpoint_of_it() -> None:
    chaos = desk(4)
    chaos.submit(min=1, max=4, preemptible=Preemptible.AUTO, resizes_in_place=False)
    chaos.calm()
    chaos.save(0)
    chaos.users("update", 0, fixed=2)
    while chaos.thoughts:
        chaos.think()
    job = chaos.job("j1")
    assert job["phase"] == Phase.RESIZING
    chaos.tell(ev.JobsRestarted(at=chaos.now, number=np.array([0]), generation=np.array([job["generation"]])))
    chaos.calm()
    assert (chaos.job("j1")["restarts"], chaos.job("j1")["resizes"], chaos.job("j1")["saved"]) == (1, 1, 0)
    chaos.users("update", 0, fixed=1)
    chaos.calm()
    assert chaos.job("j1")["held"] == 2


def test_a_backend_that_restarts_what_another_resized_in_place_is_believed() -> None:
    chaos = desk(4)
    chaos.submit(min=1, max=4, preemptible=Preemptible.AUTO, resizes_in_place=True)
    chaos.calm()
    chaos.tell(ev.ResizeModes(at=chaos.now, number=np.array([0, 99]), in_place=np.array([0, 1])))
    chaos.submit(min=2)
    chaos.pass_time(61.0)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4, "j2": 0}, "its work would be lost"
    assert chaos.why("j2") == "capacity"
