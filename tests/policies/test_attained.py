"""Tiresias's queues over time: demotion, promotion, and the next wake time."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from levada.core.codec import _decode_column, _encode_column
from levada.perf.table_model import TableModel
from levada.policies.attained_service import NO_JOBS, Attained, advance, queue_order, state_in_queues
from levada.policies.tiresias import Tiresias
from levada.tables.cluster_state import ClusterState
from tests.builders import cluster, job, world

LIMITS = np.array([3600.0])
LINEAR = TableModel([])


def runs(there: ClusterState, name: str, workers: int, *, since: float, service: float = 0.0, ran: float = 0.0) -> None:
    table, slot = there.table, there.slot(name)
    table.count[slot] = table.observed[slot] = workers
    table.type[slot] = 1
    table.first_started[slot] = min(table.first_started[slot], since)
    table.since[slot] = since
    table.gpu_seconds[slot], table.running_s[slot] = service, ran


def waits(there: ClusterState, name: str, *, since: float, waited: float = 0.0) -> None:
    table, slot = there.table, there.slot(name)
    table.count[slot] = table.observed[slot] = 0
    table.type[slot] = -1
    table.since[slot], table.waiting_s[slot] = since, waited


def queue_of(state: Attained, there: ClusterState, name: str) -> int:
    return int(state.queue[state.number.searchsorted(there.numbers[name])])


def test_a_job_goes_down_when_it_reaches_the_limit_and_not_before() -> None:
    there = world(cluster(4), job("a", min=4))
    runs(there, "a", 4, since=0.0)
    _, state = advance(NO_JOBS, there.snapshot(899.75), LIMITS, 8.0)
    assert queue_of(state, there, "a") == 0
    _, state = advance(state, there.snapshot(900.0), LIMITS, 8.0)
    assert queue_of(state, there, "a") == 1


def test_service_adds_up_over_runs() -> None:
    there = world(cluster(4), job("a", min=4))
    runs(there, "a", 4, since=1000.0, service=3500.0, ran=875.0)
    _, state = advance(NO_JOBS, there.snapshot(1025.0), LIMITS, 8.0)
    assert queue_of(state, there, "a") == 1


def test_a_job_comes_back_after_waiting_eight_times_what_it_ran_and_counts_anew() -> None:
    there = world(cluster(4), job("a", min=4))
    runs(there, "a", 4, since=1000.0, service=4000.0, ran=1000.0)
    _, state = advance(NO_JOBS, there.snapshot(1000.0), LIMITS, 8.0)
    waits(there, "a", since=1000.0)
    _, state = advance(state, there.snapshot(8999.0), LIMITS, 8.0)
    assert queue_of(state, there, "a") == 1
    positions, state = advance(state, there.snapshot(9000.0), LIMITS, 8.0)
    assert queue_of(state, there, "a") == 0
    assert positions.service.tolist() == positions.running_s.tolist() == positions.waiting_s.tolist() == [0.0]
    # It neither falls back at once nor later before it has attained as much again.
    runs(there, "a", 4, since=9000.0, service=4000.0, ran=1000.0)
    there.table.waiting_s[there.slot("a")] = 8000.0
    _, state = advance(state, there.snapshot(9899.0), LIMITS, 8.0)
    assert queue_of(state, there, "a") == 0
    _, state = advance(state, there.snapshot(9900.0), LIMITS, 8.0)
    assert queue_of(state, there, "a") == 1


def test_a_running_job_and_one_that_never_ran_are_not_promoted() -> None:
    there = world(cluster(4), job("ran", min=2), job("new", min=2))
    runs(there, "ran", 2, since=100.0, service=4000.0, ran=1.0)
    there.table.waiting_s[there.slot("ran")] = 1e6
    waits(there, "new", since=0.0, waited=1e6)
    state = msgspec.structs.replace(state_in_queues(there.snapshot(0.0), np.array([1, 1])), gpu_seconds=np.zeros(2))
    state = msgspec.structs.replace(state, running_s=np.zeros(2), waiting_s=np.zeros(2))
    _, state = advance(state, there.snapshot(100.0), LIMITS, 8.0)
    assert state.queue.tolist() == [1, 1]


def test_a_promoted_job_stands_behind_those_that_wait_and_before_those_that_come() -> None:
    there = world(cluster(4), job("back"), job("early", 1.0), job("runs", 2.0))
    runs(there, "back", 1, since=5.0, service=4000.0, ran=10.0)
    waits(there, "back", since=5.0)
    runs(there, "runs", 1, since=50.0)
    _, state = advance(NO_JOBS, there.snapshot(60.0), LIMITS, 8.0)
    _, state = advance(state, there.snapshot(90.0), LIMITS, 8.0)
    assert queue_of(state, there, "back") == 0
    there.add_jobs(_batch(job("late", 95.0)))
    snap = there.snapshot(100.0)
    positions, _ = advance(state, snap, LIMITS, 8.0)
    order = [there.ids[int(snap.jobs.number[row])] for row in queue_order(snap, positions)]
    assert order == ["runs", "early", "back", "late"]


def _batch(*created: Any) -> Any:
    from levada.core.batch import JobBatch

    return JobBatch.of(created)


def test_a_given_queue_stays_until_time_passes() -> None:
    there = world(cluster(4), job("a"), job("b"), job("c"))
    runs(there, "a", 1, since=0.0, service=9999.0, ran=9999.0)
    waits(there, "b", since=0.0, waited=9999.0)
    there.table.running_s[there.slot("b")] = 1.0
    snap = there.snapshot(500.0)
    positions, state = advance(state_in_queues(snap, np.array([0, 1, 7])), snap, LIMITS, 8.0)
    assert positions.queue.tolist() == [0, 1, 1]
    assert advance(state, snap, LIMITS, 8.0)[0].queue.tolist() == [0, 1, 1]


def test_wake_at_is_when_the_next_job_moves() -> None:
    there = world(cluster(4), job("a", min=2, max=2), job("b", min=2, max=2), job("c", min=1))
    runs(there, "a", 2, since=100.0, service=3000.0, ran=1500.0)
    runs(there, "b", 2, since=100.0, service=1000.0, ran=500.0)
    policy = Tiresias()
    decision, state = policy.decide(there.snapshot(100.0), LINEAR, policy.initial(0))
    assert decision.wake_at == 400.0
    decision, state = policy.decide(there.snapshot(400.0), LINEAR, state)
    assert queue_of(state, there, "a") == 1
    assert decision.count.tolist() == [0, 2, 1]
    assert decision.wake_at == 1400.0
    # A job that ran briefly and waits in the second queue comes back after eight times that.
    runs(there, "a", 2, since=400.0, service=3600.0, ran=20.0)
    waits(there, "a", since=400.0)
    decision, _ = policy.decide(there.snapshot(400.0), LINEAR, state)
    assert decision.wake_at == 560.0


@pytest.mark.parametrize("start", [0.0, 1.7e9])
def test_waking_at_wake_at_always_leads_on(start: float) -> None:
    """Rounding must neither stop the clock nor miss the move."""
    there = world(cluster(3), job("a", min=3))
    runs(there, "a", 3, since=start, service=0.1, ran=0.1)
    policy, state, now = Tiresias(queue_limit=0.7), NO_JOBS, start
    for _ in range(5):
        decision, state = policy.decide(there.snapshot(now), LINEAR, state)
        if queue_of(state, there, "a"):
            break
        assert decision.wake_at > now
        now = decision.wake_at
    assert queue_of(state, there, "a") == 1
    assert now == pytest.approx(start + 0.2, abs=1e-5)
    assert decision.wake_at == math.inf


def test_jobs_that_are_over_are_forgotten_and_slots_do_not_matter() -> None:
    there = world(cluster(4), job("a"), job("b"))
    runs(there, "b", 1, since=0.0, service=4000.0, ran=4000.0)
    _, state = advance(NO_JOBS, there.snapshot(0.0), LIMITS, 8.0)
    there.remove_jobs(np.array([there.slot("a")]))
    there.add_jobs(_batch(job("c", 5.0)))
    _, state = advance(state, there.snapshot(6.0), LIMITS, 8.0)
    assert state.number.tolist() == [1, 2]
    assert state.queue.tolist() == [1, 0]


def test_the_state_survives_its_bytes() -> None:
    there = world(cluster(4), job("a"), job("b"))
    runs(there, "b", 1, since=0.0, service=4000.0, ran=4000.0)
    _, state = advance(NO_JOBS, there.snapshot(0.0), LIMITS, 8.0)
    data = msgspec.msgpack.Encoder(enc_hook=_encode_column).encode(state)
    back = msgspec.msgpack.Decoder(Attained, dec_hook=_decode_column).decode(data)
    for field in Attained.__struct_fields__:
        assert getattr(back, field).tolist() == getattr(state, field).tolist()
