"""Sizes fixed by users within the range of a job, and restarts of jobs without a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from levada.core import events as ev
from levada.core.job import Phase, Preemptible
from levada.core.queue import Queue
from tests import kernel_modes
from tests.engine.faulty_world import FaultyWorld, faulty_world


@pytest.fixture(params=["interpreted", "compiled"], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "compiled":
        pytest.importorskip("numba")
    kernel_modes.use(request.param)
    yield
    kernel_modes.use("interpreted")


def fixed(*gpus: int, size: int, policy: str = "elastic-fifo", **fields: object) -> FaultyWorld:
    """A job with a range of 1 to 4 that its user fixed at a size."""
    system = faulty_world(*gpus, policy=policy)
    system.submit(**{"min": 1, "max": 4, **fields})
    system.calm()
    system.users("update", 0, fixed=size)
    system.calm()
    assert system.sizes()["j1"] == size
    return system


@pytest.mark.parametrize("policy", ["elastic-fifo", "fifo", "elastic-srjf", "tiresias", "ffdl", "max_min_fairness"])
def test_a_fixed_size_job_survives_a_lost_worker_and_grows_back(policy: str) -> None:
    system = fixed(4, size=3, policy=policy, steps=1e9)
    system.break_worker(0, 2)
    assert (system.job("j1")["phase"], system.job("j1")["count"]) == (Phase.RUNNING, 2), "no retry is needed"
    system.calm()
    system.pass_time(61.0)
    system.calm()
    assert system.sizes() == {"j1": 3}
    assert (system.job("j1")["restarts"], system.job("j1")["min"]) == (0, 3)


def test_a_fixed_size_job_is_smaller_while_room_is_missing() -> None:
    system = fixed(2, 2, size=4)
    home = system.engine.explain("j1").nodes
    assert home == ("n0", "n1")
    (first, _), *_ = system.truth[0][1][0]
    away = "n1" if first == "n0" else "n0"
    system.lose_node(away)
    system.calm()
    assert system.sizes() == {"j1": 2}
    system.pass_time(61.0)
    system.calm()
    assert (system.sizes(), system.job("j1")["restarts"]) == ({"j1": 2}, 0)
    system.return_node(away)
    system.calm()
    system.pass_time(61.0)
    system.calm()
    assert system.sizes() == {"j1": 4}


@pytest.mark.parametrize("policy", ["tiresias", "elastic-tiresias", "fifo", "max_min_fairness"])
def test_a_rigid_policy_does_not_stop_a_fixed_size_job_after_a_loss(policy: str) -> None:
    system = fixed(4, 2, 2, size=4, policy=policy, milli=2000, steps=1e9)
    system.lose_node("n0")
    for _ in range(3):
        system.calm()
        system.pass_time(61.0)
    assert system.sizes() == {"j1": 2}, "two nodes with room for one worker each remain"
    system.return_node("n0")
    for _ in range(3):
        system.calm()
        system.pass_time(61.0)
    assert system.sizes() == {"j1": 4}
    assert (system.job("j1")["min"], system.job("j1")["desired"]) == (4, 4)


@pytest.mark.parametrize("policy", ["elastic-fifo", "fifo", "tiresias", "srjf", "afs-l", "ffdl", "max_min_fairness"])
@pytest.mark.parametrize("limit", ["gpus", "queue", "user"])
def test_a_running_job_fixed_above_the_capacity_keeps_running(policy: str, limit: str) -> None:
    system = faulty_world(4 if limit == "gpus" else 8, policy=policy)
    limits = {"queue": {"limit": {"v100": 4}}, "user": {"per_user_limit": {"v100": 4}}}.get(limit, {})
    system.set_queues((Queue(name="lab", **limits),))
    system.submit(min=2, max=2, queue="lab", steps=1e9)
    system.submit(min=1, max=4, queue="lab", steps=1e9)
    system.calm()
    system.users("update", 1, fixed=2)
    system.calm()
    system.users("update", 1, fixed=3)
    for _ in range(3):
        system.calm()
        system.pass_time(61.0)
    assert system.sizes() == {"j1": 2, "j2": 2}
    assert (system.job("j2")["restarts"], system.job("j2")["fixed"]) == (0, 3)
    system.finish(0)
    for _ in range(3):
        system.calm()
        system.pass_time(61.0)
    assert system.sizes() == {"j2": 3}
    assert (system.job("j2")["min"], system.job("j2")["below_fixed"]) == (3, 0)


def test_a_fixed_size_is_not_shrunk_and_ends_with_a_new_range() -> None:
    system = fixed(4, size=3)
    system.submit(min=2)
    system.calm()
    assert system.sizes() == {"j1": 3, "j2": 0}
    assert (system.job("j1")["own_min"], system.job("j1")["own_max"]) == (1, 4)
    assert "Fixed by its user at 3 workers." in system.engine.explain("j1").reason.text
    system.users("update", 0, max=4)
    system.pass_time(61.0)
    system.calm()
    assert system.sizes() == {"j1": 2, "j2": 2}
    assert system.job("j1")["fixed"] == 0


def test_a_fixed_size_outside_the_range_widens_it() -> None:
    system = fixed(6, size=6)
    assert (system.job("j1")["own_min"], system.job("j1")["own_max"]) == (1, 6)


def test_a_forced_size_lifts_the_protection_once() -> None:
    system = faulty_world(4)
    system.submit(min=1, max=4, preemptible=Preemptible.AUTO, resizes_in_place=False)
    system.calm()
    system.users("update", 0, fixed=2)
    system.calm()
    assert system.sizes() == {"j1": 4}, "the job has no checkpoint"
    system.users("update", 0, fixed=2, force=True)
    system.calm()
    assert system.job("j1")["held"] == 2
    system.users("update", 0, min=1, max=1)
    system.calm()
    assert system.job("j1")["held"] == 2
    system.save(0)
    system.calm()
    assert system.job("j1")["held"] == 1


def test_force_does_not_lift_the_protection_for_others() -> None:
    system = faulty_world(4)
    system.submit(min=1, max=3, preemptible=Preemptible.AUTO, resizes_in_place=False)
    system.calm()
    system.users("update", 0, fixed=3, force=True)
    system.submit(min=2)
    system.pass_time(61.0)
    system.calm()
    assert system.sizes() == {"j1": 3, "j2": 0}, "the job has the requested size"


def test_a_restart_within_a_resize_is_counted_and_invalidates_the_checkpoint() -> None:
    system = faulty_world(4)
    system.submit(min=1, max=4, preemptible=Preemptible.AUTO, resizes_in_place=False)
    system.calm()
    system.save(0)
    system.users("update", 0, fixed=2)
    while system.thoughts:
        system.think()
    job = system.job("j1")
    assert job["phase"] == Phase.RESIZING
    system.tell(ev.JobsRestarted(at=system.now, number=np.array([0]), generation=np.array([job["generation"]])))
    system.calm()
    assert (system.job("j1")["restarts"], system.job("j1")["resizes"], system.job("j1")["saved"]) == (1, 1, 0)
    system.users("update", 0, fixed=1)
    system.calm()
    assert system.job("j1")["held"] == 2


def test_a_backend_report_of_a_restart_overrides_resize_in_place() -> None:
    system = faulty_world(4)
    system.submit(min=1, max=4, preemptible=Preemptible.AUTO, resizes_in_place=True)
    system.calm()
    system.tell(ev.ResizeModes(at=system.now, number=np.array([0, 99]), in_place=np.array([0, 1])))
    system.submit(min=2)
    system.pass_time(61.0)
    system.calm()
    assert system.sizes() == {"j1": 4, "j2": 0}, "its progress would be lost"
    assert system.why("j2") == "capacity"
