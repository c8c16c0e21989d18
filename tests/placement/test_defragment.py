"""Defragmentation moves only what pays, within its budget, and never what must stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.core import events as ev
from levada.core.cluster import Cluster, Node
from levada.core.commands import Command, Decide
from levada.core.job import Job, ParameterServers, Preemptible
from levada.core.plane import Plane
from levada.engine import Engine
from levada.engine.tidy import tidy
from levada.live import turn
from levada.perf import TableModel
from levada.placement.defragment import NOBODY, Waiting, defragment
from tests.builders import cluster, job
from tests.engine.inspect import state_of
from tests.placement.desk import Desk
from tests.placement.shell import Shell


def tidied(
    there: Desk,
    *,
    budget: int = 99,
    frozen: str = "",
    cost: float = 0.1,
    gain: float = 1.0,
    waiting: dict[str, int] | None = None,
) -> Plane | None:
    """What `defragment` makes of the target, which is checked."""
    table, target = there.world.table, there.world.target
    held_back = np.zeros(table.capacity, bool)
    held_back[there.slots(*frozen)] = True
    queue = NOBODY
    if waiting:
        queue = Waiting(
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
        np.testing.assert_array_equal(now, then)  # the plane given is not changed
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


def moves(there: Desk, better: Plane) -> int:
    """Running workers that are on another node."""
    found = 0
    for number in there.world.ids.values():
        new, held = there.places(number, better), there.places(number, there.world.held)
        was = there.places(number)
        found += sum(
            1 for index, place in held.items() if was.get(index) == place and new.get(index, ("",))[0] != place[0]
        )
    return found


def scattered(**fields: Any) -> Desk:
    """C on two nodes, two workers each, because A and B, two workers each, stand on a node each."""
    there = Desk(cluster(4, 4), *(job(name, i, max=8, **fields) for i, name in enumerate("ABCD")))
    there.resize(A=4)
    there.resize(B=4)
    there.resize(A=2, B=2)
    there.resize(C=4)
    assert there.by_node("C") == {"n0": 2, "n1": 2}
    return there


def test_a_split_job_comes_together_with_as_few_moves_as_can_be() -> None:
    there = scattered()
    better = tidied(there)
    assert better is not None
    assert len(there.by_node("C", better)) == 1
    assert moves(there, better) == 4
    assert tidied(there, budget=3) is None


def test_indices_and_devices_of_those_who_stay_stay() -> None:
    there = scattered()
    better = tidied(there)
    assert better is not None
    for name in "ABC":
        was, now = there.places(name), there.places(name, better)
        assert sorted(was) == sorted(now)
        assert all(now[index] == place for index, place in was.items() if now[index][0] == place[0])


def test_a_free_node_is_used_before_others_are_moved() -> None:
    there = Desk(cluster(4, 4, 4), *(job(name, i, max=8) for i, name in enumerate("ABCD")))
    there.resize(A=4, B=4, D=4)
    there.resize(A=2, B=2)
    there.resize(C=4)
    there.resize(D=0)
    better = tidied(there)
    assert better is not None
    assert there.by_node("C", better) == {"n2": 4}
    assert there.by_node("A", better) == there.by_node("A")
    assert there.by_node("B", better) == there.by_node("B")


def test_nothing_moves_where_nothing_is_gained() -> None:
    there = Desk(cluster(4, 4), *(job(name, i, max=8) for i, name in enumerate("AB")))
    there.resize(A=6, B=2)
    assert tidied(there, cost=0.0) is None  # six need two nodes
    assert tidied(Desk(Cluster(), job("A")), cost=0.0) is None


def test_a_move_that_costs_more_than_it_gains_is_not_made() -> None:
    there = scattered()
    assert tidied(there, cost=0.6) is None  # two jobs are interrupted, one split is saved
    assert tidied(there, cost=0.4) is not None


def test_the_frozen_stay_and_the_others_go_round_them() -> None:
    there = scattered()
    better = tidied(there, frozen="A")
    assert better is not None
    assert there.by_node("C", better) == {"n1": 4}
    assert tidied(there, frozen="C") is None
    assert tidied(there, frozen="AB") is None


def test_workers_that_do_not_run_yet_move_for_nothing() -> None:
    there = Desk(cluster(4, 4), *(job(name, i, max=8) for i, name in enumerate("ABC")))
    there.resize(A=4)
    there.resize(B=4)
    there.resize(A=2, B=1)
    there.resize(C=4, observe=False)
    assert len(there.by_node("C")) == 2
    better = tidied(there, budget=1, cost=0.9)
    assert better is not None
    assert there.by_node("C", better) == {"n1": 4}
    assert there.by_node("B", better) == {"n0": 1}


def test_a_job_that_waits_gets_room_in_one_piece() -> None:
    there = Desk(
        cluster(4, 4),
        *(job(name, i, max=8) for i, name in enumerate("AB")),
        job("W", 2, max=2, milli=4000),
    )
    there.resize(A=4)
    there.resize(B=4)
    there.resize(A=2, B=2)
    assert there.resize(W=1) == {"W": 0}
    better = tidied(there, budget=2, waiting={"W": 1})
    assert better is not None
    assert list(there.by_node("W", better).values()) == [1]
    assert tidied(there, budget=1, waiting={"W": 1}) is None
    assert tidied(there, budget=2, cost=9.0, waiting={"W": 1}) is None
    assert tidied(there, waiting={"W": 2}) is None


def test_unequal_nodes_are_bound_by_their_capacity() -> None:
    there = Desk(cluster(2, 8, 4), *(job(name, i, max=8) for i, name in enumerate("ABC")))
    there.resize(A=7)
    there.resize(B=4)
    there.resize(A=4, B=2)
    there.resize(C=6)
    assert there.by_node("C") == {"n0": 2, "n1": 4}
    better = tidied(there)
    assert better is not None
    assert there.by_node("C", better) == {"n1": 6}


def test_cores_and_memory_are_part_of_the_capacity() -> None:
    machines = Cluster(nodes=(Node.of("n0", {"v100": 4}, cpu=4000), Node.of("n1", {"v100": 4}, cpu=2500)))
    there = Desk(machines, *(job(name, i, max=8, cpu=1000) for i, name in enumerate("ABC")))
    there.resize(A=2)
    assert there.by_node("A") == {"n1": 2}
    there.resize(B=2)
    there.resize(A=1)
    there.resize(C=3)
    assert there.by_node("C") == {"n0": 2, "n1": 1}
    better = tidied(there)
    assert better is not None
    assert there.by_node("C", better) == {"n0": 3}


def test_jobs_with_servers_or_parts_stand_firm() -> None:
    there = Desk(
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
    assert tidied(there, cost=0.0) is None


def test_the_budget_is_for_all_moves_together() -> None:
    there = Desk(cluster(4, 4, 4, 4), *(job(name, i, max=8) for i, name in enumerate("ABDECF")))
    there.resize(A=4, B=4, D=4, E=4)
    there.resize(A=2, B=2, D=2, E=2)
    there.resize(C=4)
    there.resize(F=4)
    assert (len(there.by_node("C")), len(there.by_node("F"))) == (2, 2)
    for budget, better_off in ((3, 0), (4, 1), (7, 1), (8, 2)):
        better = tidied(there, budget=budget)  # which counts the moves
        spans = [len(there.by_node(name, better)) for name in "CF"]
        assert spans.count(1) == better_off


def test_a_broken_device_is_nobodys_room() -> None:
    for device in range(8):
        there = scattered()
        there.world.inventory.healthy[device] = False
        tidied(there)
        there.world.inventory.healthy[device] = True
        there.world.inventory.foreign[device] = 500
        tidied(there)


def test_cordoned_nodes_are_left_out() -> None:
    there = scattered()
    there.world.inventory.set_cordoned(0, True)
    assert tidied(there) is None


@given(st.data())
def test_whatever_it_does_is_sound(data: st.DataObject) -> None:
    """I1, I2, I4, I12, the budget and the frozen (all checked by `tidied`); and jobs keep sizes and indices."""
    nodes = tuple(
        Node.of(
            f"n{i}",
            {"v100": data.draw(st.integers(1, 6))},
            cpu=data.draw(st.sampled_from([None, 3000])),
            labels={"rack": data.draw(st.sampled_from("ab"))},
        )
        for i in range(data.draw(st.integers(2, 5)))
    )
    names = "ABCDEF"
    there = Desk(
        Cluster(nodes=nodes),
        *(
            job(
                name,
                i,
                max=8,
                milli=data.draw(st.sampled_from([1000, 1000, 2000])),
                cpu=data.draw(st.sampled_from([0, 1000])),
            )
            for i, name in enumerate(names)
        ),
    )
    for _ in range(data.draw(st.integers(1, 5))):
        some = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
        there.resize(observe=data.draw(st.booleans()), **{name: data.draw(st.integers(0, 5)) for name in some})
    frozen = "".join(data.draw(st.lists(st.sampled_from(names), unique=True, max_size=2)))
    waits = [name for name in names if not there.places(name) and name not in frozen]
    better = tidied(
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
    again = tidied(there, budget=0, cost=9.0)
    assert again is None or moves(there, again) == 0


def test_the_same_question_has_the_same_answer() -> None:
    first, second = (tidied(scattered()) for _ in range(2))
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first.owner, second.owner)
    np.testing.assert_array_equal(first.index, second.index)


# --- in the engine --------------------------------------------------------------------------------------------------


def split_by(shell: Shell, last: Job | None = None, **fields: Any) -> None:
    """Leaves A and B with two GPUs on a node each, and asks for C with four, or for *last*."""
    shell.submit(job("a", min=2), job("x", 1, min=2), job("b", 2, min=2, **fields), job("y", 3, min=2))
    assert shell.nodes_of("a") == shell.nodes_of("x") == {"n0": 2}
    assert shell.nodes_of("b") == shell.nodes_of("y") == {"n1": 2}
    for name in "xy":
        number = state_of(shell.engine).world.numbers[name]
        shell.tell_later(number)
    shell.submit(last or job("c", 4, min=4))


def test_the_engine_moves_nobody_unless_told() -> None:
    shell = Shell(4, 4)
    split_by(shell)
    assert shell.nodes_of("c") == {"n0": 2, "n1": 2}


def test_the_engine_moves_within_its_budget_and_the_moved_job_is_operated_on() -> None:
    shell = Shell(4, 4, move_budget=2)
    split_by(shell)
    assert list(shell.nodes_of("c").values()) == [4]
    (home,) = {*shell.nodes_of("a"), *shell.nodes_of("b")}
    assert shell.nodes_of("a") == shell.nodes_of("b") == {home: 2}
    moved = [op for op in shell.ops if op.adds and op.drops]
    assert [op.job for op in moved] in (["a"], ["b"])
    table = state_of(shell.engine).world.table
    assert table.moves[table.order].sum() == 1


@pytest.mark.parametrize("preemptible", [Preemptible.NEVER])
def test_the_engine_never_moves_a_job_that_may_not_be_preempted(preemptible: int) -> None:
    shell = Shell(4, 4, move_budget=8)
    split_by(shell, preemptible=preemptible)
    assert shell.nodes_of("b") == {"n1": 2}
    assert shell.nodes_of("a") == {"n1": 2}
    assert shell.nodes_of("c") == {"n0": 4}


def test_the_engine_makes_room_for_a_job_that_waits_for_a_whole_node() -> None:
    for budget, runs in ((0, False), (1, False), (2, True)):
        shell = Shell(4, 4, move_budget=budget)
        split_by(shell, last=job("w", 4, milli=4000))
        assert bool(shell.nodes_of("w")) is runs
        assert shell.engine.explain("w").reason.code == ("runs" if runs else "fragmented")


def test_a_log_that_is_replayed_under_other_beliefs_leads_to_the_same_places() -> None:
    shell, log = Shell(4, 4, move_budget=2), []
    handle, state = shell.engine.handle, state_of(shell.engine)

    def logged(*events: ev.Event) -> list[Command]:
        before, first = state.revision, state.world.next_number
        kept = tuple(event for event in events if not isinstance(event, ev.Progress))
        commands = handle(*events)
        asks = any(isinstance(command, Decide) for command in commands)
        if kept or asks:
            told = kept or (ev.Tick(at=state.now),)
            asked = state.in_view if asks else None
            log.append(turn.encode(before, state.revision, told, asked, first, (), ()))
        return commands

    shell.engine.handle = logged  # type: ignore[method-assign]
    shell.submit(job("a", min=2, steps=100.0), job("x", 1, min=2), job("b", 2, min=2, steps=100.0), job("y", 3, min=2))
    for steps in (90.0, 99.0, 99.9):
        numbers = np.array([state.world.numbers[name] for name in "ab"])
        shell.tell(ev.Progress, number=numbers, steps=np.full(2, steps))
    shell.tell(ev.JobsFinished, number=np.array([state.world.numbers[name] for name in "xy"]))
    shell.submit(job("c", 4, min=4))
    assert list(shell.nodes_of("c").values()) == [4], "somebody moved for it"
    for beliefs in (None, TableModel([], restart_s=1e9), TableModel([], restart_s=0.0)):
        again = Engine(cluster=Cluster(nodes=shell.nodes), policy="fifo", options=state.options, perf=beliefs)
        for each in log:
            turn.replay(again, each)
        for ours, theirs in (
            (state.world.target, state_of(again).world.target),
            (state.world.held, state_of(again).world.held),
        ):
            np.testing.assert_array_equal(ours.owner, theirs.owner)
        np.testing.assert_array_equal(state.world.table.moves, state_of(again).world.table.moves)


def test_protected_jobs_and_operations_under_way_are_left_alone_whoever_asks() -> None:
    shell = Shell(4, 4, move_budget=9)
    split_by(shell, last=job("c", 4, min=4, preemptible=Preemptible.NEVER))
    world = state_of(shell.engine).world
    table, slots = world.table, world.table.order
    # As if the decision had split it.
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
    state_of(shell.engine).now += 3600.0  # they have run for so long, and are taken to go on
    assert tidy(state_of(shell.engine), target, slots, table.type[slots], size, size) is None
    table.preemptible[slot] = Preemptible.ALWAYS
    assert tidy(state_of(shell.engine), target, slots, table.type[slots], size, size) is not None
    table.issued[slot] = 1
    assert tidy(state_of(shell.engine), target, slots, table.type[slots], size, size) is None
