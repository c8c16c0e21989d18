"""What the engine promises about queues and their limits."""

from __future__ import annotations

import math
from typing import Any

import pytest

from levada.core.cluster import Node
from levada.core.queue import Queue
from tests.engine.chaos import Chaos, desk
from tests.engine.inspect import state_of


def test_queues_are_sure_of_their_guarantee_and_lend_the_rest() -> None:
    chaos = desk(8)
    chaos.set_queues((Queue(name="prod", guaranteed={"v100": 6}), Queue(name="lab")))
    chaos.submit(min=1, max=8, queue="lab")
    chaos.calm()
    assert chaos.sizes() == {"j1": 8}, "what nobody claims is lent"
    chaos.submit(min=2, max=6, queue="prod")
    chaos.calm()
    assert chaos.sizes() == {"j1": 2, "j2": 6}, "and reclaimed by shrinking"


def test_a_job_is_in_its_queue_again_when_the_queue_comes_back() -> None:
    lab, prod = Queue(name="lab"), Queue(name="prod", limit={"v100": 1})
    chaos = desk(8)
    chaos.set_queues((lab, prod))
    chaos.submit(min=1, max=4, queue="prod")
    chaos.submit(min=1, max=4, queue="lab")
    chaos.users("update", 1, queue="prod")
    chaos.set_queues((lab,))
    chaos.calm()
    assert chaos.sizes() == {"j1": 4, "j2": 4}, "nobody limits the default queue"
    chaos.set_queues((prod, lab))
    chaos.calm()
    assert chaos.sizes() == {"j1": 1, "j2": 0}
    assert chaos.why("j2") == "queue-limit"


@pytest.mark.parametrize("policy", ["elastic-fifo", "dragon"])
def test_a_user_has_no_more_of_a_queue_than_one_user_may_have(policy: str) -> None:
    chaos = desk(8, policy=policy)
    chaos.set_queues((Queue(name="lab", per_user_limit={"v100": 2}),))
    for _ in range(3):
        chaos.submit(min=1, max=1, queue="lab", user="ann")
    chaos.submit(min=3, queue="lab", user="ann")
    chaos.submit(min=1, max=1, queue="lab", user="bob")
    for _ in range(6):
        chaos.calm()
        chaos.pass_time(61.0)
    assert chaos.sizes() == {"j1": 1, "j2": 1, "j3": 0, "j4": 0, "j5": 1}
    assert [chaos.why(name) for name in ("j3", "j4")] == ["user-limit", "user-limit"]
    assert chaos.engine.explain("j3").would_help == ("Less for other jobs of its user, or another queue than lab.",)
    chaos.set_queues((Queue(name="lab", per_user_limit={"v100": 6}),))
    for _ in range(6):
        chaos.calm()
        chaos.pass_time(61.0)
    assert chaos.sizes() == {"j1": 1, "j2": 1, "j3": 1, "j4": 3, "j5": 1}


@pytest.mark.parametrize("bound", ["limit", "per_user_limit"])
def test_a_policy_that_decides_by_node_passes_over_a_type_that_limits_rule_out(bound: str) -> None:
    chaos = Chaos(policy="dragon-compat", nodes=(Node.of("a", {"v100": 4, "a100": 4}),))
    lab: dict[str, Any] = {"name": "lab", bound: {"v100": 2}}
    chaos.set_queues((Queue(**lab),))
    chaos.submit(min=3, queue="lab", gpu_types=("v100", "a100"))
    for _ in range(4):
        chaos.calm()
        chaos.pass_time(61.0)
    assert chaos.engine.explain("j1").gpu_type == "a100"


@pytest.mark.parametrize("policy", ["dragon", "dragon-compat"])
def test_a_job_that_would_start_too_large_for_a_limit_starts_smaller(policy: str) -> None:
    chaos = desk(8, policy=policy)
    chaos.set_queues((Queue(name="lab", per_user_limit={"v100": 2}),))
    chaos.submit(min=1, max=6, desired=4, queue="lab")
    for _ in range(4):
        chaos.calm()
        chaos.pass_time(61.0)
    assert 1 <= chaos.sizes()["j1"] <= 2


@pytest.mark.parametrize("fails", [False, True])
def test_a_job_that_became_impossible_while_it_ran_says_so_when_it_has_stopped(fails: bool) -> None:
    chaos = desk(8)
    chaos.set_queues((Queue(name="lab"),))
    chaos.submit(min=3, queue="lab", retries=1)
    chaos.calm()
    chaos.set_queues((Queue(name="lab", limit={"v100": 2}),))
    if fails:
        chaos.break_job(0)
    chaos.calm()
    chaos.pass_time(max(chaos.wake - chaos.now, 0.0) if chaos.wake < math.inf else 0.0)
    chaos.calm()
    assert chaos.why("j1") == "queue-limit"


def test_a_limit_counts_on_the_types_that_exist() -> None:
    chaos = desk(8)
    chaos.set_queues((Queue(name="lab", limit={"v100": 2}),))
    chaos.submit(min=1, gpu_types=("k80",))
    chaos.submit(min=4, queue="lab")
    assert chaos.why("j2") == "queue-limit", "k80 has no limit, and no GPU either"


def test_faulty_queues_change_nothing() -> None:
    chaos = desk(4)
    before = state_of(chaos.engine).world.queues
    for queues in ((Queue(name="a", parent="a"),), (Queue(name="a", weight=0.0),), (Queue(name="a", parent="b"),)):
        chaos.set_queues(queues)
        assert state_of(chaos.engine).world.queues is before
        assert "queue a" in chaos.engine.query.last_rejection
