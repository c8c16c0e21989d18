"""Between its rounds a policy is asked about jobs that come and go only where one of them could be placed."""

from __future__ import annotations

import pytest

from levada.core.cluster import Node
from levada.core.job import Phase
from tests.engine.chaos import Chaos

ROUND_S = 360.0


def full(jobs: int) -> Chaos:
    """Two GPUs and so many jobs of one GPU, some seconds after a round began."""
    chaos = Chaos(policy="max_min_fairness", nodes=(Node.of("n", {"v100": 2}),))
    for _ in range(jobs):
        chaos.submit(min=1, max=1, steps=1e9, workload="w")
    chaos.calm()
    chaos.pass_time(ROUND_S)
    chaos.calm()
    chaos.pass_time(5.0)
    assert not chaos.thoughts
    return chaos


def test_a_job_that_comes_while_all_gpus_are_taken_waits_for_the_next_round() -> None:
    chaos = full(2)
    chaos.submit(min=1, max=1, steps=1e9, workload="w")
    assert not chaos.thoughts
    assert chaos.wake == pytest.approx(chaos.now - 5.0 + ROUND_S)
    chaos.pass_time(chaos.wake - chaos.now)
    assert chaos.thoughts


def test_a_job_that_comes_while_a_gpu_is_free_is_placed_at_once() -> None:
    chaos = full(1)
    chaos.submit(min=1, max=1, steps=1e9, workload="w")
    assert chaos.thoughts
    chaos.calm()
    assert chaos.job("j2")["phase"] == Phase.RUNNING


@pytest.mark.parametrize(("jobs", "asked"), [(2, False), (3, True)])
def test_when_a_job_ends_somebody_must_wait_for_its_gpus_to_matter(jobs: int, asked: bool) -> None:
    chaos = full(jobs)
    chaos.finish(next(iter(chaos.truth)))
    assert bool(chaos.thoughts) is asked


def test_a_lost_node_is_heard_of_at_once() -> None:
    chaos = full(2)
    chaos.lose_node("n")
    assert chaos.thoughts
