"""A job that no decision could touch, because an operation on it was under way, is thought of when it is done."""

from __future__ import annotations

import math

import pytest

from levada.core.cluster import Node
from levada.core.job import Phase
from tests.engine.chaos import Chaos

POLICIES = (
    "elastic-fifo",
    "tiresias",
    "ffdl",
    "dragon",
    "gavel-fifo",
    "max_min_fairness",
    "max_min_fairness_packed",
    "isolated",
)


def crew(policy: str, others: int) -> Chaos:
    """One job of four GPUs, some of one, and GPUs to spare; all of them run."""
    chaos = Chaos(policy=policy, nodes=tuple(Node.of(f"n{place}", {"v100": 2}) for place in range(6)))
    chaos.submit(min=4, max=4, steps=1e9, workload="w")
    for _ in range(others):
        chaos.submit(min=1, max=1, steps=1e9, workload="w")
    chaos.calm()
    chaos.pass_time(1000.0)
    chaos.calm()
    assert chaos.job("j1")["phase"] == Phase.RUNNING
    return chaos


def runs_again(chaos: Chaos) -> bool:
    """Whether the first job runs at some time, if only time passes."""
    for _ in range(20):
        if chaos.job("j1")["phase"] == Phase.RUNNING:
            return True
        if math.isinf(chaos.wake):
            return False
        chaos.pass_time(max(chaos.wake - chaos.now, 0.0))
        chaos.calm()
    return False


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_lost_a_node_runs_again(policy: str, others: int) -> None:
    chaos = crew(policy, others)
    chaos.lose_node(next(iter(chaos.truth[0][1].values()))[0][0])
    chaos.calm()
    assert runs_again(chaos)


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_is_resumed_while_it_stops_runs_again(policy: str, others: int) -> None:
    chaos = crew(policy, others)
    chaos.users("suspend", 0)
    while chaos.thoughts:
        chaos.think()
    chaos.users("resume", 0)
    chaos.calm()
    assert runs_again(chaos)
