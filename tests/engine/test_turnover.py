"""Between rounds, submissions and ends of jobs trigger a decision only if a job could be placed."""

from __future__ import annotations

import numpy as np
import pytest

from levada.core.cluster import Node
from levada.core.job import Phase
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld

ROUND_S = 360.0


def full(jobs: int) -> FaultyWorld:
    """Two GPUs and *jobs* jobs of one GPU, some seconds after the start of a round."""
    system = FaultyWorld(policy="max_min_fairness", nodes=(Node.of("n", {"v100": 2}),))
    for _ in range(jobs):
        system.submit(min=1, max=1, steps=1e9, workload="w")
    system.calm()
    system.pass_time(ROUND_S)
    system.calm()
    system.pass_time(5.0)
    assert not system.thoughts
    return system


def test_a_job_submitted_to_a_full_cluster_waits_for_the_next_round() -> None:
    system = full(2)
    system.submit(min=1, max=1, steps=1e9, workload="w")
    assert not system.thoughts
    assert system.wake == pytest.approx(system.now - 5.0 + ROUND_S)
    system.pass_time(system.wake - system.now)
    assert system.thoughts


def test_a_job_submitted_while_a_gpu_is_free_is_placed_at_once() -> None:
    system = full(1)
    system.submit(min=1, max=1, steps=1e9, workload="w")
    assert system.thoughts
    system.calm()
    assert system.job("j2")["phase"] == Phase.RUNNING


def test_between_rounds_a_policy_sees_only_pending_jobs_and_free_gpus() -> None:
    system = full(1)
    system.submit(min=1, max=1, steps=1e9, workload="w")
    snap = system.thoughts[0].snapshot
    assert snap.fill
    assert snap.jobs.number.tolist() == [1]
    assert snap.capacity.tolist()[1:] == [1000]
    system.calm()
    system.pass_time(ROUND_S)
    snap = system.thoughts[0].snapshot
    assert not snap.fill
    assert snap.jobs.number.tolist() == [0, 1]
    assert snap.capacity.tolist()[1:] == [2000]


def test_a_job_that_needs_a_new_decision_makes_all_jobs_visible() -> None:
    system = full(1)
    system.submit(min=1, max=1, steps=1e9, workload="w")
    system.calm()
    system.lose_node("n")
    assert not system.thoughts[0].snapshot.fill


def test_jobs_keep_their_queue_order_between_rounds() -> None:
    system = full(4)
    table = state_of(system.engine).world.table
    waits = table.order[table.count[table.order] == 0]
    before = table.rank[waits].tolist()
    system.submit(min=2, max=2, steps=1e9, workload="w")
    system.finish(next(number for number in system.truth if table.count[table.find(np.array([number]))[0]] > 0))
    assert system.thoughts[0].snapshot.fill
    system.think()
    assert table.rank[waits].tolist() == before
    assert table.rank[table.order[-1]] > max(before), "the last submission has the last rank"


@pytest.mark.parametrize(("jobs", "asked"), [(2, False), (3, True)])
def test_a_job_end_triggers_a_decision_only_if_a_job_is_pending(jobs: int, asked: bool) -> None:
    system = full(jobs)
    system.finish(next(iter(system.truth)))
    assert bool(system.thoughts) is asked


def test_a_lost_node_triggers_a_decision_at_once() -> None:
    system = full(2)
    system.lose_node("n")
    assert system.thoughts
