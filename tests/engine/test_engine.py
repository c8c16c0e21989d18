"""What the engine promises, one promise per test, in a world that does as it is told."""

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
from levada.engine import Engine, Options, answer
from tests.engine.chaos import Chaos, desk
from tests.engine.inspect import state_of


def test_a_job_goes_through_its_phases_with_a_reason_in_each() -> None:
    chaos = desk(4)
    chaos.submit(min=2, max=4)
    assert chaos.why("j1") == "new"
    chaos.think()
    assert chaos.job("j1")["phase"] == Phase.STARTING
    assert chaos.why("j1") == "starting"
    chaos.carry_out()
    chaos.calm()
    assert chaos.job("j1")["phase"] == Phase.RUNNING
    assert chaos.sizes() == {"j1": 4}
    chaos.users("suspend", 0)
    assert chaos.job("j1")["phase"] == Phase.STOPPING
    chaos.calm()
    assert chaos.job("j1")["phase"] == Phase.SUSPENDED
    assert chaos.why("j1") == "suspended"
    chaos.users("resume", 0)
    chaos.calm()
    assert chaos.job("j1")["phase"] == Phase.RUNNING
    chaos.finish(0)
    assert chaos.active() == []


def test_one_slow_release_does_not_hold_up_others() -> None:
    chaos = desk(4, 4)
    for _ in range(2):
        chaos.submit(min=1, max=4)
    chaos.calm()
    chaos.tell(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of([Job(id=n, submitted=0.0, min=2, max=2) for n in "xy"])))
    chaos.think()
    slow, quick = chaos.ops
    assert {slow.kind, quick.kind} == {OpKind.RESIZE}
    chaos.ops = [quick]
    chaos.carry_out()
    while chaos.reports:
        chaos.deliver()
    starts = [op for op in chaos.ops if op.kind == OpKind.START]
    assert len(starts) == 1, "whoever waits for the quick one starts"
    assert set(starts[0].adds) == set(quick.drops)
    assert chaos.job(slow.job)["phase"] == Phase.RESIZING


def test_times_count_what_is_seen_to_run_not_what_is_planned() -> None:
    chaos = desk(4)
    chaos.submit(min=2, max=2)
    chaos.pass_time(10.0)
    chaos.think()
    chaos.pass_time(20.0)
    chaos.carry_out()
    chaos.pass_time(30.0)
    chaos.calm()
    chaos.pass_time(100.0)
    state_of(chaos.engine).account(state_of(chaos.engine).living())
    job = chaos.job("j1")
    assert (job["waiting_s"], job["running_s"], job["gpu_seconds"]) == (60.0, 100.0, 200.0)
    chaos.tell(ev.WorkersStopped(at=chaos.now, number=np.array([0]), generation=np.array([1]), running=np.array([1])))
    chaos.pass_time(10.0)
    state_of(chaos.engine).account(state_of(chaos.engine).living())
    assert chaos.job("j1")["gpu_seconds"] == 210.0


def test_events_are_gathered_by_the_rate_limit_and_none_is_lost() -> None:
    engine = Engine(cluster=Cluster(nodes=(Node.of("n", {"v100": 8}),)), options=Options(rate_limit_s=30.0))
    decided, wakes = 0, []
    for i in range(100):
        jobs = JobBatch.of([Job(id=f"j{i}", submitted=i * 0.1)])
        commands = engine.handle(ev.JobsSubmitted(at=i * 0.1, jobs=jobs))
        for decide in [command for command in commands if isinstance(command, Decide)]:
            decided += 1
            commands += engine.handle(answer(decide, i * 0.1))
        wakes += [command.at for command in commands if isinstance(command, Wake)]
    assert decided == 1
    assert wakes == [300.0, 30.0], "first only a lost start would wake it; then what came since is due, and none spins"
    (decide,) = [c for c in engine.handle(ev.Tick(at=30.0)) if isinstance(c, Decide)]
    assert len(decide.snapshot) == 99, "all that came meanwhile; the first one is just starting"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"min": 9}, "too-large"),
        ({"min": 1, "gpu_types": ("h100",)}, "unknown-type"),
        ({"min": 1, "milli": 5000}, "too-large"),
        ({"min": 1, "cpu": 99_000}, "too-large"),
    ],
)
def test_what_no_state_of_the_cluster_could_hold_says_so_and_blocks_nobody(fields: dict[str, Any], code: str) -> None:
    chaos = Chaos(nodes=(Node.of("a", {"v100": 4}, cpu=16000), Node.of("b", {"v100": 4}, cpu=16000)))
    chaos.submit(**fields)
    chaos.submit(min=1, max=8)
    chaos.calm()
    assert chaos.why("j1") == code
    assert chaos.engine.explain("j1").would_help
    assert chaos.sizes()["j2"] == 8
    chaos.tell(ev.NodesAdded(at=0.0, nodes=(Node.of("c", {"h100": 8, "v100": 8}),)))
    chaos.calm()
    assert chaos.job("j1")["phase"] == Phase.RUNNING


def test_a_job_starts_after_those_it_comes_after() -> None:
    chaos = desk(4)
    chaos.submit(min=1)
    chaos.submit(min=1, after=("j1",))
    chaos.submit(min=1, after=("j2",))
    chaos.calm()
    assert [chaos.why(name) for name in ("j2", "j3")] == ["dependency", "dependency"]
    chaos.finish(0)
    chaos.calm()
    assert chaos.job("j2")["phase"] == Phase.RUNNING
    chaos.users("cancel", 1)
    chaos.calm()
    assert chaos.why("j3") == "dependency-failed"


@pytest.mark.parametrize("told", [ev.CheckpointSaved, ev.SavesOnStop])
def test_protected_jobs_are_not_touched_until_they_have_saved_or_will(told: type[ev.CheckpointSaved]) -> None:
    chaos = desk(4)
    chaos.submit(min=1, max=4, preemptible=Preemptible.AUTO, resizes_in_place=False)
    chaos.calm()
    chaos.submit(min=2)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4, "j2": 0}
    generation = np.array([chaos.job("j1")["generation"]])
    chaos.tell(told(at=0.0, number=np.array([0]), generation=generation))
    chaos.calm()
    assert chaos.sizes() == {"j1": 2, "j2": 2}


def test_a_job_that_turns_out_to_resize_in_place_need_not_have_saved() -> None:
    chaos = desk(4)
    chaos.submit(min=1, max=4, preemptible=Preemptible.AUTO, resizes_in_place=False)
    chaos.calm()
    chaos.submit(min=2, max=2)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4, "j2": 0}
    generation = np.array([chaos.job("j1")["generation"]])
    chaos.tell(ev.ResizesInPlace(at=0.0, number=np.array([0]), generation=generation))
    chaos.calm()
    assert chaos.sizes() == {"j1": 2, "j2": 2}


def test_after_a_restart_of_the_shell_what_was_asked_is_asked_again() -> None:
    engine = Engine(cluster=Cluster(nodes=(Node.of("n0", {"v100": 4}),)))
    engine.handle(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of([Job(id="a", submitted=0.0)])))
    commands = engine.handle(ev.Restarted(at=5.0))
    (decide,) = [command for command in commands if isinstance(command, Decide)]
    (apply,) = [command for command in engine.handle(answer(decide, 5.0)) if isinstance(command, Apply)]
    (op,) = engine.ops(apply.plan)
    (again,) = engine.outstanding()
    assert (again.job, again.kind, again.generation, again.grant) == (op.job, op.kind, op.generation, op.grant)


def started() -> tuple[Engine, Op]:
    """An engine with one job, and its start, which is out and not acknowledged."""
    engine = Engine(cluster=Cluster(nodes=(Node.of("n0", {"v100": 4}),)), options=Options(op_timeout_s=300.0))
    commands = engine.handle(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of([Job(id="a", submitted=0.0)])))
    (decide,) = [command for command in commands if isinstance(command, Decide)]
    engine.handle(answer(decide, 0.0))
    (op,) = engine.outstanding()
    return engine, op


def test_after_a_restart_of_the_shell_an_operation_has_its_whole_time_again() -> None:
    engine, op = started()
    engine.handle(ev.Restarted(at=4000.0))
    engine.handle(ev.Tick(at=4299.0))
    assert [each.generation for each in engine.outstanding()] == [op.generation]


def test_after_a_restart_of_the_shell_a_start_of_a_job_that_is_to_stop_is_overtaken_by_a_stop() -> None:
    """It cannot be applied again, since it has no grant any more."""
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


def test_a_job_that_goes_on_without_any_worker_survives_the_loss_of_the_first() -> None:
    chaos = desk(4)
    chaos.submit(min=1, max=4)
    chaos.calm()
    generation = np.array([chaos.job("j1")["generation"]])
    chaos.tell(ev.ResizesInPlace(at=0.0, number=np.array([0]), generation=generation))
    chaos.break_worker(0, 0)
    assert chaos.job("j1")["phase"] == Phase.RUNNING
    assert chaos.job("j1")["held"] == 3


def test_a_job_that_may_never_be_preempted_keeps_all_it_has() -> None:
    chaos = desk(4, policy="srjf")
    chaos.submit(min=4, preemptible=Preemptible.NEVER, steps=1e6)
    chaos.calm()
    chaos.submit(min=1, steps=1.0)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4, "j2": 0}


def test_young_jobs_are_left_alone_and_the_engine_wakes_when_they_are_not() -> None:
    chaos = desk(4, policy="srjf", min_run_s=45.0)
    chaos.submit(min=4, steps=1e6)
    chaos.calm()
    chaos.submit(min=4, steps=1.0)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4, "j2": 0}
    assert chaos.wake == 45.0
    chaos.pass_time(45.0)
    chaos.calm()
    assert chaos.sizes() == {"j1": 0, "j2": 4}
    assert chaos.why("j1") == "preempted"


def test_the_time_limit_of_a_job_that_is_being_cancelled_does_not_keep_the_engine_awake() -> None:
    chaos = Chaos(nodes=(Node.of("a", {"v100": 1}),))
    chaos.submit(min=1, time_limit_s=100.0)
    chaos.calm()
    chaos.users("cancel", 0)
    while chaos.ops:
        chaos.carry_out(lose=True)
    chaos.pass_time(150.0)
    assert chaos.wake > chaos.now
    assert chaos.job("j1")["phase"] == Phase.STOPPING


def test_a_time_limit_ends_a_job() -> None:
    chaos = desk(2)
    chaos.submit(min=1, time_limit_s=100.0)
    chaos.calm()
    while chaos.wake < math.inf and not chaos.ended:
        assert chaos.now < 100.0
        chaos.pass_time(chaos.wake - chaos.now)
        chaos.calm()
    assert chaos.ended == [0]
    assert chaos.now == 100.0, "woken in time, and not before"


def test_a_job_that_left_when_its_time_was_up_has_failed_and_does_not_start_again() -> None:
    chaos = desk(2)
    chaos.submit(min=1, time_limit_s=100.0)
    chaos.calm()
    # Nobody woke the engine in time, as when its server is away: the worker's lease ended.
    left = ev.JobsLeft(at=106.0, number=np.array([0]), generation=np.array([1]))
    (ended,) = [command for command in chaos.engine.handle(left) if isinstance(command, JobsEnded)]
    assert (ended.phase.tolist(), ended.reason.tolist()) == ([Phase.FAILED], [Code.TIME_LIMIT])


def test_explain_says_what_would_help_and_who_is_before() -> None:
    chaos = desk(4, policy="fifo")
    chaos.submit(min=4)
    chaos.submit(min=3)
    chaos.submit(min=2)
    chaos.calm()
    told = chaos.engine.explain("j3")
    assert told.phase == "Pending"
    assert told.before == ("j2",)
    assert told.position == 2
    assert told.would_help == ("2 more v100 GPUs (0 free now).",)
    with pytest.raises(KeyError):
        chaos.engine.explain("nobody")


def test_a_fork_goes_its_own_way() -> None:
    chaos = desk(4)
    chaos.submit(min=1, max=4)
    chaos.calm()
    twin = chaos.engine.fork()
    before = state_of(chaos.engine).world.target.owner.copy()
    jobs = JobBatch.of([Job(id="x", submitted=1.0, min=2, max=2)])
    commands = twin.handle(ev.JobsSubmitted(at=1.0, jobs=jobs))
    (decide,) = [c for c in commands if isinstance(c, Decide)]
    (apply,) = [c for c in twin.handle(answer(decide, 1.0)) if isinstance(c, Apply)]
    assert len(apply.plan) == 1
    assert (state_of(chaos.engine).world.target.owner == before).all()
    assert chaos.active() == [0]
    assert "x" in state_of(twin).world.numbers


@pytest.mark.parametrize("policy", ["elastic-fifo", "elastic-tiresias", "dragon"])
def test_a_log_of_events_replayed_gives_the_same_state_without_any_policy(policy: str) -> None:
    chaos = desk(4, 4, policy=policy)
    log: list[bytes] = []
    tell = chaos.tell

    def logged(*events: ev.Event) -> None:
        log.extend(codec.encode(event) for event in events)
        tell(*events)

    chaos.tell = logged  # type: ignore[method-assign]
    for i in range(5):
        chaos.submit(min=1 + i % 2, max=4)
        chaos.calm()
        chaos.pass_time(10.0)
    chaos.finish(1)
    chaos.lose_node("n1")
    chaos.calm()
    again = desk(4, 4, policy=policy).engine
    for data in log:
        again.handle(codec.decode(data))
    ours, theirs = state_of(chaos.engine).world, state_of(again).world
    np.testing.assert_array_equal(ours.table.ints, theirs.table.ints)
    np.testing.assert_array_equal(ours.table.floats, theirs.table.floats)
    np.testing.assert_array_equal(ours.held.owner, theirs.held.owner)
    assert type(state_of(again).policy_state) is type(state_of(chaos.engine).policy_state)
    inner = state_of(again).policy_state.inner.get("default")
    assert type(inner) is type(state_of(chaos.engine).policy_state.inner.get("default")), "a state keeps its type"


def test_progress_teaches_how_fast_a_workload_is() -> None:
    chaos = desk(4)
    chaos.submit(min=2, max=2, workload="resnet", steps=1000.0)
    chaos.calm()
    for steps in (100.0, 200.0, 300.0):
        chaos.pass_time(10.0)
        chaos.tell(ev.Progress(at=chaos.now, number=np.array([0]), steps=np.array([steps])))
    chaos.engine.learn()
    rate = state_of(chaos.engine).perf.rate(0, 1, 2)
    assert math.isclose(rate, 10.0, rel_tol=0.05)


def test_a_resized_job_is_left_alone_for_a_while() -> None:
    chaos = desk(4, cooldown_s=50.0)
    chaos.submit(min=1, max=4)
    chaos.calm()
    chaos.submit(min=1, max=1)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4, "j2": 0}
    chaos.pass_time(50.0)
    chaos.calm()
    assert chaos.sizes() == {"j1": 3, "j2": 1}


def test_a_job_that_would_end_before_a_restart_pays_is_left_alone() -> None:
    chaos = desk(4)
    chaos.submit(min=1, max=4, steps=40.0, resizes_in_place=False)
    chaos.calm()
    chaos.submit(min=1, max=1)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4, "j2": 0}, "ten seconds of work are left"


def test_a_job_whose_workers_fit_nowhere_says_that_there_is_room_but_not_in_one_piece() -> None:
    chaos = desk(1, 1, policy="fifo")
    chaos.tell(ev.NodesAdded(at=0.0, nodes=(Node.of("big", {"v100": 2}),)))
    chaos.submit(min=1, milli=2000)
    chaos.calm()
    chaos.submit(min=1, milli=2000)
    chaos.calm()
    assert chaos.why("j2") == "fragmented"


def test_submitting_a_job_twice_changes_nothing_of_the_first() -> None:
    chaos = desk(4)
    chaos.submit(min=1)
    chaos.submit(min=1)
    chaos.calm()
    again = [Job(id="j1", submitted=0.0, after=("j2",)), Job(id="new", submitted=0.0)]
    chaos.tell(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of(again)))
    assert chaos.job("j1")["waits_for"] == 0
    assert state_of(chaos.engine).submitted == 3


def test_jobs_that_cannot_be_wait_with_that_reason_and_harm_nobody() -> None:
    chaos = desk(4)
    chaos.submit(min=3, max=2)
    chaos.submit(min=1, max=2, step=0)
    chaos.submit(min=1, milli=1500)
    chaos.submit(min=1, max=4)
    chaos.calm()
    assert [chaos.why(name) for name in ("j1", "j2", "j3")] == ["invalid"] * 3
    chaos.users("suspend", 2)
    chaos.users("resume", 2)
    chaos.calm()
    assert chaos.why("j3") == "invalid", "nobody can resume what cannot be"
    assert chaos.sizes()["j4"] == 4
