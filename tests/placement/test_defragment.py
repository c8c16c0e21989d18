"""Defragmentation: moves with a gain only, within the budget, and no protected jobs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.core import events as ev
from levada.core.assignment import FREE, Assignment
from levada.core.cluster import Cluster, Node
from levada.core.commands import Command, Decide
from levada.core.job import Job, ParameterServers, Preemptible
from levada.engine import Engine
from levada.engine.move_cost import defragment_targets
from levada.live import log_entry
from levada.perf import TableModel
from levada.placement.defragment import NO_JOBS, FragmentedJobs, defragment
from levada.placement.repack import Repacking
from tests.builders import cluster, job
from tests.engine.engine_state import state_of
from tests.placement.engine_harness import EngineHarness
from tests.placement.placer_harness import PlacerHarness


def defragmented(
    there: PlacerHarness,
    *,
    budget: int = 99,
    frozen: str = "",
    cost: float = 0.1,
    gain: float = 1.0,
    waiting: dict[str, int] | None = None,
) -> Assignment | None:
    """The checked result of `defragment`; None if nothing moves."""
    table, target = there.world.table, there.world.target
    held_back = np.zeros(table.capacity, bool)
    held_back[there.slots(*frozen)] = True
    queue = NO_JOBS
    if waiting:
        queue = FragmentedJobs(
            slots=there.slots(*waiting),
            gpu_type=np.full(len(waiting), 1, np.int64),
            count=np.array(list(waiting.values()), np.int64),
            worth=np.full(len(waiting), 5.0),
        )
    before = target.owner.copy(), target.index.copy(), target.cpu.copy()
    better = defragment(
        there.world,
        target,
        budget=budget,
        frozen=held_back,
        cost=np.full(table.capacity, cost),
        gain=np.full(table.capacity, gain),
        waiting=queue,
    )
    for now, then in zip((target.owner, target.index, target.cpu), before, strict=True):
        np.testing.assert_array_equal(now, then)  # the input is not changed
    if better is not None:
        slots = queue.slots
        whole = np.maximum(table.milli[slots] // 1000, 1)
        count = np.array([(better.owner == slot).sum() for slot in slots], np.int64) // whole
        faults = there.faults(better, slots, queue.gpu_type, count)
        assert not faults, faults
        assert moves(there, better) <= budget
        for name in frozen:
            assert there.places(name, better) == there.places(name)
    return better


def moves(there: PlacerHarness, better: Assignment) -> int:
    """The number of running workers on another node."""
    moves = 0
    for number in there.world.ids.values():
        new, held = there.places(number, better), there.places(number, there.world.held)
        was = there.places(number)
        moves += sum(
            1 for index, place in held.items() if was.get(index) == place and new.get(index, ("",))[0] != place[0]
        )
    return moves


def scattered(**fields: Any) -> PlacerHarness:
    """Job C is split over two nodes, which it shares with jobs A and B of two workers each."""
    there = PlacerHarness(cluster(4, 4), *(job(name, i, max=8, **fields) for i, name in enumerate("ABCD")))
    there.resize(A=4)
    there.resize(B=4)
    there.resize(A=2, B=2)
    there.resize(C=4)
    assert there.by_node("C") == {"n0": 2, "n1": 2}
    return there


def test_a_split_job_is_consolidated_with_the_fewest_moves() -> None:
    there = scattered()
    better = defragmented(there)
    assert better is not None
    assert len(there.by_node("C", better)) == 1
    assert moves(there, better) == 4
    assert defragmented(there, budget=3) is None


def test_workers_that_stay_keep_index_and_devices() -> None:
    there = scattered()
    better = defragmented(there)
    assert better is not None
    for name in "ABC":
        was, now = there.places(name), there.places(name, better)
        assert sorted(was) == sorted(now)
        assert all(now[index] == place for index, place in was.items() if now[index][0] == place[0])


def test_a_free_node_is_used_before_other_jobs_are_moved() -> None:
    there = PlacerHarness(cluster(4, 4, 4), *(job(name, i, max=8) for i, name in enumerate("ABCD")))
    there.resize(A=4, B=4, D=4)
    there.resize(A=2, B=2)
    there.resize(C=4)
    there.resize(D=0)
    better = defragmented(there)
    assert better is not None
    assert there.by_node("C", better) == {"n2": 4}
    assert there.by_node("A", better) == there.by_node("A")
    assert there.by_node("B", better) == there.by_node("B")


def test_nothing_moves_without_a_gain() -> None:
    there = PlacerHarness(cluster(4, 4), *(job(name, i, max=8) for i, name in enumerate("AB")))
    there.resize(A=6, B=2)
    assert defragmented(there, cost=0.0) is None  # six need two nodes
    assert defragmented(PlacerHarness(Cluster(), job("A")), cost=0.0) is None


def test_a_move_that_costs_more_than_its_gain_is_skipped() -> None:
    there = scattered()
    assert defragmented(there, cost=0.6) is None  # two interruptions for one consolidated job
    assert defragmented(there, cost=0.4) is not None


def test_frozen_jobs_stay_and_others_move_around_them() -> None:
    there = scattered()
    better = defragmented(there, frozen="A")
    assert better is not None
    assert there.by_node("C", better) == {"n1": 4}
    assert defragmented(there, frozen="C") is None
    assert defragmented(there, frozen="AB") is None


def test_workers_that_are_not_running_move_free_of_cost() -> None:
    there = PlacerHarness(cluster(4, 4), *(job(name, i, max=8) for i, name in enumerate("ABC")))
    there.resize(A=4)
    there.resize(B=4)
    there.resize(A=2, B=1)
    there.resize(C=4, observe=False)
    assert len(there.by_node("C")) == 2
    better = defragmented(there, budget=1, cost=0.9)
    assert better is not None
    assert there.by_node("C", better) == {"n1": 4}
    assert there.by_node("B", better) == {"n0": 1}


def test_a_pending_job_gets_contiguous_room() -> None:
    there = PlacerHarness(
        cluster(4, 4),
        *(job(name, i, max=8) for i, name in enumerate("AB")),
        job("W", 2, max=2, milli=4000),
    )
    there.resize(A=4)
    there.resize(B=4)
    there.resize(A=2, B=2)
    assert there.resize(W=1) == {"W": 0}
    better = defragmented(there, budget=2, waiting={"W": 1})
    assert better is not None
    assert list(there.by_node("W", better).values()) == [1]
    assert defragmented(there, budget=1, waiting={"W": 1}) is None
    assert defragmented(there, budget=2, cost=9.0, waiting={"W": 1}) is None
    assert defragmented(there, waiting={"W": 2}) is None


def test_moves_respect_the_capacity_of_unequal_nodes() -> None:
    there = PlacerHarness(cluster(2, 8, 4), *(job(name, i, max=8) for i, name in enumerate("ABC")))
    there.resize(A=7)
    there.resize(B=4)
    there.resize(A=4, B=2)
    there.resize(C=6)
    assert there.by_node("C") == {"n0": 2, "n1": 4}
    better = defragmented(there)
    assert better is not None
    assert there.by_node("C", better) == {"n1": 6}


def test_moves_respect_cores_and_memory() -> None:
    machines = Cluster(nodes=(Node.of("n0", {"v100": 4}, cpu=4000), Node.of("n1", {"v100": 4}, cpu=2500)))
    there = PlacerHarness(machines, *(job(name, i, max=8, cpu=1000) for i, name in enumerate("ABC")))
    there.resize(A=2)
    assert there.by_node("A") == {"n1": 2}
    there.resize(B=2)
    there.resize(A=1)
    there.resize(C=3)
    assert there.by_node("C") == {"n0": 2, "n1": 1}
    better = defragmented(there)
    assert better is not None
    assert there.by_node("C", better) == {"n0": 3}


def test_jobs_with_parameter_servers_or_fractions_never_move() -> None:
    there = PlacerHarness(
        cluster(4, 4),
        job("A", max=8, servers=ParameterServers(replicas=1)),
        job("B", 1, max=8, milli=500),
        job("C", 2, max=8),
    )
    there.resize(A=4)
    there.resize(B=8)
    there.resize(A=2, B=4)
    there.resize(C=4)
    assert len(there.by_node("C")) == 2
    assert defragmented(there, cost=0.0) is None


def test_the_budget_limits_the_sum_of_all_moves() -> None:
    there = PlacerHarness(cluster(4, 4, 4, 4), *(job(name, i, max=8) for i, name in enumerate("ABDECF")))
    there.resize(A=4, B=4, D=4, E=4)
    there.resize(A=2, B=2, D=2, E=2)
    there.resize(C=4)
    there.resize(F=4)
    assert (len(there.by_node("C")), len(there.by_node("F"))) == (2, 2)
    for budget, better_off in ((3, 0), (4, 1), (7, 1), (8, 2)):
        better = defragmented(there, budget=budget)  # asserts the number of moves
        spans = [len(there.by_node(name, better)) for name in "CF"]
        assert spans.count(1) == better_off


def test_a_broken_device_is_not_used() -> None:
    for device in range(8):
        there = scattered()
        before = there.world.target.owner[device]
        there.world.inventory.healthy[device] = False
        broken = defragmented(there)
        there.world.inventory.healthy[device] = True
        there.world.inventory.foreign[device] = 500
        foreign = defragmented(there)
        assert all(plane is None or plane.owner[device] in (before, FREE) for plane in (broken, foreign))


def test_cordoned_nodes_are_not_used() -> None:
    there = scattered()
    there.world.inventory.set_cordoned(0, True)
    assert defragmented(there) is None


def test_jobs_move_only_to_nodes_of_their_class() -> None:
    """A is split over two nodes of its class. The freest node is closed to it, so another job leaves one of its own."""
    nodes = tuple(Node.of(f"n{i}", {"v100": 4}, open_to=("x",) if i < 2 else ()) for i in range(3))
    there = PlacerHarness(
        Cluster(nodes=nodes), job("A", 0, max=4, node_class="x"), job("B", 1, max=2), job("C", 2, max=2)
    )
    for name, node in (("B", 0), ("C", 1)):
        for other in range(3):
            there.world.inventory.set_cordoned(other, other != node)
        there.resize(**{name: 2})
    for other in range(3):
        there.world.inventory.set_cordoned(other, False)
    there.resize(A=4)
    assert there.by_node("A") == {"n0": 2, "n1": 2}
    better = defragmented(there)
    assert better is not None
    [(node, workers)] = there.by_node("A", better).items()
    assert node in ("n0", "n1")
    assert workers == 4


def test_a_packing_is_mapped_only_to_nodes_of_each_class() -> None:
    """Both jobs are packed on one node. Most workers would stay on n1, which is closed to the class of A."""
    nodes = (Node.of("n0", {"v100": 4}, open_to=("x",)), Node.of("n1", {"v100": 4}, open_to=()))
    there = PlacerHarness(Cluster(nodes=nodes), job("A", 0, node_class="x"), job("B", 1, max=3))
    there.resize(A=1)
    there.world.inventory.set_cordoned(0, True)
    there.resize(B=3)
    there.world.inventory.set_cordoned(0, False)
    assert (there.by_node("A"), there.by_node("B")) == ({"n0": 1}, {"n1": 3})
    fixed = np.zeros(there.world.table.capacity, bool)
    repacking = Repacking(there.world, there.world.target, np.arange(2), 1, fixed, ())
    bound = repacking.bind(np.array([[1, 0], [3, 0]]))
    assert bound is not None
    assert bound.tolist() == [[1, 0], [3, 0]]


@given(st.data())
def test_every_defragmentation_is_valid(data: st.DataObject) -> None:
    """`defragmented` checks I1, I2, I4, I12, I14, the budget and frozen jobs; jobs keep sizes and indices."""
    nodes = tuple(
        Node.of(
            f"n{i}",
            {"v100": data.draw(st.integers(1, 6))},
            cpu=data.draw(st.sampled_from([None, 3000])),
            labels={"rack": data.draw(st.sampled_from("ab"))},
            open_to=data.draw(st.sampled_from([None, None, ("x",)])),
        )
        for i in range(data.draw(st.integers(2, 5)))
    )
    names = "ABCDEF"
    there = PlacerHarness(
        Cluster(nodes=nodes),
        *(
            job(
                name,
                i,
                max=8,
                milli=data.draw(st.sampled_from([1000, 1000, 2000])),
                cpu=data.draw(st.sampled_from([0, 1000])),
                node_class=data.draw(st.sampled_from(["", "", "x", "y"])),
            )
            for i, name in enumerate(names)
        ),
    )
    for _ in range(data.draw(st.integers(1, 5))):
        some = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
        there.resize(observe=data.draw(st.booleans()), **{name: data.draw(st.integers(0, 5)) for name in some})
    frozen = "".join(data.draw(st.lists(st.sampled_from(names), unique=True, max_size=2)))
    waits = [name for name in names if not there.places(name) and name not in frozen]
    better = defragmented(
        there,
        budget=data.draw(st.integers(0, 6)),
        frozen=frozen,
        cost=data.draw(st.sampled_from([0.0, 0.2, 2.0])),
        waiting=dict.fromkeys(waits[:2], 2),
    )
    if better is None:
        return
    spans = {name: len(there.by_node(name)) for name in names}
    for name in names:
        if spans[name]:
            assert sorted(there.places(name, better)) == sorted(there.places(name))
    again = defragmented(there, budget=0, cost=9.0)
    assert again is None or moves(there, again) == 0


def test_defragmentation_is_deterministic() -> None:
    first, second = (defragmented(scattered()) for _ in range(2))
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first.owner, second.owner)
    np.testing.assert_array_equal(first.index, second.index)


# --- in the engine --------------------------------------------------------------------------------------------------


def split_by(harness: EngineHarness, last: Job | None = None, **fields: Any) -> None:
    """Jobs A and B with two GPUs on one node each, and a pending job C with four, or *last*."""
    harness.submit(job("a", min=2), job("x", 1, min=2), job("b", 2, min=2, **fields), job("y", 3, min=2))
    assert harness.nodes_of("a") == harness.nodes_of("x") == {"n0": 2}
    assert harness.nodes_of("b") == harness.nodes_of("y") == {"n1": 2}
    for name in "xy":
        number = state_of(harness.engine).world.numbers[name]
        harness.tell_later(number)
    harness.submit(last or job("c", 4, min=4))


def test_the_engine_moves_no_job_by_default() -> None:
    harness = EngineHarness(4, 4)
    split_by(harness)
    assert harness.nodes_of("c") == {"n0": 2, "n1": 2}


def test_the_engine_moves_within_its_budget_by_operations() -> None:
    harness = EngineHarness(4, 4, move_budget=2)
    split_by(harness)
    assert list(harness.nodes_of("c").values()) == [4]
    (home,) = {*harness.nodes_of("a"), *harness.nodes_of("b")}
    assert harness.nodes_of("a") == harness.nodes_of("b") == {home: 2}
    moved = [op for op in harness.ops if op.adds and op.drops]
    assert [op.job for op in moved] in (["a"], ["b"])
    table = state_of(harness.engine).world.table
    assert table.moves[table.order].sum() == 1


@pytest.mark.parametrize("preemptible", [Preemptible.NEVER])
def test_the_engine_never_moves_a_non_preemptible_job(preemptible: int) -> None:
    harness = EngineHarness(4, 4, move_budget=8)
    split_by(harness, preemptible=preemptible)
    assert harness.nodes_of("b") == {"n1": 2}
    assert harness.nodes_of("a") == {"n1": 2}
    assert harness.nodes_of("c") == {"n0": 4}


def test_the_engine_makes_room_for_a_job_that_needs_a_whole_node() -> None:
    for budget, runs in ((0, False), (1, False), (2, True)):
        harness = EngineHarness(4, 4, move_budget=budget)
        split_by(harness, last=job("w", 4, milli=4000))
        assert bool(harness.nodes_of("w")) is runs
        assert harness.engine.explain("w").reason.code == ("runs" if runs else "fragmented")


def test_a_replay_with_other_estimates_leads_to_the_same_placement() -> None:
    harness, log = EngineHarness(4, 4, move_budget=2), []
    handle, state = harness.engine.handle, state_of(harness.engine)

    def logged(*events: ev.Event) -> list[Command]:
        before, first = state.revision, state.world.next_number
        logged_events = tuple(event for event in events if not isinstance(event, ev.Progress))
        commands = handle(*events)
        asks = any(isinstance(command, Decide) for command in commands)
        if logged_events or asks:
            turn_events = logged_events or (ev.Tick(at=state.now),)
            asked = state.in_view if asks else None
            log.append(log_entry.encode(before, state.revision, turn_events, asked, first, (), ()))
        return commands

    harness.engine.handle = logged  # type: ignore[method-assign]
    harness.submit(
        job("a", min=2, steps=100.0), job("x", 1, min=2), job("b", 2, min=2, steps=100.0), job("y", 3, min=2)
    )
    for steps in (90.0, 99.0, 99.9):
        numbers = np.array([state.world.numbers[name] for name in "ab"])
        harness.tell(ev.Progress, number=numbers, steps=np.full(2, steps))
    harness.tell(ev.JobsFinished, number=np.array([state.world.numbers[name] for name in "xy"]))
    harness.submit(job("c", 4, min=4))
    assert list(harness.nodes_of("c").values()) == [4], "another job moved for it"
    for beliefs in (None, TableModel([], restart_s=1e9), TableModel([], restart_s=0.0)):
        again = Engine(cluster=Cluster(nodes=harness.nodes), policy="fifo", options=state.options, perf=beliefs)
        for entry in log:
            log_entry.replay(again, entry)
        for expected, replayed in (
            (state.world.target, state_of(again).world.target),
            (state.world.held, state_of(again).world.held),
        ):
            np.testing.assert_array_equal(expected.owner, replayed.owner)
        np.testing.assert_array_equal(state.world.table.moves, state_of(again).world.table.moves)


def test_protected_and_busy_jobs_are_never_moved() -> None:
    harness = EngineHarness(4, 4, move_budget=9)
    split_by(harness, last=job("c", 4, min=4, preemptible=Preemptible.NEVER))
    world = state_of(harness.engine).world
    table, slots = world.table, world.table.order
    # Like a decision that split the job.
    slot, target = world.slot("c"), world.target
    for name, node in (("a", 0), ("b", 1)):
        world.clear_workers(target, world.slot(name))
        rows = np.zeros((6, 2), np.int64)
        rows[:] = np.array([[world.slot(name)], [0], [node], [0], [1000], [0]])
        rows[1], rows[3] = (0, 1), (4 * node, 4 * node + 1)
        world.put_workers(target, world.slot(name), rows)
    world.clear_workers(target, slot)
    rows = np.array([[slot] * 4, range(4), [0, 0, 1, 1], [2, 3, 6, 7], [1000] * 4, [0] * 4], np.int64)
    world.put_workers(target, slot, rows)
    world.held.take_from(target)
    size = table.count[slots]
    state_of(harness.engine).now += 3600.0  # after 1 h the jobs are expected to run on
    assert defragment_targets(state_of(harness.engine), target, slots, table.type[slots], size, size) is None
    table.preemptible[slot] = Preemptible.ALWAYS
    assert defragment_targets(state_of(harness.engine), target, slots, table.type[slots], size, size) is not None
    table.issued[slot] = 1
    assert defragment_targets(state_of(harness.engine), target, slots, table.type[slots], size, size) is None
