"""Decisions: valid, invalid and late ones, and the input of policies."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec
import numpy as np
import pytest

from levada.core import codec
from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Device, Foreign, Node
from levada.core.commands import Apply, Decide
from levada.core.job import Job
from levada.core.plan import OpKind
from levada.engine import Engine, Options, run_policy
from tests import kernel_modes
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld, faulty_world


def ruled_by(policy: Any, *nodes: Node, **options: float) -> FaultyWorld:
    """A world with an unregistered policy."""
    system = FaultyWorld(nodes=nodes)
    system.engine = Engine(
        cluster=Cluster(nodes=nodes),
        policy=policy.name,
        make_policy=lambda name, given: policy,
        options=Options(rate_limit_s=0.0, **options),
    )
    return system


class Swap:
    """Assigns each of two jobs the node of the other in every decision."""

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
    system = ruled_by(Swap(), Node.of("a", {"v100": 2}), Node.of("b", {"v100": 2}))
    system.submit(min=2)
    system.submit(min=2)
    for _ in range(6):
        system.pass_time(5.0)
        while system.thoughts:
            system.think()
        while system.ops:
            system.carry_out()
        while system.reports:
            system.deliver()
    operations = [line.split()[:2] for line in system.history if line.split()[0] in ("START", "RESIZE", "STOP")]
    swap = [["START", "j1"], ["START", "j2"], ["STOP", "j2"], ["RESIZE", "j1"], ["START", "j2"]]
    assert operations[:5] == swap


class Wish:
    """Assigns each job, by number, the type and size in `gives`."""

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


@pytest.mark.parametrize("cores", [0, 1000])
def test_a_cycle_of_waits_is_broken_at_once_while_another_job_moves(cores: int) -> None:
    gives = {0: ("v100", 2), 1: ("a100", 2)}
    nodes = (Node.of("a", {"v100": 2}), Node.of("b", {"a100": 2}), Node.of("c", {"k80": 1}))
    system = ruled_by(Wish(gives), *nodes, min_run_s=0.0, cooldown_s=0.0)
    for _ in range(2):
        system.submit(min=2, cpu=cores)
    system.calm()
    gives |= {0: ("a100", 2), 1: ("v100", 2), 2: ("k80", 1)}
    system.submit(min=1)
    system.think()
    assert sorted((OpKind.name(op.kind), op.job) for op in system.ops) == [("START", "j3"), ("STOP", "j2")]
    system.calm()
    assert system.sizes() == {"j1": 2, "j2": 2, "j3": 1}


@pytest.mark.parametrize(("taken", "left"), [(False, 2), (True, 0)])
def test_a_failed_type_change_keeps_the_devices_unless_they_are_taken(taken: bool, left: int) -> None:
    """Workers of two GPUs; the other type has one GPU per node."""
    gives = {0: ("v100", 2), 1: ("v100", 0)}
    system = ruled_by(Wish(gives), Node.of("a", {"v100": 4}), Node.of("b", {"a100": 1}), Node.of("c", {"a100": 1}))
    system.submit(min=1, max=2, milli=2000, gpu_types=("v100", "a100"))
    system.calm()
    before = system.truth[0]
    gives |= {0: ("a100", 1), 1: ("v100", 1 if taken else 0)}
    system.submit(min=1, milli=2000)
    system.calm()
    assert system.sizes()["j1"] == left
    assert taken or system.truth[0] == before, "without a stop and a start"
    assert system.engine.query.rejections == 0
    if taken:
        assert system.why("j1") == "fragmented"


def test_a_failed_type_change_yields_to_the_job_that_got_its_cores() -> None:
    gives = {0: ("v100", 1)}
    nodes = (Node.of("a", {"v100": 2}, cpu=2000), Node.of("b", {"a100": 1}, cpu=1000))
    system = ruled_by(Wish(gives), *nodes, min_run_s=0.0, cooldown_s=0.0)
    system.submit(min=1, cpu=2000, gpu_types=("v100", "a100"))
    system.calm()
    gives |= {0: ("a100", 1), 1: ("v100", 1)}
    system.submit(min=1, cpu=2000)
    system.calm()
    assert (system.sizes(), system.why("j1")) == ({"j1": 0, "j2": 1}, "fragmented")
    assert system.job("j2")["failures"] == 0, "no job has a violation"


@pytest.mark.parametrize("kernels", ["interpreted", "compiled"])
def test_moves_and_resizes_are_counted_separately(kernels: Literal["interpreted", "compiled"]) -> None:
    kernel_modes.use(kernels)
    try:
        gives = {0: ("v100", 2)}
        system = ruled_by(Wish(gives), Node.of("a", {"v100": 4}), Node.of("b", {"a100": 4}))
        system.submit(min=1, max=4, gpu_types=("v100", "a100"))
        system.calm()
        seen = []
        for wish in (("a100", 2), ("a100", 3), ("v100", 1)):
            gives[0] = wish
            system.users("update", 0, priority=len(seen) + 1)
            system.calm()
            job = system.job("j1")
            seen.append((job["moves"], job["resizes"]))
        assert seen == [(1, 0), (1, 1), (2, 2)]
    finally:
        kernel_modes.use("interpreted")


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
def test_an_invalid_decision_is_rejected(columns: dict[str, Any]) -> None:
    system = faulty_world(4, policy="fifo")
    system.tell(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of([Job(id=name, submitted=0.0) for name in "ab"])))
    system.think(spoil=_spoiled(**columns))
    assert all(len(op.adds) == 1 for op in system.ops), "operations with a violation are not issued"
    assert "rejected" in {system.why("a"), system.why("b")}
    system.pass_time(20.0)
    system.calm()
    assert system.sizes() == {"a": 1, "b": 1}, "the next decision is valid"


@pytest.mark.parametrize("cores", [0, 1000])
def test_a_type_change_releases_devices_before_others_use_them(cores: int) -> None:
    gives = {0: ("v100", 1)}
    nodes = (Node.of("a", {"v100": 1}, cpu=1000), Node.of("b", {"a100": 1}, cpu=1000))
    system = ruled_by(Wish(gives), *nodes, min_run_s=0.0, cooldown_s=0.0)
    system.submit(min=1, cpu=cores, gpu_types=("v100", "a100"))
    system.calm()
    gives |= {0: ("a100", 1), 1: ("v100", 1)}
    system.submit(min=1, cpu=cores)
    there = {"places": np.array([[1, 0, 0, 0, 1000, 0]]).T, "placed": np.array([1], np.int32)}
    system.think(spoil=_spoiled(**there))
    assert (system.engine.query.last_rejection, system.sizes()) == ("", {"j1": 1, "j2": 1})
    system.calm()
    assert system.truth[1][1] == {0: (("a", "0"),)}


@pytest.mark.parametrize(("guilty", "started"), [(1, ["b", "c"]), (2, [])])
def test_violations_of_few_jobs_drop_them_and_of_most_reject_the_decision(guilty: int, started: list[str]) -> None:
    system = faulty_world(4, policy="fifo")
    system.tell(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of([Job(id=name, submitted=0.0) for name in "abc"])))
    system.think(spoil=_spoiled(count=np.array([99] * guilty + [1] * (3 - guilty)), type=np.ones(3, np.int64)))
    assert [op.job for op in system.ops] == started
    assert system.engine.query.rejections == (not started)
    assert system.why("a") == "rejected"


def test_an_invalid_size_is_a_violation_even_without_room() -> None:
    system = faulty_world(1, policy="fifo")
    system.tell(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of([Job(id=name, submitted=0.0) for name in "ab"])))
    system.think(spoil=_spoiled(count=np.array([1, 99]), type=np.array([1, 1])))
    assert [op.job for op in system.ops] == ["a"]
    assert system.why("b") == "rejected"


def _break_three_times(system: FaultyWorld) -> None:
    for _ in range(3):
        while not system.thoughts:
            system.pass_time(max(system.wake - system.now, 1.0))
        system.think(fail=True)
        assert system.why("j1") == "rejected"


def test_after_three_rejections_fifo_decides_until_the_policy_changes() -> None:
    system = faulty_world(4, max_rejections=3)
    system.submit(min=1, max=4)
    _break_three_times(system)
    system.calm()
    assert system.sizes() == {"j1": 1}, "FIFO gives the minimum"
    system.switch_policy("elastic-fifo")
    system.calm()
    assert system.sizes() == {"j1": 4}


def test_the_engine_does_not_reject_slow_decisions() -> None:
    system = faulty_world(4, decide_limit_s=10.0)
    system.submit(min=1)
    system.think(spoil=lambda decided: msgspec.structs.replace(decided, took_s=10.5))
    assert system.engine.query.rejections == 0
    assert [op.job for op in system.ops] == ["j1"]


def test_rows_of_jobs_changed_meanwhile_are_dropped_and_the_rest_applies() -> None:
    system = faulty_world(4, policy="fifo")
    system.submit(min=1)
    system.thoughts.clear()
    state_of(system.engine).deciding = None
    system.submit(min=1)
    system.users("cancel", 0)
    system.think()
    assert [op.job for op in system.ops] == ["j2"]


def test_a_copy_of_the_state_keeps_the_snapshot_of_the_policy() -> None:
    system = faulty_world(4)
    system.submit(min=1)
    twin = system.engine.fork()
    decided = run_policy(system.thoughts[0], 0.0)
    assert any(isinstance(command, Apply) for command in twin.handle(decided))


def test_a_row_of_a_job_updated_meanwhile_is_ignored() -> None:
    system = faulty_world(4, policy="fifo")
    system.tell(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of([Job(id=name, submitted=0.0) for name in "ab"])))
    system.users("update", 0, max=3)
    system.think()
    assert [op.job for op in system.ops] == ["b"]


def test_a_row_of_a_job_outside_the_snapshot_is_ignored() -> None:
    system = faulty_world(4, policy="fifo")
    system.submit(min=1, max=1)
    system.calm()
    system.submit(min=1, after=("j1",))
    decide = system.thoughts.pop()
    decided: Any = run_policy(decide, 0.0)
    both = {"number": np.array([0, 1]), "type": np.array([1, 1]), "count": np.array([1, 1])}
    both |= {"reason": np.array([0, 0]), "evidence": np.array([0, 0]), "rank": np.array([0, 1])}
    system.tell(_spoiled(**both)(decided))
    assert system.sizes() == {"j1": 1, "j2": 0}


def test_the_fifo_fallback_ends_when_the_cluster_changes() -> None:
    system = faulty_world(4, max_rejections=3)
    system.submit(min=1, max=4)
    _break_three_times(system)
    system.calm()
    assert system.sizes() == {"j1": 1}
    system.tell(ev.NodesAdded(at=system.now, nodes=(Node.of("new", {"v100": 1}),)))
    system.calm()
    assert system.sizes() == {"j1": 4}


def test_state_of_the_fifo_fallback_is_not_passed_to_the_policy() -> None:
    system = faulty_world(4, policy="dragon", max_rejections=3)
    system.submit(min=1, max=4)
    _break_three_times(system)
    system.tell(ev.OptionsChanged(at=system.now, options={"backoff_s": 1.0}))
    system.think()
    system.submit(min=1)
    system.calm()
    assert system.sizes() == {"j1": 1, "j2": 1}


@pytest.mark.parametrize("policy", ["tiresias", "dragon", "max_min_fairness"])
def test_a_logged_decision_of_the_fifo_fallback_is_replayed(policy: str) -> None:
    system = faulty_world(4, policy=policy, max_rejections=3)
    system.submit(min=1, max=4, steps=10.0)
    _break_three_times(system)
    decided = run_policy(system.thoughts[0], system.now)
    commands = system.engine.handle(codec.decode(codec.encode(decided)))
    assert any(isinstance(command, Apply) for command in commands), system.engine.query.last_rejection


@pytest.mark.parametrize(
    "event",
    [
        ev.PricesChanged(at=0.0, prices=None),  # type: ignore[arg-type]  # an invalid event
        ev.PricesChanged(at=0.0, prices={"v100": math.nan}),
        ev.ForeignAppeared(at=0.0, foreign=(Foreign(id="x", node="n0", cpu=-(10**9)),)),
        ev.NodesChanged(at=0.0, nodes=(Node(name="n0", devices=(Device(id="0", type="v100"),) * 2),)),
    ],
)
def test_an_invalid_event_is_rejected_and_the_next_one_applies(event: ev.Event) -> None:
    engine = faulty_world(4).engine
    jobs = JobBatch.of([Job(id="a", submitted=0.0)])
    commands = engine.handle(event, ev.JobsSubmitted(at=0.0, jobs=jobs))
    assert engine.query.refused == 1
    assert any(isinstance(command, Decide) for command in commands)


def test_policies_see_prices_and_missing_prices() -> None:
    system = faulty_world(4)
    system.tell(codec.decode(codec.encode(ev.PricesChanged(at=0.0, prices={"v100": 2.5, "h100": 9.0}))))
    system.think()
    system.submit(min=1, gpu_types=("v100", "k80"))
    snap = system.thoughts[0].snapshot
    seen = dict(zip(snap.inventory.types, snap.prices.tolist(), strict=True))
    assert seen["v100"] == 2.5
    assert math.isnan(seen["k80"]), "a missing price is not a price of 0"
    assert snap.restricted(np.arange(1), snap.capacity).prices is snap.prices
    system.tell(ev.PricesChanged(at=0.0, prices={"v100": 3.0}))
    assert snap.prices[1] == 2.5, "the snapshot of a pending question does not change"


def test_a_fraction_that_moves_within_its_node_uses_its_cores_once() -> None:
    """While it moves, one worker holds two devices of one node."""
    gives = {0: ("v100", 1)}
    system = ruled_by(Wish(gives), Node.of("a", {"v100": 1, "a100": 1}, cpu=4000), min_run_s=0.0, cooldown_s=0.0)
    system.submit(min=1, milli=500, cpu=1000, gpu_types=("v100", "a100"))
    system.calm()
    gives |= {0: ("a100", 1), 1: ("v100", 1)}
    system.submit(min=1, milli=1000)
    system.calm()
    assert system.sizes() == {"j1": 1, "j2": 1}
    assert state_of(system.engine).world.held.cpu.tolist() == [1000]
