"""What the engine does when machines, workers and operations fail."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from levada.core import events as ev
from levada.core.job import Phase
from levada.core.plan import OpKind
from tests.engine.chaos import Chaos, desk
from tests.engine.inspect import state_of


def test_a_start_waits_until_its_devices_are_seen_free() -> None:
    chaos = desk(4)
    chaos.submit(min=1, max=4)
    chaos.calm()
    chaos.submit(min=2)
    chaos.think()
    assert [op.kind for op in chaos.ops] == [OpKind.RESIZE]
    assert chaos.why("j2") == "waits-for-devices"
    assert chaos.job("j2")["phase"] == Phase.PENDING
    chaos.carry_out()
    assert not chaos.ops, "nothing was released yet"
    while not chaos.ops:
        chaos.deliver()
    assert [(op.kind, op.job) for op in chaos.ops] == [(OpKind.START, "j2")]


def test_a_failed_start_is_tried_again_after_growing_pauses_and_then_set_aside() -> None:
    chaos = desk(2, policy="fifo", backoff_s=10.0, max_failures=3)
    chaos.submit(min=1)
    chaos.submit(min=1)
    pauses = []
    for _ in range(3):
        while chaos.thoughts:
            chaos.think()
        while chaos.ops:
            chaos.carry_out(fail=chaos.ops[0].job == "j1")
        while chaos.reports:
            chaos.deliver()
        pauses.append(chaos.job("j1")["retry_at"] - chaos.now)
        if chaos.job("j1")["aside"]:
            break
        assert chaos.why("j1") == "backoff"
        chaos.pass_time(pauses[-1])
    assert 7.5 <= pauses[0] <= 12.5
    assert 15.0 <= pauses[1] <= 25.0
    assert chaos.why("j1") == "set-aside"
    assert chaos.job("j2")["phase"] == Phase.RUNNING, "nobody else is harmed"
    chaos.pass_time(1000.0)
    chaos.calm()
    assert chaos.why("j1") == "set-aside"
    chaos.users("resume", 0)
    chaos.calm()
    assert chaos.job("j1")["phase"] == Phase.RUNNING


def test_an_operation_without_a_word_is_asked_for_again() -> None:
    chaos = desk(2, op_timeout_s=60.0)
    chaos.submit(min=2)
    chaos.think()
    chaos.carry_out(lose=True)
    chaos.pass_time(60.0)
    assert [(op.kind, op.generation) for op in chaos.ops] == [(OpKind.STOP, 2)], "first make sure that nothing runs"
    chaos.calm()
    chaos.pass_time(chaos.wake - chaos.now)
    chaos.calm()
    assert chaos.job("j1")["phase"] == Phase.RUNNING


def test_a_lost_node_shrinks_those_who_can_go_on_and_restarts_the_others() -> None:
    chaos = desk(2, 2, 4)
    chaos.submit(min=4, max=4, resizes_in_place=False)
    chaos.calm()
    chaos.submit(min=1, max=4, resizes_in_place=True)
    chaos.calm()
    assert chaos.engine.explain("j1").nodes == ("n2",)
    assert chaos.engine.explain("j2").nodes == ("n0", "n1")
    (home, _), *_ = chaos.truth[1][1][0]
    away = "n1" if home == "n0" else "n0"
    chaos.lose_node(away)
    assert chaos.sizes()["j2"] == 2
    assert chaos.job("j2")["phase"] == Phase.RUNNING, "worker 0 lives and two are enough"
    chaos.lose_node("n2")
    assert chaos.job("j1")["phase"] == Phase.PENDING
    assert chaos.why("j1") == "too-large", "what is left of the cluster cannot hold it"
    chaos.return_node(away)
    chaos.return_node("n2")
    chaos.calm()
    assert chaos.sizes() == {"j1": 4, "j2": 4}
    assert chaos.job("j1")["restarts"] == 1
    assert chaos.job("j2")["restarts"] == 0, "its workers went on"


def test_a_lost_node_is_a_restart_that_costs_no_retry() -> None:
    chaos = desk(2, 2)
    chaos.submit(min=4, max=4, retries=1, resizes_in_place=False)
    chaos.calm()
    chaos.lose_node("n0")
    chaos.lose_node("n1")
    chaos.return_node("n0")
    chaos.return_node("n1")
    chaos.calm()
    assert (chaos.job("j1")["phase"], chaos.job("j1")["restarts"]) == (Phase.RUNNING, 1), "once for both nodes"
    assert chaos.job("j1")["retried"] == 0
    chaos.break_worker(0, 0)
    assert (chaos.why("j1"), chaos.job("j1")["retried"]) == ("restarting", 1), "it has its one retry still"
    chaos.calm()
    chaos.pass_time(chaos.wake - chaos.now)
    chaos.calm()
    assert chaos.job("j1")["restarts"] == 2
    chaos.break_worker(0, 0)
    assert chaos.why("j1") == "no-retries"
    chaos.calm()
    assert chaos.active() == [], "it has failed"


def test_a_node_that_is_lost_before_a_job_has_ever_run_is_no_restart() -> None:
    chaos = desk(2)
    chaos.submit(min=2, max=2)
    chaos.think()
    chaos.carry_out(lose=True)
    chaos.lose_node("n0")
    chaos.return_node("n0")
    chaos.calm()
    assert chaos.job("j1")["restarts"] == 0


def test_a_lost_node_that_is_removed_is_nothing_until_it_joins_anew() -> None:
    chaos = desk(2, 2)
    inventory = state_of(chaos.engine).world.inventory
    chaos.submit(min=4, max=4)
    chaos.calm()
    chaos.cordon("n1", True)
    chaos.remove_node("n1")
    assert not inventory.removed.any(), "it is there"
    chaos.lose_node("n1")
    chaos.calm()
    chaos.remove_node("n1")
    assert inventory.removed.tolist() == [False, True]
    assert inventory.device_keys() == [(0, "0"), (0, "1")]
    assert chaos.why("j1") == "too-large"
    chaos.return_node("n1")
    chaos.calm()
    assert chaos.sizes() == {"j1": 4}
    assert not inventory.removed.any()


def test_a_device_that_vanished_under_an_operation_is_taken_until_a_stop_is_seen() -> None:
    chaos = desk(2, 1)
    chaos.submit(min=2)
    chaos.think()
    chaos.change_node("n0", 0)
    assert [(op.kind, op.generation) for op in chaos.ops] == [(OpKind.START, 1), (OpKind.STOP, 2)]
    assert state_of(chaos.engine).world.snapshot(0.0).capacity[1] == 1000, "what is gone counts for nothing"
    chaos.return_node("n0")
    chaos.submit(min=3)
    while chaos.thoughts:
        chaos.think()
    assert [op.job for op in chaos.ops] == ["j1", "j1"], "the first start may yet be carried out there"
    chaos.carry_out()
    assert chaos.truth[0][1] == {0: (("n0", "0"),), 1: (("n0", "1"),)}
    chaos.calm()
    assert sorted(chaos.truth) == [0] or sorted(chaos.truth) == [1]


def test_losing_a_device_twice_before_the_stop_goes_out_frees_nothing() -> None:
    chaos = desk(2)
    chaos.submit(min=2)
    chaos.think()
    whole = chaos.nodes["n0"]
    bare = msgspec.structs.replace(whole, devices=())
    seen = [ev.NodesChanged(at=0.0, nodes=(node,)) for node in (bare, whole, bare, whole)]
    chaos.tell(*seen)
    chaos.submit(min=2)
    while chaos.thoughts:
        chaos.think()
    assert [(op.kind, op.job) for op in chaos.ops] == [(OpKind.START, "j1"), (OpKind.STOP, "j1")]


def test_nothing_new_goes_to_a_cordoned_node_and_what_runs_there_stays() -> None:
    chaos = desk(2, 2, policy="fifo")
    chaos.submit(min=2)
    chaos.calm()
    (home,) = chaos.engine.explain("j1").nodes
    for name in ("n0", "n1"):
        chaos.cordon(name, True)
    chaos.submit(min=2)
    chaos.calm()
    assert chaos.sizes() == {"j1": 2, "j2": 0}
    assert chaos.engine.explain("j1").nodes == (home,)
    other = "n1" if home == "n0" else "n0"
    chaos.cordon(other, False)
    chaos.calm()
    assert chaos.engine.explain("j2").nodes == (other,)


def test_a_broken_job_starts_again_as_often_as_its_user_said() -> None:
    chaos = desk(2, backoff_s=1.0)
    chaos.submit(min=1, retries=1)
    chaos.calm()
    chaos.break_job(0)
    assert chaos.why("j1") == "restarting"
    chaos.pass_time(5.0)
    chaos.calm()
    assert chaos.job("j1")["phase"] == Phase.RUNNING
    chaos.break_job(0)
    assert chaos.ended == [0]


def test_belief_follows_fact() -> None:
    chaos = desk(4)
    chaos.submit(min=1)
    chaos.submit(min=1)
    chaos.calm()
    chaos.truth.pop(0)
    chaos.truth[77] = (1, {0: (("n0", "3"),)})
    chaos.observe()
    assert 77 not in chaos.truth, "what nobody knows is stopped"
    chaos.calm()
    assert sorted(chaos.truth) == [0, 1], "what should run and did not starts again"


def test_restarts_teach_what_a_restart_costs() -> None:
    chaos = desk(4, backoff_s=0.0, op_timeout_s=1000.0)
    chaos.submit(min=1, max=4, workload="resnet", resizes_in_place=False, retries=9)
    perf = state_of(chaos.engine).perf
    start_s, resize_s = perf.restart_cost_s(0, 0, 4), perf.restart_cost_s(0, 4, 3)

    def slowly(seconds: float) -> None:
        """Carries out what is on the wire, *seconds* after it went out."""
        while chaos.thoughts:
            chaos.think()
        chaos.pass_time(seconds)
        chaos.calm()
        chaos.engine.learn()

    slowly(200.0)
    assert perf.restart_cost_s(0, 0, 4) == start_s, "the first start loads no checkpoint"
    chaos.submit(min=1, workload="other")
    slowly(50.0)
    assert perf.restart_cost_s(0, 4, 3) > resize_s
    assert perf.restart_cost_s(0, 4, 3) < 50.0, "one of them is not all there is to know"
    chaos.break_job(0)
    chaos.pass_time(0.0)
    slowly(90.0)
    assert start_s < perf.restart_cost_s(0, 0, 4) < 90.0
    assert perf.restart_cost_s(1, 0, 1) == start_s, "other workloads learn nothing from it"


def test_what_had_to_be_asked_for_twice_teaches_nothing() -> None:
    chaos = desk(4, op_timeout_s=60.0)
    chaos.submit(min=1, max=4, workload="resnet", resizes_in_place=False)
    chaos.calm()
    before = state_of(chaos.engine).perf.restart_cost_s(0, 4, 3)
    chaos.submit(min=1)
    chaos.think()
    chaos.carry_out(lose=True)
    while chaos.job("j1")["phase"] != Phase.RUNNING:
        chaos.pass_time(max(chaos.wake - chaos.now, 0.0))
        chaos.calm()
    chaos.engine.learn()
    assert chaos.sizes() == {"j1": 3, "j2": 1}
    assert state_of(chaos.engine).perf.restart_cost_s(0, 4, 3) == before


def test_unknown_and_old_reports_change_nothing() -> None:
    chaos = desk(4)
    chaos.submit(min=1, max=2)
    chaos.calm()
    before = state_of(chaos.engine).world.table.ints.copy()
    for kind in (ev.Running, ev.Released, ev.OperationFailed, ev.OperationTimedOut, ev.JobsFailed):
        for number, generation in ((0, 0), (0, 99), (123, 1)):
            chaos.tell(kind(at=0.0, number=np.array([number]), generation=np.array([generation])))
    chaos.tell(ev.JobsFinished(at=0.0, number=np.array([55])))
    np.testing.assert_array_equal(state_of(chaos.engine).world.table.ints, before)


def test_what_is_left_of_a_broken_job_stops_at_once_and_the_pause_comes_after() -> None:
    chaos = desk(4, backoff_s=100.0)
    chaos.submit(min=4, max=4, retries=1, resizes_in_place=False)
    chaos.calm()
    chaos.break_worker(0, 2)
    assert [op.kind for op in chaos.ops] == [OpKind.STOP], "it must not keep its GPUs through the pause"
    chaos.calm()
    assert (state_of(chaos.engine).world.held.owner == -1).all()
    assert chaos.why("j1") == "restarting"
    assert chaos.job("j1")["retry_at"] >= 75.0


def test_a_job_without_its_first_worker_starts_again_though_enough_are_left() -> None:
    chaos = desk(4)
    chaos.submit(min=1, max=4, retries=1)
    chaos.calm()
    chaos.break_worker(0, 0)
    assert chaos.job("j1")["retried"] == 1
    assert chaos.job("j1")["phase"] == Phase.STOPPING


def test_a_failed_resize_leaves_the_job_as_it_was() -> None:
    chaos = desk(4)
    chaos.submit(min=2, max=2)
    chaos.submit(min=1, max=4)
    chaos.calm()
    assert chaos.sizes() == {"j1": 2, "j2": 2}
    before = state_of(chaos.engine).world.held.owner.copy()
    chaos.finish(0)
    while chaos.thoughts:
        chaos.think()
    (op,) = chaos.ops
    assert op.kind == OpKind.RESIZE
    chaos.carry_out(fail=True)
    chaos.deliver()
    assert chaos.job("j2")["phase"] == Phase.RUNNING
    assert chaos.sizes() == {"j2": 2}
    slot = state_of(chaos.engine).world.slot("j2")
    held = state_of(chaos.engine).world.held.owner
    assert ((held == slot) == (before == slot)).all(), "what it claimed is free again, what it had it has"


def _taken_for_gone(chaos: Chaos, *, issue: bool = True) -> int:
    """A job that has ended is not observed and its end has not been heard: it starts again. The generation that ran."""
    generation, _ = chaos.truth.pop(0)
    chaos.observe()
    while issue and chaos.thoughts:
        chaos.think()
    return generation


def _ends(kind: type[ev.JobsFinished | ev.JobsFailed | ev.JobsLeft], generation: int) -> ev.Event:
    return kind(at=0.0, number=np.array([0]), generation=np.array([generation]))


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_late_end_stops_the_start_that_followed_and_the_job_has_succeeded(carried_out: bool) -> None:
    chaos = desk(2)
    chaos.submit(min=2)
    chaos.calm()
    generation = _taken_for_gone(chaos)
    assert [(op.kind, op.generation) for op in chaos.ops] == [(OpKind.START, generation + 1)]
    if carried_out:
        chaos.carry_out()
        while chaos.reports:
            chaos.deliver()
        assert chaos.job("j1")["phase"] == Phase.RUNNING
    chaos.tell(_ends(ev.JobsFinished, generation))
    assert not chaos.ended, "the devices of the start are in use until it has stopped"
    chaos.users("cancel", 0)
    assert (chaos.ops[-1].kind, chaos.ops[-1].generation) == (OpKind.STOP, generation + 2)
    chaos.submit(min=2)
    chaos.calm()
    assert chaos.phases[0] == Phase.SUCCEEDED
    assert sorted(chaos.truth) == [1]


def test_a_late_end_withdraws_a_start_that_has_not_gone_out() -> None:
    chaos = desk(2)
    chaos.submit(min=2)
    chaos.calm()
    generation = _taken_for_gone(chaos, issue=False)
    chaos.tell(_ends(ev.JobsFinished, generation))
    assert chaos.phases == {0: Phase.SUCCEEDED}
    chaos.calm()
    assert not chaos.truth


@pytest.mark.parametrize("issue", [False, True])
def test_a_late_failure_counts_once_and_withdraws_the_start_that_followed(issue: bool) -> None:
    chaos = desk(2, backoff_s=1.0)
    chaos.submit(min=2, retries=1)
    chaos.calm()
    generation = _taken_for_gone(chaos, issue=issue)
    for _ in range(2):
        chaos.tell(_ends(ev.JobsFailed, generation))
    assert (chaos.why("j1"), chaos.job("j1")["retried"]) == ("restarting", 1)
    while chaos.job("j1")["phase"] != Phase.RUNNING:
        chaos.calm()
        chaos.pass_time(max(chaos.wake - chaos.now, 0.0))
    chaos.tell(_ends(ev.JobsFailed, generation))
    assert chaos.job("j1")["phase"] == Phase.RUNNING, "a backend may tell of an end again"
    generation = _taken_for_gone(chaos, issue=issue)
    chaos.tell(_ends(ev.JobsFailed, generation))
    chaos.calm()
    assert chaos.phases == {0: Phase.FAILED}, "its one retry is used up"
    assert not chaos.truth


def test_a_job_that_left_by_itself_starts_once() -> None:
    chaos = desk(2, backoff_s=1.0)
    chaos.submit(min=2)
    chaos.calm()
    generation = _taken_for_gone(chaos)
    chaos.tell(_ends(ev.JobsLeft, generation))
    assert [op.kind for op in chaos.ops] == [OpKind.START, OpKind.STOP]
    assert chaos.why("j1") == "left"
    chaos.calm()
    assert not chaos.truth


@pytest.mark.parametrize("resize", [False, True])
def test_a_failure_that_crosses_an_operation_is_a_failure(resize: bool) -> None:
    chaos = desk(4)
    chaos.submit(min=1, max=4)
    chaos.calm()
    if resize:
        chaos.submit(min=2)
        chaos.think()
    else:
        chaos.users("suspend", 0)
        chaos.users("resume", 0)
    assert [op.kind for op in chaos.ops] == [OpKind.RESIZE if resize else OpKind.STOP]
    chaos.break_job(0)
    chaos.calm()
    assert chaos.phases == {0: Phase.FAILED}


def test_a_job_that_was_suspended_before_its_failure_was_heard_of_stays_so() -> None:
    chaos = desk(2)
    chaos.submit(min=2)
    chaos.calm()
    generation = _taken_for_gone(chaos, issue=False)
    chaos.users("suspend", 0)
    chaos.tell(_ends(ev.JobsFailed, generation))
    chaos.calm()
    assert chaos.job("j1")["phase"] == Phase.SUSPENDED


@pytest.mark.parametrize(
    ("asked", "phase"),
    [(("suspend",), Phase.SUSPENDED), (("cancel",), Phase.CANCELLED), (("suspend", "resume"), Phase.FAILED)],
)
def test_a_failure_may_answer_a_stop(asked: tuple[str, ...], phase: int) -> None:
    """The backend found that the workers had failed before it could stop them: what users asked for counts first."""
    chaos = desk(2)
    chaos.submit(min=2)
    chaos.calm()
    for what in asked:
        chaos.users(what, 0)
    (stop,) = chaos.ops
    assert stop.kind == OpKind.STOP
    chaos.ops.clear()
    chaos.truth.pop(0)
    chaos.tell(_ends(ev.JobsFailed, stop.generation))
    assert (chaos.phases.get(0) or chaos.job("j1")["phase"]) == phase
    chaos.submit(min=2)
    chaos.calm()
    assert sorted(chaos.truth) == [1], "the devices are free at once"


def _loses(chaos: Chaos, *indices: int) -> None:
    """Workers of the first job are lost at once, which its backend reports one by one."""
    generation = np.array([chaos.job("j1")["generation"]])
    chaos.tell(
        *(
            ev.WorkersFailed(
                at=chaos.now,
                number=np.array([0]),
                generation=generation,
                running=np.array([0]),
                index=np.array([index]),
            )
            for index in indices
        )
    )


def test_workers_that_are_lost_at_once_cost_one_retry() -> None:
    chaos = desk(4)
    chaos.submit(min=4, max=4, retries=2, resizes_in_place=True)
    chaos.calm()
    chaos.truth.pop(0)
    _loses(chaos, 2, 3)
    assert (chaos.why("j1"), chaos.job("j1")["retried"]) == ("restarting", 1)
    (stop,) = chaos.ops
    chaos.ops.clear()
    chaos.tell(_ends(ev.JobsFailed, stop.generation))
    assert chaos.job("j1")["retried"] == 1, "those that were left failed, too, before they could be stopped"
    assert chaos.job("j1")["phase"] == Phase.PENDING
