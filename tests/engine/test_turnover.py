"""Between its rounds a policy is asked about jobs that come and go only where one of them could be placed."""

from __future__ import annotations

import numpy as np
import pytest

from levada.core.cluster import Node
from levada.core.job import Phase
from tests.engine.chaos import Chaos
from tests.engine.inspect import state_of

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


def test_between_rounds_a_policy_sees_only_who_waits_and_what_is_free() -> None:
    chaos = full(1)
    chaos.submit(min=1, max=1, steps=1e9, workload="w")
    snap = chaos.thoughts[0].snapshot
    assert snap.fill
    assert snap.jobs.number.tolist() == [1]
    assert snap.capacity.tolist()[1:] == [1000]
    chaos.calm()
    chaos.pass_time(ROUND_S)
    snap = chaos.thoughts[0].snapshot
    assert not snap.fill
    assert snap.jobs.number.tolist() == [0, 1]
    assert snap.capacity.tolist()[1:] == [2000]


def test_whoever_must_be_thought_of_anew_brings_all_others_into_view() -> None:
    chaos = full(1)
    chaos.submit(min=1, max=1, steps=1e9, workload="w")
    chaos.calm()
    chaos.lose_node("n")
    assert not chaos.thoughts[0].snapshot.fill


def test_jobs_keep_their_place_in_line_between_rounds() -> None:
    chaos = full(4)
    table = state_of(chaos.engine).world.table
    waits = table.order[table.count[table.order] == 0]
    before = table.rank[waits].tolist()
    chaos.submit(min=2, max=2, steps=1e9, workload="w")
    chaos.finish(next(number for number in chaos.truth if table.count[table.find(np.array([number]))[0]] > 0))
    assert chaos.thoughts[0].snapshot.fill
    chaos.think()
    assert table.rank[waits].tolist() == before
    assert table.rank[table.order[-1]] > max(before), "who came last stands last"


@pytest.mark.parametrize(("jobs", "asked"), [(2, False), (3, True)])
def test_when_a_job_ends_somebody_must_wait_for_its_gpus_to_matter(jobs: int, asked: bool) -> None:
    chaos = full(jobs)
    chaos.finish(next(iter(chaos.truth)))
    assert bool(chaos.thoughts) is asked


def test_a_lost_node_is_heard_of_at_once() -> None:
    chaos = full(2)
    chaos.lose_node("n")
    assert chaos.thoughts
