"""What the engine promises, one promise per test, in a world that does as it is told."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from levada.core import codec
from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Device, Foreign, Node
from levada.core.commands import Apply, Decide, Wake
from levada.core.job import Job, Phase, Preemptible
from levada.core.plan import OpKind
from levada.core.queue import Queue
from levada.engine import Engine, Options, answer
from tests.engine.chaos import Chaos


def desk(*gpus: int, policy: str = "elastic-fifo", **options: Any) -> Chaos:
    nodes = tuple(Node.of(f"n{i}", {"v100": count}) for i, count in enumerate(gpus))
    return Chaos(policy=policy, nodes=nodes, **options)


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
    starts = [op for op in chaos.ops if op.kind is OpKind.START]
    assert len(starts) == 1, "whoever waits for the quick one starts"
    assert set(starts[0].adds) == set(quick.drops)
    assert chaos.job(slow.job)["phase"] == Phase.RESIZING


class Swap:
    """Gives each of two jobs the node of the other, every time it is asked."""

    name, by_node = "swap", True

    def __init__(self) -> None:
        from levada.policies.protocol import NO_GUARDS, ON_EVENTS, Needs

        self.needs, self.cadence, self.guards = Needs.NOTHING, ON_EVENTS, NO_GUARDS

    def initial(self, seed: int) -> None:
        return None

    def decide(self, snap: Any, perf: Any, state: None) -> tuple[Any, None]:
        from levada.core.decision import decision

        count = np.full(len(snap), 2)
        turned = bool((snap.jobs.held > 0).all()) and len(snap) == 2
        places = [
            [row, index, node, 2 * node + index, 1000, 0]
            for row in range(len(snap))
            for node in [(row + turned) % 2]
            for index in range(2)
        ]
        columns = np.array(places, np.int64).reshape(-1, 6).T
        return decision(snap, np.ones(len(snap), np.int64), count, places=columns, placed=np.arange(len(snap))), None


def test_a_cycle_of_waits_is_broken_by_a_stop_and_a_start() -> None:
    nodes = (Node.of("a", {"v100": 2}), Node.of("b", {"v100": 2}))
    chaos = Chaos(nodes=nodes)
    chaos.engine = Engine(
        cluster=Cluster(nodes=nodes),
        policy="swap",
        make_policy=lambda name, options: Swap(),  # type: ignore[arg-type,return-value]
        options=Options(rate_limit_s=0.0),
    )
    chaos.submit(min=2)
    chaos.submit(min=2)
    for _ in range(6):
        chaos.pass_time(5.0)
        while chaos.thoughts:
            chaos.think()
        while chaos.ops:
            chaos.carry_out()
        while chaos.reports:
            chaos.deliver()
    operations = [line.split()[:2] for line in chaos.story if line.split()[0] in ("START", "RESIZE", "STOP")]
    swap = [["START", "j1"], ["START", "j2"], ["STOP", "j2"], ["RESIZE", "j1"], ["START", "j2"]]
    assert operations[:5] == swap


class Wish:
    """Gives each job, by number, the type and size in `gives`."""

    name = "wish"

    def __init__(self, gives: dict[int, tuple[str, int]]) -> None:
        from levada.policies.protocol import NO_GUARDS, ON_EVENTS, Needs

        self.needs, self.cadence, self.guards, self.gives = Needs.NOTHING, ON_EVENTS, NO_GUARDS, gives

    def initial(self, seed: int) -> None:
        return None

    def decide(self, snap: Any, perf: Any, state: None) -> tuple[Any, None]:
        from levada.core.decision import decision

        given = [self.gives[int(number)] for number in snap.jobs.number]
        kinds = np.array([snap.inventory.types.find(kind) for kind, _ in given], np.int64)
        return decision(snap, kinds, np.array([count for _, count in given], np.int64)), None


@pytest.mark.parametrize(("taken", "left"), [(False, 2), (True, 0)])
def test_a_job_that_finds_no_room_on_another_type_keeps_what_it_has_unless_it_is_taken(taken: bool, left: int) -> None:
    """Workers of two GPUs; of the other type there is one on each node."""
    nodes = (Node.of("a", {"v100": 4}), Node.of("b", {"a100": 1}), Node.of("c", {"a100": 1}))
    chaos = Chaos(nodes=nodes)
    gives = {0: ("v100", 2), 1: ("v100", 0)}
    chaos.engine = Engine(
        cluster=Cluster(nodes=nodes),
        policy="wish",
        make_policy=lambda name, options: Wish(gives),  # type: ignore[arg-type,return-value]
        options=Options(rate_limit_s=0.0),
    )
    chaos.submit(min=1, max=2, milli=2000, gpu_types=("v100", "a100"))
    chaos.calm()
    before = chaos.truth[0]
    gives |= {0: ("a100", 1), 1: ("v100", 1 if taken else 0)}
    chaos.submit(min=1, milli=2000)
    chaos.calm()
    assert chaos.sizes()["j1"] == left
    assert taken or chaos.truth[0] == before, "not even a stop and a start"
    assert chaos.engine.state.rejections == 0
    if taken:
        assert chaos.why("j1") == "fragmented"


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
    chaos.engine.state.account(chaos.engine.state.living())
    job = chaos.job("j1")
    assert (job["waiting_s"], job["running_s"], job["gpu_seconds"]) == (60.0, 100.0, 200.0)
    chaos.tell(ev.WorkersStopped(at=chaos.now, number=np.array([0]), generation=np.array([1]), running=np.array([1])))
    chaos.pass_time(10.0)
    chaos.engine.state.account(chaos.engine.state.living())
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
    assert wakes == [30.0], "the rest is due when the limit allows, and nobody spins until then"
    (decide,) = [c for c in engine.handle(ev.Tick(at=30.0)) if isinstance(c, Decide)]
    assert len(decide.snapshot) == 99, "all that came meanwhile; the first one is just starting"


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


def test_protected_jobs_are_not_touched_until_they_have_saved() -> None:
    chaos = desk(4)
    chaos.submit(min=1, max=4, preemptible=Preemptible.AUTO, resizes_in_place=False)
    chaos.calm()
    chaos.submit(min=2)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4, "j2": 0}
    generation = np.array([chaos.job("j1")["generation"]])
    chaos.tell(ev.CheckpointSaved(at=0.0, number=np.array([0]), generation=generation))
    chaos.calm()
    assert chaos.sizes() == {"j1": 2, "j2": 2}


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


def _spoiled(**columns: Any) -> Any:
    def spoil(decided: ev.Decided) -> ev.Decided:
        return msgspec.structs.replace(decided, decision=msgspec.structs.replace(decided.decision, **columns))

    return spoil


@pytest.mark.parametrize(
    "columns",
    [
        {"count": np.array([99, 1]), "type": np.array([1, 1])},
        {"count": np.array([1, 1, 1])},
        {"reason": np.array([77, 0])},
        {"count": np.array([1, 1]), "type": np.array([1, 9])},
        {"count": np.array([-1, 1])},
        {"count": np.array([1.5, 1.0])},
        {"number": np.array([0, 0])},
    ],
)
def test_a_bad_decision_is_never_carried_out(columns: dict[str, Any]) -> None:
    chaos = desk(4, policy="fifo")
    chaos.tell(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of([Job(id=name, submitted=0.0) for name in "ab"])))
    chaos.think(spoil=_spoiled(**columns))
    assert all(len(op.adds) == 1 for op in chaos.ops), "what breaks a rule does not go out"
    assert "rejected" in {chaos.why("a"), chaos.why("b")}
    chaos.pass_time(20.0)
    chaos.calm()
    assert chaos.sizes() == {"a": 1, "b": 1}, "the next try is a good one"


def _break_three_times(chaos: Chaos) -> None:
    for _ in range(3):
        while not chaos.thoughts:
            chaos.pass_time(max(chaos.wake - chaos.now, 1.0))
        chaos.think(fail=True)
        assert chaos.why("j1") == "rejected"


def test_after_three_rejections_plain_fifo_takes_over_until_the_policy_changes() -> None:
    chaos = desk(4, max_rejections=3)
    chaos.submit(min=1, max=4)
    _break_three_times(chaos)
    chaos.calm()
    assert chaos.sizes() == {"j1": 1}, "FIFO gives the minimum"
    chaos.switch_policy("elastic-fifo")
    chaos.calm()
    assert chaos.sizes() == {"j1": 4}


def test_a_decision_that_took_too_long_does_not_count() -> None:
    chaos = desk(4, decide_limit_s=10.0)
    chaos.submit(min=1)
    chaos.think(spoil=lambda decided: msgspec.structs.replace(decided, took_s=10.5))
    assert "10.5 s" in chaos.engine.state.last_rejection
    assert not chaos.ops


def test_rows_of_jobs_that_changed_meanwhile_drop_out_and_the_rest_counts() -> None:
    chaos = desk(4, policy="fifo")
    chaos.submit(min=1)
    chaos.thoughts.clear()
    chaos.engine.state.deciding = None
    chaos.submit(min=1)
    chaos.users("cancel", 0)
    chaos.think()
    assert [op.job for op in chaos.ops] == ["j2"]


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
    assert chaos.job("j1")["restarts"] == 0, "a lost node costs no retry"


def test_a_device_that_vanished_under_an_operation_is_taken_until_a_stop_is_seen() -> None:
    chaos = desk(2, 1)
    chaos.submit(min=2)
    chaos.think()
    chaos.change_node("n0", 0)
    assert [(op.kind, op.generation) for op in chaos.ops] == [(OpKind.START, 1), (OpKind.STOP, 2)]
    assert chaos.engine.state.world.snapshot(0.0).capacity[1] == 1000, "what is gone counts for nothing"
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


def test_training_makes_room_for_a_serving_pod_and_grows_back() -> None:
    chaos = desk(4, 2)
    chaos.submit(min=1, max=6)
    chaos.calm()
    assert chaos.sizes() == {"j1": 6}
    chaos.foreign("web", milli=2000, serving=True)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4}
    kept = chaos.engine.state.reservations["web"]
    node = chaos.engine.state.world.inventory.nodes[kept.node]
    chaos.foreign("web", node=node, milli=2000, serving=True)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4}
    assert not chaos.engine.state.reservations
    chaos.foreign_gone("web")
    chaos.calm()
    assert chaos.sizes() == {"j1": 6}


def test_serving_never_cuts_a_job_below_its_minimum() -> None:
    chaos = desk(4)
    chaos.submit(min=4)
    chaos.calm()
    chaos.foreign("web", milli=1000, serving=True)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4}


def test_queues_are_sure_of_their_guarantee_and_lend_the_rest() -> None:
    chaos = desk(8)
    chaos.set_queues((Queue(name="prod", guaranteed={"v100": 6}), Queue(name="lab")))
    chaos.submit(min=1, max=8, queue="lab")
    chaos.calm()
    assert chaos.sizes() == {"j1": 8}, "what nobody claims is lent"
    chaos.submit(min=2, max=6, queue="prod")
    chaos.calm()
    assert chaos.sizes() == {"j1": 2, "j2": 6}, "and reclaimed by shrinking"


def test_a_job_is_in_its_queue_again_when_the_queue_comes_back() -> None:
    lab, prod = Queue(name="lab"), Queue(name="prod", limit={"v100": 1})
    chaos = desk(8)
    chaos.set_queues((lab, prod))
    chaos.submit(min=1, max=4, queue="prod")
    chaos.submit(min=1, max=4, queue="lab")
    chaos.users("update", 1, queue="prod")
    chaos.set_queues((lab,))
    chaos.calm()
    assert chaos.sizes() == {"j1": 4, "j2": 4}, "nobody limits the default queue"
    chaos.set_queues((prod, lab))
    chaos.calm()
    assert chaos.sizes() == {"j1": 1, "j2": 0}
    assert chaos.why("j2") == "queue-limit"


@pytest.mark.parametrize("policy", ["elastic-fifo", "dragon"])
def test_a_user_has_no_more_of_a_queue_than_one_user_may_have(policy: str) -> None:
    chaos = desk(8, policy=policy)
    chaos.set_queues((Queue(name="lab", per_user_limit={"v100": 2}),))
    for _ in range(3):
        chaos.submit(min=1, max=1, queue="lab", user="ann")
    chaos.submit(min=3, queue="lab", user="ann")
    chaos.submit(min=1, max=1, queue="lab", user="bob")
    for _ in range(6):
        chaos.calm()
        chaos.pass_time(61.0)
    assert chaos.sizes() == {"j1": 1, "j2": 1, "j3": 0, "j4": 0, "j5": 1}
    assert [chaos.why(name) for name in ("j3", "j4")] == ["user-limit", "user-limit"]
    assert chaos.engine.explain("j3").would_help == ("Less for other jobs of its user, or another queue than lab.",)
    chaos.set_queues((Queue(name="lab", per_user_limit={"v100": 6}),))
    for _ in range(6):
        chaos.calm()
        chaos.pass_time(61.0)
    assert chaos.sizes() == {"j1": 1, "j2": 1, "j3": 1, "j4": 3, "j5": 1}


@pytest.mark.parametrize("bound", ["limit", "per_user_limit"])
def test_a_policy_that_decides_by_node_passes_over_a_type_that_limits_rule_out(bound: str) -> None:
    chaos = Chaos(policy="dragon-compat", nodes=(Node.of("a", {"v100": 4, "a100": 4}),))
    lab: dict[str, Any] = {"name": "lab", bound: {"v100": 2}}
    chaos.set_queues((Queue(**lab),))
    chaos.submit(min=3, queue="lab", gpu_types=("v100", "a100"))
    for _ in range(4):
        chaos.calm()
        chaos.pass_time(61.0)
    assert chaos.engine.explain("j1").gpu_type == "a100"


@pytest.mark.parametrize("policy", ["dragon", "dragon-compat"])
def test_a_job_that_would_start_too_large_for_a_limit_starts_smaller(policy: str) -> None:
    chaos = desk(8, policy=policy)
    chaos.set_queues((Queue(name="lab", per_user_limit={"v100": 2}),))
    chaos.submit(min=1, max=6, desired=4, queue="lab")
    for _ in range(4):
        chaos.calm()
        chaos.pass_time(61.0)
    assert 1 <= chaos.sizes()["j1"] <= 2


@pytest.mark.parametrize("fails", [False, True])
def test_a_job_that_became_impossible_while_it_ran_says_so_when_it_has_stopped(fails: bool) -> None:
    chaos = desk(8)
    chaos.set_queues((Queue(name="lab"),))
    chaos.submit(min=3, queue="lab", retries=1)
    chaos.calm()
    chaos.set_queues((Queue(name="lab", limit={"v100": 2}),))
    if fails:
        chaos.break_job(0)
    chaos.calm()
    chaos.pass_time(max(chaos.wake - chaos.now, 0.0) if chaos.wake < math.inf else 0.0)
    chaos.calm()
    assert chaos.why("j1") == "queue-limit"


def test_a_limit_counts_on_the_types_that_exist() -> None:
    chaos = desk(8)
    chaos.set_queues((Queue(name="lab", limit={"v100": 2}),))
    chaos.submit(min=1, gpu_types=("k80",))
    chaos.submit(min=4, queue="lab")
    assert chaos.why("j2") == "queue-limit", "k80 has no limit, and no GPU either"


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
    before = chaos.engine.state.world.target.owner.copy()
    jobs = JobBatch.of([Job(id="x", submitted=1.0, min=2, max=2)])
    commands = twin.handle(ev.JobsSubmitted(at=1.0, jobs=jobs))
    (decide,) = [c for c in commands if isinstance(c, Decide)]
    (apply,) = [c for c in twin.handle(answer(decide, 1.0)) if isinstance(c, Apply)]
    assert len(apply.plan) == 1
    assert (chaos.engine.state.world.target.owner == before).all()
    assert chaos.active() == [0]
    assert "x" in twin.state.world.numbers


def test_a_copy_of_the_state_knows_what_the_policy_was_shown() -> None:
    chaos = desk(4)
    chaos.submit(min=1)
    twin = Engine(cluster=Cluster(), options=Options(rate_limit_s=0.0))
    twin.state = chaos.engine.state.copy()
    decided = answer(chaos.thoughts[0], 0.0)
    assert any(isinstance(command, Apply) for command in twin.handle(decided))


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
    ours, theirs = chaos.engine.state.world, again.state.world
    np.testing.assert_array_equal(ours.table.ints, theirs.table.ints)
    np.testing.assert_array_equal(ours.table.floats, theirs.table.floats)
    np.testing.assert_array_equal(ours.held.owner, theirs.held.owner)
    assert type(again.state.policy_state) is type(chaos.engine.state.policy_state)
    inner = again.state.policy_state.inner.get("default")
    assert type(inner) is type(chaos.engine.state.policy_state.inner.get("default")), "a state keeps its type"


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


def test_progress_teaches_how_fast_a_workload_is() -> None:
    chaos = desk(4)
    chaos.submit(min=2, max=2, workload="resnet", steps=1000.0)
    chaos.calm()
    for steps in (100.0, 200.0, 300.0):
        chaos.pass_time(10.0)
        chaos.tell(ev.Progress(at=chaos.now, number=np.array([0]), steps=np.array([steps])))
    chaos.engine.state.learn()
    rate = chaos.engine.state.perf.rate(0, 1, 2)
    assert math.isclose(rate, 10.0, rel_tol=0.05)


def test_restarts_teach_what_a_restart_costs() -> None:
    chaos = desk(4, backoff_s=0.0, op_timeout_s=1000.0)
    chaos.submit(min=1, max=4, workload="resnet", resizes_in_place=False, retries=9)
    perf = chaos.engine.state.perf
    start_s, resize_s = perf.restart_cost_s(0, 0, 4), perf.restart_cost_s(0, 4, 3)

    def slowly(seconds: float) -> None:
        """Carries out what is on the wire, *seconds* after it went out."""
        while chaos.thoughts:
            chaos.think()
        chaos.pass_time(seconds)
        chaos.calm()
        chaos.engine.state.learn()

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
    before = chaos.engine.state.perf.restart_cost_s(0, 4, 3)
    chaos.submit(min=1)
    chaos.think()
    chaos.carry_out(lose=True)
    while chaos.job("j1")["phase"] != Phase.RUNNING:
        chaos.pass_time(max(chaos.wake - chaos.now, 0.0))
        chaos.calm()
    chaos.engine.state.learn()
    assert chaos.sizes() == {"j1": 3, "j2": 1}
    assert chaos.engine.state.perf.restart_cost_s(0, 4, 3) == before


def test_unknown_and_old_reports_change_nothing() -> None:
    chaos = desk(4)
    chaos.submit(min=1, max=2)
    chaos.calm()
    before = chaos.engine.state.world.table.ints.copy()
    for kind in (ev.Running, ev.Released, ev.OperationFailed, ev.OperationTimedOut, ev.JobsFailed):
        for number, generation in ((0, 0), (0, 99), (123, 1)):
            chaos.tell(kind(at=0.0, number=np.array([number]), generation=np.array([generation])))
    chaos.tell(ev.JobsFinished(at=0.0, number=np.array([55])))
    np.testing.assert_array_equal(chaos.engine.state.world.table.ints, before)


def test_what_is_left_of_a_broken_job_stops_at_once_and_the_pause_comes_after() -> None:
    chaos = desk(4, backoff_s=100.0)
    chaos.submit(min=4, max=4, retries=1, resizes_in_place=False)
    chaos.calm()
    chaos.break_worker(0, 2)
    assert [op.kind for op in chaos.ops] == [OpKind.STOP], "it must not keep its GPUs through the pause"
    chaos.calm()
    assert (chaos.engine.state.world.held.owner == -1).all()
    assert chaos.why("j1") == "restarting"
    assert chaos.job("j1")["retry_at"] >= 75.0


def test_a_job_without_its_first_worker_starts_again_though_enough_are_left() -> None:
    chaos = desk(4)
    chaos.submit(min=1, max=4, retries=1)
    chaos.calm()
    chaos.break_worker(0, 0)
    assert chaos.job("j1")["restarts"] == 1
    assert chaos.job("j1")["phase"] == Phase.STOPPING


def test_a_failed_resize_leaves_the_job_as_it_was() -> None:
    chaos = desk(4)
    chaos.submit(min=2, max=2)
    chaos.submit(min=1, max=4)
    chaos.calm()
    assert chaos.sizes() == {"j1": 2, "j2": 2}
    before = chaos.engine.state.world.held.owner.copy()
    chaos.finish(0)
    while chaos.thoughts:
        chaos.think()
    (op,) = chaos.ops
    assert op.kind is OpKind.RESIZE
    chaos.carry_out(fail=True)
    chaos.deliver()
    assert chaos.job("j2")["phase"] == Phase.RUNNING
    assert chaos.sizes() == {"j2": 2}
    slot = chaos.engine.state.world.slot("j2")
    held = chaos.engine.state.world.held.owner
    assert ((held == slot) == (before == slot)).all(), "what it claimed is free again, what it had it has"


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


def test_serving_takes_nothing_from_protected_jobs() -> None:
    chaos = desk(4)
    chaos.submit(min=1, max=4, preemptible=Preemptible.NEVER)
    chaos.calm()
    chaos.foreign("web", milli=1000, serving=True)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4}
    assert not chaos.engine.state.reservations


def test_serving_gets_cores_where_there_are_no_gpus() -> None:
    chaos = Chaos(nodes=(Node(name="a", cpu=8000),))
    chaos.submit(min=1, max=8, milli=0, cpu=1000)
    chaos.calm()
    chaos.foreign("web", cpu=3000, serving=True)
    chaos.calm()
    assert chaos.sizes() == {"j1": 5}
    assert "web" in chaos.engine.state.reservations


def test_serving_room_counts_cores_too() -> None:
    chaos = Chaos(nodes=(Node.of("a", {"v100": 2}, cpu=4000), Node.of("b", {"v100": 4}, cpu=16000)))
    chaos.foreign("web", milli=1000, cpu=8000, serving=True)
    chaos.calm()
    kept = chaos.engine.state.reservations["web"]
    assert chaos.engine.state.world.inventory.nodes[kept.node] == "b"


def test_room_for_a_serving_pod_moves_when_its_node_is_lost() -> None:
    chaos = desk(2, 2)
    chaos.foreign("web", milli=1000, serving=True)
    chaos.calm()
    inventory = chaos.engine.state.world.inventory
    first = inventory.nodes[chaos.engine.state.reservations["web"].node]
    chaos.lose_node(first)
    chaos.calm()
    assert inventory.nodes[chaos.engine.state.reservations["web"].node] != first


def test_a_job_whose_workers_fit_nowhere_says_that_there_is_room_but_not_in_one_piece() -> None:
    chaos = desk(1, 1, policy="fifo")
    chaos.tell(ev.NodesAdded(at=0.0, nodes=(Node.of("big", {"v100": 2}),)))
    chaos.submit(min=1, milli=2000)
    chaos.calm()
    chaos.submit(min=1, milli=2000)
    chaos.calm()
    assert chaos.why("j2") == "fragmented"


def test_an_answer_about_a_job_that_was_updated_meanwhile_does_not_count_for_it() -> None:
    chaos = desk(4, policy="fifo")
    chaos.tell(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of([Job(id=name, submitted=0.0) for name in "ab"])))
    chaos.users("update", 0, max=3)
    chaos.think()
    assert [op.job for op in chaos.ops] == ["b"]


def test_an_answer_about_a_job_that_was_not_asked_about_does_not_count() -> None:
    chaos = desk(4, policy="fifo")
    chaos.submit(min=1, max=1)
    chaos.calm()
    chaos.submit(min=1, after=("j1",))
    decide = chaos.thoughts.pop()
    decided: Any = answer(decide, 0.0)
    both = {"number": np.array([0, 1]), "type": np.array([1, 1]), "count": np.array([1, 1])}
    both |= {"reason": np.array([0, 0]), "evidence": np.array([0, 0]), "rank": np.array([0, 1])}
    chaos.tell(_spoiled(**both)(decided))
    assert chaos.sizes() == {"j1": 1, "j2": 0}


def test_plain_fifo_gives_way_when_circumstances_change() -> None:
    chaos = desk(4, max_rejections=3)
    chaos.submit(min=1, max=4)
    _break_three_times(chaos)
    chaos.calm()
    assert chaos.sizes() == {"j1": 1}
    chaos.tell(ev.NodesAdded(at=chaos.now, nodes=(Node.of("new", {"v100": 1}),)))
    chaos.calm()
    assert chaos.sizes() == {"j1": 4}


def test_submitting_a_job_twice_changes_nothing_of_the_first() -> None:
    chaos = desk(4)
    chaos.submit(min=1)
    chaos.submit(min=1)
    chaos.calm()
    again = [Job(id="j1", submitted=0.0, after=("j2",)), Job(id="new", submitted=0.0)]
    chaos.tell(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of(again)))
    assert chaos.job("j1")["waits_for"] == 0
    assert chaos.engine.state.submitted == 3


def test_faulty_queues_change_nothing() -> None:
    chaos = desk(4)
    before = chaos.engine.state.world.queues
    for queues in ((Queue(name="a", parent="a"),), (Queue(name="a", weight=0.0),), (Queue(name="a", parent="b"),)):
        chaos.set_queues(queues)
        assert chaos.engine.state.world.queues is before
        assert "queue a" in chaos.engine.state.last_rejection


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


@pytest.mark.parametrize(
    "event",
    [
        ev.PricesChanged(at=0.0, prices=None),  # type: ignore[arg-type]  # a shell that breaks its word
        ev.PricesChanged(at=0.0, prices={"v100": math.nan}),
        ev.ForeignAppeared(at=0.0, foreign=(Foreign(id="x", node="n0", cpu=-(10**9)),)),
        ev.NodesChanged(at=0.0, nodes=(Node(name="n0", devices=(Device(id="0", type="v100"),) * 2),)),
    ],
)
def test_an_event_that_cannot_be_is_refused_and_the_next_one_counts(event: ev.Event) -> None:
    engine = desk(4).engine
    jobs = JobBatch.of([Job(id="a", submitted=0.0)])
    commands = engine.handle(event, ev.JobsSubmitted(at=0.0, jobs=jobs))
    assert engine.state.refused == 1
    assert any(isinstance(command, Decide) for command in commands)


def test_policies_see_prices_and_which_types_have_none() -> None:
    chaos = desk(4)
    chaos.tell(codec.decode(codec.encode(ev.PricesChanged(at=0.0, prices={"v100": 2.5, "h100": 9.0}))))
    chaos.think()
    chaos.submit(min=1, gpu_types=("v100", "k80"))
    snap = chaos.thoughts[0].snapshot
    seen = dict(zip(snap.inventory.types, snap.prices.tolist(), strict=True))
    assert seen["v100"] == 2.5
    assert math.isnan(seen["k80"]), "no price is not the same as no cost"
    assert snap.restricted(np.arange(1), snap.capacity).prices is snap.prices
    chaos.tell(ev.PricesChanged(at=0.0, prices={"v100": 3.0}))
    assert snap.prices[1] == 2.5, "the question stays as it was asked"
