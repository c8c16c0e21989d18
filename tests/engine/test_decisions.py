"""What becomes of decisions: good ones, bad ones, late ones, and what policies are shown."""

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
from levada.engine import Engine, Options, answer
from tests import kernel_modes
from tests.engine.chaos import Chaos, desk
from tests.engine.inspect import state_of


def ruled_by(policy: Any, *nodes: Node, **options: float) -> Chaos:
    """A world whose engine asks *policy*, which is none of the registry."""
    chaos = Chaos(nodes=nodes)
    chaos.engine = Engine(
        cluster=Cluster(nodes=nodes),
        policy=policy.name,
        make_policy=lambda name, given: policy,
        options=Options(rate_limit_s=0.0, **options),
    )
    return chaos


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
    chaos = ruled_by(Swap(), Node.of("a", {"v100": 2}), Node.of("b", {"v100": 2}))
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


@pytest.mark.parametrize("cores", [0, 1000])
def test_a_cycle_of_waits_is_broken_at_once_though_another_job_moves(cores: int) -> None:
    gives = {0: ("v100", 2), 1: ("a100", 2)}
    nodes = (Node.of("a", {"v100": 2}), Node.of("b", {"a100": 2}), Node.of("c", {"k80": 1}))
    chaos = ruled_by(Wish(gives), *nodes, min_run_s=0.0, cooldown_s=0.0)
    for _ in range(2):
        chaos.submit(min=2, cpu=cores)
    chaos.calm()
    gives |= {0: ("a100", 2), 1: ("v100", 2), 2: ("k80", 1)}
    chaos.submit(min=1)
    chaos.think()
    assert sorted((OpKind.name(op.kind), op.job) for op in chaos.ops) == [("START", "j3"), ("STOP", "j2")]
    chaos.calm()
    assert chaos.sizes() == {"j1": 2, "j2": 2, "j3": 1}


@pytest.mark.parametrize(("taken", "left"), [(False, 2), (True, 0)])
def test_a_job_that_finds_no_room_on_another_type_keeps_what_it_has_unless_it_is_taken(taken: bool, left: int) -> None:
    """Workers of two GPUs; of the other type there is one on each node."""
    gives = {0: ("v100", 2), 1: ("v100", 0)}
    chaos = ruled_by(Wish(gives), Node.of("a", {"v100": 4}), Node.of("b", {"a100": 1}), Node.of("c", {"a100": 1}))
    chaos.submit(min=1, max=2, milli=2000, gpu_types=("v100", "a100"))
    chaos.calm()
    before = chaos.truth[0]
    gives |= {0: ("a100", 1), 1: ("v100", 1 if taken else 0)}
    chaos.submit(min=1, milli=2000)
    chaos.calm()
    assert chaos.sizes()["j1"] == left
    assert taken or chaos.truth[0] == before, "not even a stop and a start"
    assert chaos.engine.query.rejections == 0
    if taken:
        assert chaos.why("j1") == "fragmented"


def test_a_job_that_finds_no_room_on_another_type_gives_way_to_one_that_was_given_its_cores() -> None:
    gives = {0: ("v100", 1)}
    nodes = (Node.of("a", {"v100": 2}, cpu=2000), Node.of("b", {"a100": 1}, cpu=1000))
    chaos = ruled_by(Wish(gives), *nodes, min_run_s=0.0, cooldown_s=0.0)
    chaos.submit(min=1, cpu=2000, gpu_types=("v100", "a100"))
    chaos.calm()
    gives |= {0: ("a100", 1), 1: ("v100", 1)}
    chaos.submit(min=1, cpu=2000)
    chaos.calm()
    assert (chaos.sizes(), chaos.why("j1")) == ({"j1": 0, "j2": 1}, "fragmented")
    assert chaos.job("j2")["failures"] == 0, "nobody breaks a rule"


@pytest.mark.parametrize("kernels", ["interpreted", "compiled"])
def test_a_move_and_a_resize_are_counted_apart(kernels: Literal["interpreted", "compiled"]) -> None:
    kernel_modes.use(kernels)
    try:
        gives = {0: ("v100", 2)}
        chaos = ruled_by(Wish(gives), Node.of("a", {"v100": 4}), Node.of("b", {"a100": 4}))
        chaos.submit(min=1, max=4, gpu_types=("v100", "a100"))
        chaos.calm()
        seen = []
        for wish in (("a100", 2), ("a100", 3), ("v100", 1)):
            gives[0] = wish
            chaos.users("update", 0, priority=len(seen) + 1)
            chaos.calm()
            job = chaos.job("j1")
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
def test_a_bad_decision_is_never_carried_out(columns: dict[str, Any]) -> None:
    chaos = desk(4, policy="fifo")
    chaos.tell(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of([Job(id=name, submitted=0.0) for name in "ab"])))
    chaos.think(spoil=_spoiled(**columns))
    assert all(len(op.adds) == 1 for op in chaos.ops), "what breaks a rule does not go out"
    assert "rejected" in {chaos.why("a"), chaos.why("b")}
    chaos.pass_time(20.0)
    chaos.calm()
    assert chaos.sizes() == {"a": 1, "b": 1}, "the next try is a good one"


@pytest.mark.parametrize("cores", [0, 1000])
def test_a_job_that_goes_to_another_type_leaves_before_others_are_put_in_its_place(cores: int) -> None:
    gives = {0: ("v100", 1)}
    nodes = (Node.of("a", {"v100": 1}, cpu=1000), Node.of("b", {"a100": 1}, cpu=1000))
    chaos = ruled_by(Wish(gives), *nodes, min_run_s=0.0, cooldown_s=0.0)
    chaos.submit(min=1, cpu=cores, gpu_types=("v100", "a100"))
    chaos.calm()
    gives |= {0: ("a100", 1), 1: ("v100", 1)}
    chaos.submit(min=1, cpu=cores)
    there = {"places": np.array([[1, 0, 0, 0, 1000, 0]]).T, "placed": np.array([1], np.int32)}
    chaos.think(spoil=_spoiled(**there))
    assert (chaos.engine.query.last_rejection, chaos.sizes()) == ("", {"j1": 1, "j2": 1})
    chaos.calm()
    assert chaos.truth[1][1] == {0: (("a", "0"),)}


@pytest.mark.parametrize(("guilty", "started"), [(1, ["b", "c"]), (2, [])])
def test_the_fault_of_one_job_is_its_own_and_that_of_most_is_the_decisions(guilty: int, started: list[str]) -> None:
    chaos = desk(4, policy="fifo")
    chaos.tell(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of([Job(id=name, submitted=0.0) for name in "abc"])))
    chaos.think(spoil=_spoiled(count=np.array([99] * guilty + [1] * (3 - guilty)), type=np.ones(3, np.int64)))
    assert [op.job for op in chaos.ops] == started
    assert chaos.engine.query.rejections == (not started)
    assert chaos.why("a") == "rejected"


def test_a_size_that_a_job_may_not_have_is_its_fault_though_it_finds_no_room() -> None:
    chaos = desk(1, policy="fifo")
    chaos.tell(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of([Job(id=name, submitted=0.0) for name in "ab"])))
    chaos.think(spoil=_spoiled(count=np.array([1, 99]), type=np.array([1, 1])))
    assert [op.job for op in chaos.ops] == ["a"]
    assert chaos.why("b") == "rejected"


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


def test_whether_a_decision_took_too_long_is_for_whoever_asked_to_judge() -> None:
    chaos = desk(4, decide_limit_s=10.0)
    chaos.submit(min=1)
    chaos.think(spoil=lambda decided: msgspec.structs.replace(decided, took_s=10.5))
    assert chaos.engine.query.rejections == 0
    assert [op.job for op in chaos.ops] == ["j1"]


def test_rows_of_jobs_that_changed_meanwhile_drop_out_and_the_rest_counts() -> None:
    chaos = desk(4, policy="fifo")
    chaos.submit(min=1)
    chaos.thoughts.clear()
    state_of(chaos.engine).deciding = None
    chaos.submit(min=1)
    chaos.users("cancel", 0)
    chaos.think()
    assert [op.job for op in chaos.ops] == ["j2"]


def test_a_copy_of_the_state_knows_what_the_policy_was_shown() -> None:
    chaos = desk(4)
    chaos.submit(min=1)
    twin = chaos.engine.fork()
    decided = answer(chaos.thoughts[0], 0.0)
    assert any(isinstance(command, Apply) for command in twin.handle(decided))


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


def test_what_plain_fifo_remembers_is_not_given_to_the_policy_that_comes_back_meanwhile() -> None:
    chaos = desk(4, policy="dragon", max_rejections=3)
    chaos.submit(min=1, max=4)
    _break_three_times(chaos)
    chaos.tell(ev.OptionsChanged(at=chaos.now, options={"backoff_s": 1.0}))
    chaos.think()
    chaos.submit(min=1)
    chaos.calm()
    assert chaos.sizes() == {"j1": 1, "j2": 1}


@pytest.mark.parametrize("policy", ["tiresias", "dragon", "max_min_fairness"])
def test_a_logged_decision_of_plain_fifo_counts_when_it_is_replayed(policy: str) -> None:
    chaos = desk(4, policy=policy, max_rejections=3)
    chaos.submit(min=1, max=4, steps=10.0)
    _break_three_times(chaos)
    decided = answer(chaos.thoughts[0], chaos.now)
    commands = chaos.engine.handle(codec.decode(codec.encode(decided)))
    assert any(isinstance(command, Apply) for command in commands), chaos.engine.query.last_rejection


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
    assert engine.query.refused == 1
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


def test_a_part_of_a_gpu_that_moves_within_its_node_takes_its_cores_once() -> None:
    """While it moves it stands on two devices of one node; it is one worker all the same."""
    gives = {0: ("v100", 1)}
    chaos = ruled_by(Wish(gives), Node.of("a", {"v100": 1, "a100": 1}, cpu=4000), min_run_s=0.0, cooldown_s=0.0)
    chaos.submit(min=1, milli=500, cpu=1000, gpu_types=("v100", "a100"))
    chaos.calm()
    gives |= {0: ("a100", 1), 1: ("v100", 1)}
    chaos.submit(min=1, milli=1000)
    chaos.calm()
    assert chaos.sizes() == {"j1": 1, "j2": 1}
    assert state_of(chaos.engine).world.held.cpu.tolist() == [1000]
