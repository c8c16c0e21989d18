"""Queues: guarantees, borrowing and limits."""

from __future__ import annotations

import math
from typing import Any

import pytest

from levada.core import events as ev
from levada.core.cluster import Node
from levada.core.queue import Queue
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld, faulty_world


def test_queues_get_their_guarantee_and_lend_the_rest() -> None:
    system = faulty_world(8)
    system.set_queues((Queue(name="prod", guaranteed={"v100": 6}), Queue(name="lab")))
    system.submit(min=1, max=8, queue="lab")
    system.calm()
    assert system.sizes() == {"j1": 8}, "unused guarantees are lent"
    system.submit(min=2, max=6, queue="prod")
    system.calm()
    assert system.sizes() == {"j1": 2, "j2": 6}, "and reclaimed by shrinking"


def test_a_job_returns_to_its_queue_when_the_queue_returns() -> None:
    lab, prod = Queue(name="lab"), Queue(name="prod", limit={"v100": 1})
    system = faulty_world(8)
    system.set_queues((lab, prod))
    system.submit(min=1, max=4, queue="prod")
    system.submit(min=1, max=4, queue="lab")
    system.users("update", 1, queue="prod")
    system.set_queues((lab,))
    system.calm()
    assert system.sizes() == {"j1": 4, "j2": 4}, "the default queue has no limit"
    system.set_queues((prod, lab))
    system.calm()
    assert system.sizes() == {"j1": 1, "j2": 0}
    assert system.why("j2") == "queue-limit"


@pytest.mark.parametrize("policy", ["elastic-fifo", "dragon"])
def test_the_user_limit_of_a_queue_holds(policy: str) -> None:
    system = faulty_world(8, policy=policy)
    system.set_queues((Queue(name="lab", per_user_limit={"v100": 2}),))
    for _ in range(3):
        system.submit(min=1, max=1, queue="lab", user="ann")
    system.submit(min=3, queue="lab", user="ann")
    system.submit(min=1, max=1, queue="lab", user="bob")
    for _ in range(6):
        system.calm()
        system.pass_time(61.0)
    assert system.sizes() == {"j1": 1, "j2": 1, "j3": 0, "j4": 0, "j5": 1}
    assert [system.why(name) for name in ("j3", "j4")] == ["user-limit", "user-limit"]
    assert system.engine.explain("j3").would_help == (
        "Fewer GPUs for other jobs of its user, or another queue than lab.",
    )
    system.set_queues((Queue(name="lab", per_user_limit={"v100": 6}),))
    for _ in range(6):
        system.calm()
        system.pass_time(61.0)
    assert system.sizes() == {"j1": 1, "j2": 1, "j3": 1, "j4": 3, "j5": 1}


@pytest.mark.parametrize("bound", ["limit", "per_user_limit"])
def test_a_node_level_policy_skips_types_excluded_by_limits(bound: str) -> None:
    system = FaultyWorld(policy="dragon-compat", nodes=(Node.of("a", {"v100": 4, "a100": 4}),))
    lab: dict[str, Any] = {"name": "lab", bound: {"v100": 2}}
    system.set_queues((Queue(**lab),))
    system.submit(min=3, queue="lab", gpu_types=("v100", "a100"))
    for _ in range(4):
        system.calm()
        system.pass_time(61.0)
    assert system.engine.explain("j1").gpu_type == "a100"


@pytest.mark.parametrize("policy", ["dragon", "dragon-compat"])
def test_a_job_starts_smaller_to_respect_a_limit(policy: str) -> None:
    system = faulty_world(8, policy=policy)
    system.set_queues((Queue(name="lab", per_user_limit={"v100": 2}),))
    system.submit(min=1, max=6, desired=4, queue="lab")
    for _ in range(4):
        system.calm()
        system.pass_time(61.0)
    assert 1 <= system.sizes()["j1"] <= 2


@pytest.mark.parametrize("fails", [False, True])
def test_a_job_that_becomes_unplaceable_while_running_says_so_after_it_stops(fails: bool) -> None:
    system = faulty_world(8)
    system.set_queues((Queue(name="lab"),))
    system.submit(min=3, queue="lab", retries=1)
    system.calm()
    system.set_queues((Queue(name="lab", limit={"v100": 2}),))
    if fails:
        system.break_job(0)
    system.calm()
    system.pass_time(max(system.wake - system.now, 0.0) if system.wake < math.inf else 0.0)
    system.calm()
    assert system.why("j1") == "queue-limit"


def test_a_limit_applies_to_existing_types() -> None:
    system = faulty_world(8)
    system.set_queues((Queue(name="lab", limit={"v100": 2}),))
    system.submit(min=1, gpu_types=("k80",))
    system.submit(min=4, queue="lab")
    assert system.why("j2") == "queue-limit", "k80 has no limit, and no GPU either"


def test_invalid_queues_change_nothing() -> None:
    system = faulty_world(4)
    before = state_of(system.engine).world.queues
    for queues in ((Queue(name="a", parent="a"),), (Queue(name="a", weight=0.0),), (Queue(name="a", parent="b"),)):
        system.engine.handle(ev.QueuesChanged(at=0.0, queues=queues))
        assert state_of(system.engine).world.queues is before
        assert "queue a" in system.engine.query.last_rejection
