"""Guarantees of the engine with a reliable backend, one per test."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from levada.core import codec
from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Node
from levada.core.commands import Apply, Decide, JobsEnded, Wake
from levada.core.job import Job, Phase, Preemptible
from levada.core.plan import Op, OpKind
from levada.core.reasons import Code
from levada.engine import Engine, Options, run_policy
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld, faulty_world


def test_every_phase_of_a_job_has_a_reason() -> None:
    system = faulty_world(4)
    system.submit(min=2, max=4)
    assert system.why("j1") == "new"
    system.think()
    assert system.job("j1")["phase"] == Phase.STARTING
    assert system.why("j1") == "starting"
    system.carry_out()
    system.calm()
    assert system.job("j1")["phase"] == Phase.RUNNING
    assert system.sizes() == {"j1": 4}
    system.users("suspend", 0)
    assert system.job("j1")["phase"] == Phase.STOPPING
    system.calm()
    assert system.job("j1")["phase"] == Phase.SUSPENDED
    assert system.why("j1") == "suspended"
    system.users("resume", 0)
    system.calm()
    assert system.job("j1")["phase"] == Phase.RUNNING
    system.finish(0)
    assert system.active() == []


def test_a_slow_release_does_not_delay_other_jobs() -> None:
    system = faulty_world(4, 4)
    for _ in range(2):
        system.submit(min=1, max=4)
    system.calm()
    system.tell(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of([Job(id=n, submitted=0.0, min=2, max=2) for n in "xy"])))
    system.think()
    slow, quick = system.ops
    assert {slow.kind, quick.kind} == {OpKind.RESIZE}
    system.ops = [quick]
    system.carry_out()
    while system.reports:
        system.deliver()
    starts = [op for op in system.ops if op.kind == OpKind.START]
    assert len(starts) == 1, "the job that waits for the quick one starts"
    assert set(starts[0].adds) == set(quick.drops)
    assert system.job(slow.job)["phase"] == Phase.RESIZING


def test_run_times_count_observed_workers_not_planned_ones() -> None:
    system = faulty_world(4)
    system.submit(min=2, max=2)
    system.pass_time(10.0)
    system.think()
    system.pass_time(20.0)
    system.carry_out()
    system.pass_time(30.0)
    system.calm()
    system.pass_time(100.0)
    state_of(system.engine).account(state_of(system.engine).living())
    job = system.job("j1")
    assert (job["waiting_s"], job["running_s"], job["gpu_seconds"]) == (60.0, 100.0, 200.0)
    system.tell(ev.WorkersStopped(at=system.now, number=np.array([0]), generation=np.array([1]), running=np.array([1])))
    system.pass_time(10.0)
    state_of(system.engine).account(state_of(system.engine).living())
    assert system.job("j1")["gpu_seconds"] == 210.0


def test_the_rate_limit_batches_events_and_loses_none() -> None:
    engine = Engine(cluster=Cluster(nodes=(Node.of("n", {"v100": 8}),)), options=Options(rate_limit_s=30.0))
    decided, wakes = 0, []
    for i in range(100):
        jobs = JobBatch.of([Job(id=f"j{i}", submitted=i * 0.1)])
        commands = engine.handle(ev.JobsSubmitted(at=i * 0.1, jobs=jobs))
        for decide in [command for command in commands if isinstance(command, Decide)]:
            decided += 1
            commands += engine.handle(run_policy(decide, i * 0.1))
        wakes += [command.at for command in commands if isinstance(command, Wake)]
    assert decided == 1
    assert wakes == [300.0, 30.0], "first the timeout of the start, then the pending submissions; no busy loop"
    (decide,) = [c for c in engine.handle(ev.Tick(at=30.0)) if isinstance(c, Decide)]
    assert len(decide.snapshot) == 99, "all pending submissions, without the starting job"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"min": 9}, "too-large"),
        ({"min": 1, "gpu_types": ("h100",)}, "unknown-type"),
        ({"min": 1, "milli": 5000}, "too-large"),
        ({"min": 1, "cpu": 99_000}, "too-large"),
    ],
)
def test_an_unplaceable_job_says_so_and_blocks_no_other(fields: dict[str, Any], code: str) -> None:
    system = FaultyWorld(nodes=(Node.of("a", {"v100": 4}, cpu=16000), Node.of("b", {"v100": 4}, cpu=16000)))
    system.submit(**fields)
    system.submit(min=1, max=8)
    system.calm()
    assert system.why("j1") == code
    assert system.engine.explain("j1").would_help
    assert system.sizes()["j2"] == 8
    system.tell(ev.NodesAdded(at=0.0, nodes=(Node.of("c", {"h100": 8, "v100": 8}),)))
    system.calm()
    assert system.job("j1")["phase"] == Phase.RUNNING


def test_a_job_starts_after_its_dependencies() -> None:
    system = faulty_world(4)
    system.submit(min=1)
    system.submit(min=1, after=("j1",))
    system.submit(min=1, after=("j2",))
    system.calm()
    assert [system.why(name) for name in ("j2", "j3")] == ["dependency", "dependency"]
    system.finish(0)
    system.calm()
    assert system.job("j2")["phase"] == Phase.RUNNING
    system.users("cancel", 1)
    system.calm()
    assert system.why("j3") == "dependency-failed"


@pytest.mark.parametrize("event", [ev.CheckpointSaved, ev.SavesOnStop])
def test_protected_jobs_are_not_changed_before_a_checkpoint(event: type[ev.CheckpointSaved]) -> None:
    system = faulty_world(4)
    system.submit(min=1, max=4, preemptible=Preemptible.AUTO, resizes_in_place=False)
    system.calm()
    system.submit(min=2)
    system.calm()
    assert system.sizes() == {"j1": 4, "j2": 0}
    generation = np.array([system.job("j1")["generation"]])
    system.tell(event(at=0.0, number=np.array([0]), generation=generation))
    system.calm()
    assert system.sizes() == {"j1": 2, "j2": 2}


def test_a_job_that_resizes_in_place_needs_no_checkpoint() -> None:
    system = faulty_world(4)
    system.submit(min=1, max=4, preemptible=Preemptible.AUTO, resizes_in_place=False)
    system.calm()
    system.submit(min=2, max=2)
    system.calm()
    assert system.sizes() == {"j1": 4, "j2": 0}
    generation = np.array([system.job("j1")["generation"]])
    system.tell(ev.ResizesInPlace(at=0.0, number=np.array([0]), generation=generation))
    system.calm()
    assert system.sizes() == {"j1": 2, "j2": 2}


def test_after_a_restart_pending_operations_are_issued_again() -> None:
    engine = Engine(cluster=Cluster(nodes=(Node.of("n0", {"v100": 4}),)))
    engine.handle(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of([Job(id="a", submitted=0.0)])))
    commands = engine.handle(ev.Restarted(at=5.0))
    (decide,) = [command for command in commands if isinstance(command, Decide)]
    (apply,) = [command for command in engine.handle(run_policy(decide, 5.0)) if isinstance(command, Apply)]
    (op,) = engine.ops(apply.plan)
    (again,) = engine.outstanding()
    assert (again.job, again.kind, again.generation, again.grant) == (op.job, op.kind, op.generation, op.grant)


def started() -> tuple[Engine, Op]:
    """An engine with one job, and its unacknowledged start."""
    engine = Engine(cluster=Cluster(nodes=(Node.of("n0", {"v100": 4}),)), options=Options(op_timeout_s=300.0))
    commands = engine.handle(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of([Job(id="a", submitted=0.0)])))
    (decide,) = [command for command in commands if isinstance(command, Decide)]
    engine.handle(run_policy(decide, 0.0))
    (op,) = engine.outstanding()
    return engine, op


def test_after_a_restart_operations_get_their_full_timeout() -> None:
    engine, op = started()
    engine.handle(ev.Restarted(at=4000.0))
    engine.handle(ev.Tick(at=4299.0))
    assert [operation.generation for operation in engine.outstanding()] == [op.generation]


def test_after_a_restart_a_stop_replaces_a_pending_start() -> None:
    """The start cannot be applied again, since it has no grant."""
    engine, op = started()
    number = np.array([op.number])
    engine.handle(ev.JobsCancelled(at=1.0, number=number))
    assert engine.outstanding() == []
    commands = engine.handle(ev.Restarted(at=2.0))
    (apply,) = [command for command in commands if isinstance(command, Apply)]
    (stop,) = engine.ops(apply.plan)
    assert (stop.kind, stop.generation) == (OpKind.STOP, op.generation + 1)
    over = engine.handle(ev.Released(at=3.0, number=number, generation=np.array([stop.generation])))
    (ended,) = [command for command in over if isinstance(command, JobsEnded)]
    assert ended.phase.tolist() == [Phase.CANCELLED]


def test_a_fault_tolerant_job_survives_the_loss_of_worker_0() -> None:
    system = faulty_world(4)
    system.submit(min=1, max=4)
    system.calm()
    generation = np.array([system.job("j1")["generation"]])
    system.tell(ev.ResizesInPlace(at=0.0, number=np.array([0]), generation=generation))
    system.break_worker(0, 0)
    assert system.job("j1")["phase"] == Phase.RUNNING
    assert system.job("j1")["held"] == 3


def test_a_non_preemptible_job_keeps_all_its_devices() -> None:
    system = faulty_world(4, policy="srjf")
    system.submit(min=4, preemptible=Preemptible.NEVER, steps=1e6)
    system.calm()
    system.submit(min=1, steps=1.0)
    system.calm()
    assert system.sizes() == {"j1": 4, "j2": 0}


def test_young_jobs_are_guarded_and_the_engine_wakes_when_the_guard_ends() -> None:
    system = faulty_world(4, policy="srjf", min_run_s=45.0)
    system.submit(min=4, steps=1e6)
    system.calm()
    system.submit(min=4, steps=1.0)
    system.calm()
    assert system.sizes() == {"j1": 4, "j2": 0}
    assert system.wake == 45.0
    system.pass_time(45.0)
    system.calm()
    assert system.sizes() == {"j1": 0, "j2": 4}
    assert system.why("j1") == "preempted"


def test_the_time_limit_of_a_cancelled_job_does_not_wake_the_engine() -> None:
    system = FaultyWorld(nodes=(Node.of("a", {"v100": 1}),))
    system.submit(min=1, time_limit_s=100.0)
    system.calm()
    system.users("cancel", 0)
    while system.ops:
        system.carry_out(lose=True)
    system.pass_time(150.0)
    assert system.wake > system.now
    assert system.job("j1")["phase"] == Phase.STOPPING


def test_a_time_limit_ends_a_job() -> None:
    system = faulty_world(2)
    system.submit(min=1, time_limit_s=100.0)
    system.calm()
    while system.wake < math.inf and not system.ended:
        assert system.now < 100.0
        system.pass_time(system.wake - system.now)
        system.calm()
    assert system.ended == [0]
    assert system.now == 100.0, "the engine wakes exactly in time"


def test_a_job_that_exits_at_its_time_limit_fails_and_is_not_restarted() -> None:
    system = faulty_world(2)
    system.submit(min=1, time_limit_s=100.0)
    system.calm()
    # The engine was not woken in time, e.g. without a server: the worker's lease ended.
    left = ev.JobsLeft(at=106.0, number=np.array([0]), generation=np.array([1]))
    (ended,) = [command for command in system.engine.handle(left) if isinstance(command, JobsEnded)]
    assert (ended.phase.tolist(), ended.reason.tolist()) == ([Phase.FAILED], [Code.TIME_LIMIT])


def test_explain_names_remedies_and_jobs_ahead() -> None:
    system = faulty_world(4, policy="fifo")
    system.submit(min=4)
    system.submit(min=3)
    system.submit(min=2)
    system.calm()
    explanation = system.engine.explain("j3")
    assert explanation.phase == "Pending"
    assert explanation.before == ("j2",)
    assert explanation.position == 2
    assert explanation.would_help == ("2 more v100 GPUs (0 free now).",)
    with pytest.raises(KeyError):
        system.engine.explain("unknown")


def test_a_fork_is_independent() -> None:
    system = faulty_world(4)
    system.submit(min=1, max=4)
    system.calm()
    twin = system.engine.fork()
    before = state_of(system.engine).world.target.owner.copy()
    jobs = JobBatch.of([Job(id="x", submitted=1.0, min=2, max=2)])
    commands = twin.handle(ev.JobsSubmitted(at=1.0, jobs=jobs))
    (decide,) = [c for c in commands if isinstance(c, Decide)]
    (apply,) = [c for c in twin.handle(run_policy(decide, 1.0)) if isinstance(c, Apply)]
    assert len(apply.plan) == 1
    assert (state_of(system.engine).world.target.owner == before).all()
    assert system.active() == [0]
    assert "x" in state_of(twin).world.numbers


@pytest.mark.parametrize("policy", ["elastic-fifo", "elastic-tiresias", "dragon"])
def test_replay_of_a_log_needs_no_policy_and_gives_the_same_state(policy: str) -> None:
    system = faulty_world(4, 4, policy=policy)
    log: list[bytes] = []
    tell = system.tell

    def logged(*events: ev.Event) -> None:
        log.extend(codec.encode(event) for event in events)
        tell(*events)

    system.tell = logged  # type: ignore[method-assign]
    for i in range(5):
        system.submit(min=1 + i % 2, max=4)
        system.calm()
        system.pass_time(10.0)
    system.finish(1)
    system.lose_node("n1")
    system.calm()
    again = faulty_world(4, 4, policy=policy).engine
    for data in log:
        again.handle(codec.decode(data))
    expected, replayed = state_of(system.engine).world, state_of(again).world
    np.testing.assert_array_equal(expected.table.ints, replayed.table.ints)
    np.testing.assert_array_equal(expected.table.floats, replayed.table.floats)
    np.testing.assert_array_equal(expected.held.owner, replayed.held.owner)
    assert type(state_of(again).policy_state) is type(state_of(system.engine).policy_state)
    inner = state_of(again).policy_state.inner.get("default")
    assert type(inner) is type(state_of(system.engine).policy_state.inner.get("default")), (
        "the policy state keeps its type"
    )


def test_progress_reports_update_the_speed_of_the_workload() -> None:
    system = faulty_world(4)
    system.submit(min=2, max=2, workload="resnet", steps=1000.0)
    system.calm()
    for steps in (100.0, 200.0, 300.0):
        system.pass_time(10.0)
        system.tell(ev.Progress(at=system.now, number=np.array([0]), steps=np.array([steps])))
    system.engine.learn()
    rate = state_of(system.engine).perf.rate(0, 1, 2)
    assert math.isclose(rate, 10.0, rel_tol=0.05)


def test_a_resized_job_is_guarded_during_the_cooldown() -> None:
    system = faulty_world(4, cooldown_s=50.0)
    system.submit(min=1, max=4)
    system.calm()
    system.submit(min=1, max=1)
    system.calm()
    assert system.sizes() == {"j1": 4, "j2": 0}
    system.pass_time(50.0)
    system.calm()
    assert system.sizes() == {"j1": 3, "j2": 1}


def test_a_job_that_ends_before_a_restart_pays_off_is_not_changed() -> None:
    system = faulty_world(4)
    system.submit(min=1, max=4, steps=40.0, resizes_in_place=False)
    system.calm()
    system.submit(min=1, max=1)
    system.calm()
    assert system.sizes() == {"j1": 4, "j2": 0}, "ten seconds of work are left"


def test_a_job_whose_workers_fit_no_node_reports_fragmentation() -> None:
    system = faulty_world(1, 1, policy="fifo")
    system.tell(ev.NodesAdded(at=0.0, nodes=(Node.of("big", {"v100": 2}),)))
    system.submit(min=1, milli=2000)
    system.calm()
    system.submit(min=1, milli=2000)
    system.calm()
    assert system.why("j2") == "fragmented"


def test_a_duplicate_submission_changes_nothing() -> None:
    system = faulty_world(4)
    system.submit(min=1)
    system.submit(min=1)
    system.calm()
    again = [Job(id="j1", submitted=0.0, after=("j2",)), Job(id="new", submitted=0.0)]
    system.tell(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of(again)))
    assert system.job("j1")["waits_for"] == 0
    assert state_of(system.engine).submitted == 3


def test_invalid_jobs_are_quarantined_and_block_no_other() -> None:
    system = faulty_world(4)
    system.submit(min=3, max=2)
    system.submit(min=1, max=2, step=0)
    system.submit(min=1, milli=1500)
    system.submit(min=1, max=4)
    system.calm()
    assert [system.why(name) for name in ("j1", "j2", "j3")] == ["invalid"] * 3
    system.users("suspend", 2)
    system.users("resume", 2)
    system.calm()
    assert system.why("j3") == "invalid", "a quarantined job cannot be resumed"
    assert system.sizes()["j4"] == 4
