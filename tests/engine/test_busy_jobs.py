"""A job that was skipped by a decision because of a pending operation gets a decision afterwards."""

from __future__ import annotations

import math

import pytest

from levada.core.cluster import Node
from levada.core.job import Phase
from tests.engine.faulty_world import FaultyWorld

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


def crew(policy: str, others: int) -> FaultyWorld:
    """One running job of four GPUs, some of one GPU, and free GPUs."""
    system = FaultyWorld(policy=policy, nodes=tuple(Node.of(f"n{place}", {"v100": 2}) for place in range(6)))
    system.submit(min=4, max=4, steps=1e9, workload="w")
    for _ in range(others):
        system.submit(min=1, max=1, steps=1e9, workload="w")
    system.calm()
    system.pass_time(1000.0)
    system.calm()
    assert system.job("j1")["phase"] == Phase.RUNNING
    return system


def runs_again(system: FaultyWorld) -> bool:
    """Whether the first job runs eventually as time passes."""
    for _ in range(20):
        if system.job("j1")["phase"] == Phase.RUNNING:
            return True
        if math.isinf(system.wake):
            return False
        system.pass_time(max(system.wake - system.now, 0.0))
        system.calm()
    return False


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_lost_a_node_runs_again(policy: str, others: int) -> None:
    system = crew(policy, others)
    system.lose_node(next(iter(system.truth[0][1].values()))[0][0])
    system.calm()
    assert runs_again(system)


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_resumed_while_it_stops_runs_again(policy: str, others: int) -> None:
    system = crew(policy, others)
    system.users("suspend", 0)
    while system.thoughts:
        system.think()
    system.users("resume", 0)
    system.calm()
    assert runs_again(system)
