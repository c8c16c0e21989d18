"""Failures of nodes, workers and operations."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from levada.core import events as ev
from levada.core.job import Phase
from levada.core.plan import OpKind
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld, faulty_world


def test_a_start_waits_until_its_devices_are_observed_free() -> None:
    system = faulty_world(4)
    system.submit(min=1, max=4)
    system.calm()
    system.submit(min=2)
    system.think()
    assert [op.kind for op in system.ops] == [OpKind.RESIZE]
    assert system.why("j2") == "waits-for-devices"
    assert system.job("j2")["phase"] == Phase.PENDING
    system.carry_out()
    assert not system.ops, "no device was released yet"
    while not system.ops:
        system.deliver()
    assert [(op.kind, op.job) for op in system.ops] == [(OpKind.START, "j2")]


def test_a_failed_start_is_retried_with_backoff_then_quarantined() -> None:
    system = faulty_world(2, policy="fifo", backoff_s=10.0, max_failures=3)
    system.submit(min=1)
    system.submit(min=1)
    pauses = []
    for _ in range(3):
        while system.thoughts:
            system.think()
        while system.ops:
            system.carry_out(fail=system.ops[0].job == "j1")
        while system.reports:
            system.deliver()
        pauses.append(system.job("j1")["retry_at"] - system.now)
        if system.job("j1")["aside"]:
            break
        assert system.why("j1") == "backoff"
        system.pass_time(pauses[-1])
    assert 7.5 <= pauses[0] <= 12.5
    assert 15.0 <= pauses[1] <= 25.0
    assert system.why("j1") == "set-aside"
    assert system.job("j2")["phase"] == Phase.RUNNING, "the other job is not affected"
    system.pass_time(1000.0)
    system.calm()
    assert system.why("j1") == "set-aside"
    system.users("resume", 0)
    system.calm()
    assert system.job("j1")["phase"] == Phase.RUNNING


def test_an_operation_without_a_report_is_issued_again() -> None:
    system = faulty_world(2, op_timeout_s=60.0)
    system.submit(min=2)
    system.think()
    system.carry_out(lose=True)
    system.pass_time(60.0)
    assert [(op.kind, op.generation) for op in system.ops] == [(OpKind.STOP, 2)], "first a stop, since workers may run"
    system.calm()
    system.pass_time(system.wake - system.now)
    system.calm()
    assert system.job("j1")["phase"] == Phase.RUNNING


def test_a_lost_node_shrinks_elastic_jobs_and_restarts_the_others() -> None:
    system = faulty_world(2, 2, 4)
    system.submit(min=4, max=4, resizes_in_place=False)
    system.calm()
    system.submit(min=1, max=4, resizes_in_place=True)
    system.calm()
    assert system.engine.explain("j1").nodes == ("n2",)
    assert system.engine.explain("j2").nodes == ("n0", "n1")
    (home, _), *_ = system.truth[1][1][0]
    away = "n1" if home == "n0" else "n0"
    system.lose_node(away)
    assert system.sizes()["j2"] == 2
    assert system.job("j2")["phase"] == Phase.RUNNING, "worker 0 and the minimum of two workers remain"
    system.lose_node("n2")
    assert system.job("j1")["phase"] == Phase.PENDING
    assert system.why("j1") == "too-large", "the remaining cluster is too small"
    system.return_node(away)
    system.return_node("n2")
    system.calm()
    assert system.sizes() == {"j1": 4, "j2": 4}
    assert system.job("j1")["restarts"] == 1
    assert system.job("j2")["restarts"] == 0, "its workers continued"


def test_a_restart_after_a_node_loss_uses_no_retry() -> None:
    system = faulty_world(2, 2)
    system.submit(min=4, max=4, retries=1, resizes_in_place=False)
    system.calm()
    system.lose_node("n0")
    system.lose_node("n1")
    system.return_node("n0")
    system.return_node("n1")
    system.calm()
    assert (system.job("j1")["phase"], system.job("j1")["restarts"]) == (Phase.RUNNING, 1), "once for both nodes"
    assert system.job("j1")["retried"] == 0
    system.break_worker(0, 0)
    assert (system.why("j1"), system.job("j1")["retried"]) == ("restarting", 1), "the restart used no retry before"
    system.calm()
    system.pass_time(system.wake - system.now)
    system.calm()
    assert system.job("j1")["restarts"] == 2
    system.break_worker(0, 0)
    assert system.why("j1") == "no-retries"
    system.calm()
    assert system.active() == [], "it has failed"


def test_a_node_loss_before_the_first_run_is_no_restart() -> None:
    system = faulty_world(2)
    system.submit(min=2, max=2)
    system.think()
    system.carry_out(lose=True)
    system.lose_node("n0")
    system.return_node("n0")
    system.calm()
    assert system.job("j1")["restarts"] == 0


def test_a_removed_lost_node_is_unknown_until_it_joins_again() -> None:
    system = faulty_world(2, 2)
    inventory = state_of(system.engine).world.inventory
    system.submit(min=4, max=4)
    system.calm()
    system.cordon("n1", True)
    system.remove_node("n1")
    assert not inventory.removed.any(), "the node is present"
    system.lose_node("n1")
    system.calm()
    system.remove_node("n1")
    assert inventory.removed.tolist() == [False, True]
    assert inventory.device_keys() == [(0, "0"), (0, "1")]
    assert system.why("j1") == "too-large"
    system.return_node("n1")
    system.calm()
    assert system.sizes() == {"j1": 4}
    assert not inventory.removed.any()


def test_a_device_that_vanished_during_an_operation_stays_held_until_the_stop() -> None:
    system = faulty_world(2, 1)
    system.submit(min=2)
    system.think()
    system.change_node("n0", 0)
    assert [(op.kind, op.generation) for op in system.ops] == [(OpKind.START, 1), (OpKind.STOP, 2)]
    assert state_of(system.engine).world.snapshot(0.0).capacity[1] == 1000, "missing devices are no capacity"
    system.return_node("n0")
    system.submit(min=3)
    while system.thoughts:
        system.think()
    assert [op.job for op in system.ops] == ["j1", "j1"], "the first start may still be executed there"
    system.carry_out()
    assert system.truth[0][1] == {0: (("n0", "0"),), 1: (("n0", "1"),)}
    system.calm()
    assert sorted(system.truth) == [0] or sorted(system.truth) == [1]


def test_losing_a_device_twice_before_the_stop_releases_nothing() -> None:
    system = faulty_world(2)
    system.submit(min=2)
    system.think()
    whole = system.nodes["n0"]
    bare = msgspec.structs.replace(whole, devices=())
    seen = [ev.NodesChanged(at=0.0, nodes=(node,)) for node in (bare, whole, bare, whole)]
    system.tell(*seen)
    system.submit(min=2)
    while system.thoughts:
        system.think()
    assert [(op.kind, op.job) for op in system.ops] == [(OpKind.START, "j1"), (OpKind.STOP, "j1")]


def test_a_cordoned_node_keeps_its_jobs_and_gets_no_new_ones() -> None:
    system = faulty_world(2, 2, policy="fifo")
    system.submit(min=2)
    system.calm()
    (home,) = system.engine.explain("j1").nodes
    for name in ("n0", "n1"):
        system.cordon(name, True)
    system.submit(min=2)
    system.calm()
    assert system.sizes() == {"j1": 2, "j2": 0}
    assert system.engine.explain("j1").nodes == (home,)
    other = "n1" if home == "n0" else "n0"
    system.cordon(other, False)
    system.calm()
    assert system.engine.explain("j2").nodes == (other,)


def test_a_failed_job_is_restarted_up_to_its_retries() -> None:
    system = faulty_world(2, backoff_s=1.0)
    system.submit(min=1, retries=1)
    system.calm()
    system.break_job(0)
    assert system.why("j1") == "restarting"
    system.pass_time(5.0)
    system.calm()
    assert system.job("j1")["phase"] == Phase.RUNNING
    system.break_job(0)
    assert system.ended == [0]


def test_an_observation_stops_unknown_jobs_and_restarts_missing_ones() -> None:
    system = faulty_world(4)
    system.submit(min=1)
    system.submit(min=1)
    system.calm()
    system.truth.pop(0)
    system.truth[77] = (1, {0: (("n0", "3"),)})
    system.observe()
    assert 77 not in system.truth, "an unknown job is stopped"
    system.calm()
    assert sorted(system.truth) == [0, 1], "a missing job is restarted"


def test_observed_restarts_update_the_restart_cost() -> None:
    system = faulty_world(4, backoff_s=0.0, op_timeout_s=1000.0)
    system.submit(min=1, max=4, workload="resnet", resizes_in_place=False, retries=9)
    perf = state_of(system.engine).perf
    start_s, resize_s = perf.restart_cost_s(0, 0, 4), perf.restart_cost_s(0, 4, 3)

    def slowly(seconds: float) -> None:
        """Execute pending operations *seconds* after they were issued."""
        while system.thoughts:
            system.think()
        system.pass_time(seconds)
        system.calm()
        system.engine.learn()

    slowly(200.0)
    assert perf.restart_cost_s(0, 0, 4) == start_s, "the first start loads no checkpoint"
    system.submit(min=1, workload="other")
    slowly(50.0)
    assert perf.restart_cost_s(0, 4, 3) > resize_s
    assert perf.restart_cost_s(0, 4, 3) < 50.0, "one observation does not replace the prior"
    system.break_job(0)
    system.pass_time(0.0)
    slowly(90.0)
    assert start_s < perf.restart_cost_s(0, 0, 4) < 90.0
    assert perf.restart_cost_s(1, 0, 1) == start_s, "other workloads are not affected"


def test_repeated_operations_do_not_update_the_restart_cost() -> None:
    system = faulty_world(4, op_timeout_s=60.0)
    system.submit(min=1, max=4, workload="resnet", resizes_in_place=False)
    system.calm()
    before = state_of(system.engine).perf.restart_cost_s(0, 4, 3)
    system.submit(min=1)
    system.think()
    system.carry_out(lose=True)
    while system.job("j1")["phase"] != Phase.RUNNING:
        system.pass_time(max(system.wake - system.now, 0.0))
        system.calm()
    system.engine.learn()
    assert system.sizes() == {"j1": 3, "j2": 1}
    assert state_of(system.engine).perf.restart_cost_s(0, 4, 3) == before


def test_unknown_and_outdated_reports_change_nothing() -> None:
    system = faulty_world(4)
    system.submit(min=1, max=2)
    system.calm()
    before = state_of(system.engine).world.table.ints.copy()
    for kind in (ev.Running, ev.Released, ev.OperationFailed, ev.OperationTimedOut, ev.JobsFailed):
        for number, generation in ((0, 0), (0, 99), (123, 1)):
            system.tell(kind(at=0.0, number=np.array([number]), generation=np.array([generation])))
    system.tell(ev.JobsFinished(at=0.0, number=np.array([55])))
    np.testing.assert_array_equal(state_of(system.engine).world.table.ints, before)


def test_the_rest_of_a_failed_job_is_stopped_before_the_backoff() -> None:
    system = faulty_world(4, backoff_s=100.0)
    system.submit(min=4, max=4, retries=1, resizes_in_place=False)
    system.calm()
    system.break_worker(0, 2)
    assert [op.kind for op in system.ops] == [OpKind.STOP], "the GPUs are released during the backoff"
    system.calm()
    assert (state_of(system.engine).world.held.owner == -1).all()
    assert system.why("j1") == "restarting"
    assert system.job("j1")["retry_at"] >= 75.0


def test_a_job_that_lost_worker_0_restarts_even_with_enough_workers() -> None:
    system = faulty_world(4)
    system.submit(min=1, max=4, retries=1)
    system.calm()
    system.break_worker(0, 0)
    assert system.job("j1")["retried"] == 1
    assert system.job("j1")["phase"] == Phase.STOPPING


def test_a_failed_resize_leaves_the_job_as_it_was() -> None:
    system = faulty_world(4)
    system.submit(min=2, max=2)
    system.submit(min=1, max=4)
    system.calm()
    assert system.sizes() == {"j1": 2, "j2": 2}
    before = state_of(system.engine).world.held.owner.copy()
    system.finish(0)
    while system.thoughts:
        system.think()
    (op,) = system.ops
    assert op.kind == OpKind.RESIZE
    system.carry_out(fail=True)
    system.deliver()
    assert system.job("j2")["phase"] == Phase.RUNNING
    assert system.sizes() == {"j2": 2}
    slot = state_of(system.engine).world.slot("j2")
    held = state_of(system.engine).world.held.owner
    assert ((held == slot) == (before == slot)).all(), "claimed devices are free again, held devices stay"


def _taken_for_gone(system: FaultyWorld, *, issue: bool = True) -> int:
    """A job that ended without a report is not observed, so it is restarted; return the ended generation."""
    generation, _ = system.truth.pop(0)
    system.observe()
    while issue and system.thoughts:
        system.think()
    return generation


def _ends(kind: type[ev.JobsFinished | ev.JobsFailed | ev.JobsLeft], generation: int) -> ev.Event:
    return kind(at=0.0, number=np.array([0]), generation=np.array([generation]))


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_late_end_report_stops_the_next_start_and_the_job_succeeds(carried_out: bool) -> None:
    system = faulty_world(2)
    system.submit(min=2)
    system.calm()
    generation = _taken_for_gone(system)
    assert [(op.kind, op.generation) for op in system.ops] == [(OpKind.START, generation + 1)]
    if carried_out:
        system.carry_out()
        while system.reports:
            system.deliver()
        assert system.job("j1")["phase"] == Phase.RUNNING
    system.tell(_ends(ev.JobsFinished, generation))
    assert not system.ended, "the devices of the start are in use until it has stopped"
    system.users("cancel", 0)
    assert (system.ops[-1].kind, system.ops[-1].generation) == (OpKind.STOP, generation + 2)
    system.submit(min=2)
    system.calm()
    assert system.phases[0] == Phase.SUCCEEDED
    assert sorted(system.truth) == [1]


def test_a_late_end_report_reverts_a_start_that_was_not_issued() -> None:
    system = faulty_world(2)
    system.submit(min=2)
    system.calm()
    generation = _taken_for_gone(system, issue=False)
    system.tell(_ends(ev.JobsFinished, generation))
    assert system.phases == {0: Phase.SUCCEEDED}
    system.calm()
    assert not system.truth


@pytest.mark.parametrize("issue", [False, True])
def test_a_late_failure_report_counts_once_and_reverts_the_next_start(issue: bool) -> None:
    system = faulty_world(2, backoff_s=1.0)
    system.submit(min=2, retries=1)
    system.calm()
    generation = _taken_for_gone(system, issue=issue)
    for _ in range(2):
        system.tell(_ends(ev.JobsFailed, generation))
    assert (system.why("j1"), system.job("j1")["retried"]) == ("restarting", 1)
    while system.job("j1")["phase"] != Phase.RUNNING:
        system.calm()
        system.pass_time(max(system.wake - system.now, 0.0))
    system.tell(_ends(ev.JobsFailed, generation))
    assert system.job("j1")["phase"] == Phase.RUNNING, "a repeated end report has no effect"
    generation = _taken_for_gone(system, issue=issue)
    system.tell(_ends(ev.JobsFailed, generation))
    system.calm()
    assert system.phases == {0: Phase.FAILED}, "its one retry is used up"
    assert not system.truth


def test_a_job_that_exited_voluntarily_starts_once() -> None:
    system = faulty_world(2, backoff_s=1.0)
    system.submit(min=2)
    system.calm()
    generation = _taken_for_gone(system)
    system.tell(_ends(ev.JobsLeft, generation))
    assert [op.kind for op in system.ops] == [OpKind.START, OpKind.STOP]
    assert system.why("j1") == "left"
    system.calm()
    assert not system.truth


@pytest.mark.parametrize("resize", [False, True])
def test_a_failure_report_during_an_operation_counts(resize: bool) -> None:
    system = faulty_world(4)
    system.submit(min=1, max=4)
    system.calm()
    if resize:
        system.submit(min=2)
        system.think()
    else:
        system.users("suspend", 0)
        system.users("resume", 0)
    assert [op.kind for op in system.ops] == [OpKind.RESIZE if resize else OpKind.STOP]
    system.break_job(0)
    system.calm()
    assert system.phases == {0: Phase.FAILED}


def test_a_failure_reported_after_a_suspension_keeps_the_job_suspended() -> None:
    system = faulty_world(2)
    system.submit(min=2)
    system.calm()
    generation = _taken_for_gone(system, issue=False)
    system.users("suspend", 0)
    system.tell(_ends(ev.JobsFailed, generation))
    system.calm()
    assert system.job("j1")["phase"] == Phase.SUSPENDED


@pytest.mark.parametrize(
    ("asked", "phase"),
    [(("suspend",), Phase.SUSPENDED), (("cancel",), Phase.CANCELLED), (("suspend", "resume"), Phase.FAILED)],
)
def test_a_failure_report_completes_a_stop(asked: tuple[str, ...], phase: int) -> None:
    """The workers failed before the backend could stop them: the request of the user has precedence."""
    system = faulty_world(2)
    system.submit(min=2)
    system.calm()
    for what in asked:
        system.users(what, 0)
    (stop,) = system.ops
    assert stop.kind == OpKind.STOP
    system.ops.clear()
    system.truth.pop(0)
    system.tell(_ends(ev.JobsFailed, stop.generation))
    assert (system.phases.get(0) or system.job("j1")["phase"]) == phase
    system.submit(min=2)
    system.calm()
    assert sorted(system.truth) == [1], "the devices are free at once"


def _loses(system: FaultyWorld, *indices: int) -> None:
    """All workers of the first job are lost at once; the backend reports them one by one."""
    generation = np.array([system.job("j1")["generation"]])
    system.tell(
        *(
            ev.WorkersFailed(
                at=system.now,
                number=np.array([0]),
                generation=generation,
                running=np.array([0]),
                index=np.array([index]),
            )
            for index in indices
        )
    )


def test_workers_lost_together_use_one_retry() -> None:
    system = faulty_world(4)
    system.submit(min=4, max=4, retries=2, resizes_in_place=True)
    system.calm()
    system.truth.pop(0)
    _loses(system, 2, 3)
    assert (system.why("j1"), system.job("j1")["retried"]) == ("restarting", 1)
    (stop,) = system.ops
    system.ops.clear()
    system.tell(_ends(ev.JobsFailed, stop.generation))
    assert system.job("j1")["retried"] == 1, "the remaining workers failed before they could be stopped"
    assert system.job("j1")["phase"] == Phase.PENDING
