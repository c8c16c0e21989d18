"""Jobs that are crowded on one type go to another that lies idle, where that is worth it and nobody loses by it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.cluster import Node
from levada.core.queue import Queue
from levada.perf.table import JobSpeed, TableModel
from levada.policies import registry
from levada.policies.assign import assign_types
from levada.policies.fill import give, grow_in_turns, left_over
from levada.policies.importance import by_importance
from levada.policies.queued import queued
from levada.policies.relocate import settled
from levada.policies.sizes import largest, smallest
from levada.tables.world import World
from tests.builders import cluster, job, world
from tests.engine.chaos import Chaos
from tests.policies.test_assign import ELASTIC, LINEAR, RIGID, decide, runs

MIXED = cluster({"a100": 4}, {"v100": 4})
#: Under these two jobs of the same range share a type in equal parts.
EVEN = ("elastic-fifo", "elastic-srjf")


def crowded(*names: str, machines: object = MIXED, **fields: object) -> World:
    """Jobs that share the a100 of a cluster, two each, while its v100 lie idle."""
    made = [job(name, float(at), **{"max": 4, "steps": 1000.0, **fields}) for at, name in enumerate(names)]
    there = world(machines, *made)  # type: ignore[arg-type]
    for name in names:
        runs(there, name, 2, "a100")
    return there


def speeds(there: World, **rate: float) -> TableModel:
    """Steps/s of one worker by type, for all jobs."""
    types = {there.inventory.types.find(name): each for name, each in rate.items()}
    return TableModel([JobSpeed(job=number, throughput=types) for number in range(4)])


@pytest.mark.parametrize("name", ELASTIC)
def test_one_of_two_that_share_a_type_goes_to_the_one_that_lies_idle(name: str) -> None:
    found = decide(registry.make(name), crowded("x", "y"))
    assert sorted(found.values(), key=str) == [{"a100": 4}, {"v100": 4}]


@pytest.mark.parametrize("name", RIGID)
def test_who_does_not_grow_has_no_reason_to_go(name: str) -> None:
    found = decide(registry.make(name), crowded("x", "y", min=2, desired=2))
    assert found == {"x": {"a100": 2}, "y": {"a100": 2}}


@pytest.mark.parametrize("name", EVEN)
def test_nobody_goes_for_less_than_twice_as_much(name: str) -> None:
    there = crowded("x", "y", machines=cluster({"a100": 4}, {"v100": 3}))
    assert decide(registry.make(name), there) == {"x": {"a100": 2}, "y": {"a100": 2}}


@pytest.mark.parametrize("name", EVEN)
@pytest.mark.parametrize(("v100", "goes"), [(4.0, True), (3.0, False), (30.0, True)])
def test_what_is_known_of_speeds_counts(name: str, v100: float, goes: bool) -> None:
    there = crowded("x", "y")
    found = decide(registry.make(name), there, speeds(there, a100=4.0, v100=v100))
    assert (found["x"] == {"v100": 4}) is goes


@pytest.mark.parametrize("name", EVEN)
@pytest.mark.parametrize(("named", "goes"), [(("a100", "v100"), False), (("v100", "a100"), True)])
def test_on_a_guess_nobody_goes_to_a_type_that_its_user_named_later(
    name: str, named: tuple[str, ...], goes: bool
) -> None:
    there = crowded("x", "y", gpu_types=named)
    assert (decide(registry.make(name), there)["x"] == {"v100": 4}) is goes
    known = decide(registry.make(name), there, speeds(there, a100=1.0, v100=1.0))
    assert known["x"] == {"v100": 4}


@pytest.mark.parametrize("name", ELASTIC)
def test_nobody_goes_where_somebody_waits(name: str) -> None:
    jobs = [job("x", 0.0, max=4, steps=9.0), job("y", 1.0, max=4, steps=9.0), job("z", 2.0, steps=9.0)]
    there = world(MIXED, *jobs, job("wide", 3.0, min=4, gpu_types=("v100",), steps=9.0))
    for each, kind in (("x", "a100"), ("y", "a100"), ("z", "v100")):
        runs(there, each, 1, kind)
    there.table.max[[there.slot("x"), there.slot("y")]] = 8
    found = decide(registry.make(name), there)
    assert {kind for each in ("x", "y") for kind in found[each]} == {"a100"}


# --- with queues ----------------------------------------------------------------------------------------------------


def in_queues(*queues: Queue, machines: object = MIXED, **fields: object) -> World:
    """Jobs x and y of the queues a and b share the a100 of a cluster, two each, while its v100 lie idle."""
    made = [
        job(name, float(at), **{"max": 4, "steps": 1000.0, "queue": queue, **fields})
        for at, (name, queue) in enumerate([("x", "a"), ("y", "b")])
    ]
    there = world(machines, *made, queues=queues)  # type: ignore[arg-type]
    for name in ("x", "y"):
        runs(there, name, 2, "a100")
    return there


@pytest.mark.parametrize("name", ELASTIC)
def test_in_queues_too_one_of_two_goes_to_the_type_that_lies_idle(name: str) -> None:
    for queues in ((Queue(name="a"), Queue(name="b")), (Queue(name="a", guaranteed={"a100": 4}), Queue(name="b"))):
        found = decide(queued(registry.make(name)), in_queues(*queues))
        assert sorted(found.values(), key=str) == [{"a100": 4}, {"v100": 4}]


@pytest.mark.parametrize("name", RIGID)
def test_in_queues_too_who_does_not_grow_has_no_reason_to_go(name: str) -> None:
    there = in_queues(Queue(name="a"), Queue(name="b"), min=2, desired=2)
    fast = speeds(there, a100=1.0, v100=9.0)
    assert decide(queued(registry.make(name)), there, fast) == {"x": {"a100": 2}, "y": {"a100": 2}}


@pytest.mark.parametrize("name", EVEN)
def test_who_goes_is_who_may_by_its_queue(name: str) -> None:
    free, bound = Queue(name="b"), Queue(name="a", limit={"v100": 3})
    assert decide(queued(registry.make(name)), in_queues(bound, free)) == {"x": {"a100": 4}, "y": {"v100": 4}}
    bound = Queue(name="a", guaranteed={"a100": 2}, borrow=False)
    # What x leaves to y it must not borrow back.
    assert decide(queued(registry.make(name)), in_queues(bound, free)) == {"x": {"a100": 2}, "y": {"v100": 4}}
    shut = (Queue(name="a", limit={"v100": 3}), Queue(name="b", limit={"v100": 1}))
    assert decide(queued(registry.make(name)), in_queues(*shut)) == {"x": {"a100": 2}, "y": {"a100": 2}}


@pytest.mark.parametrize("name", EVEN)
def test_the_limit_of_one_user_holds_for_who_goes(name: str) -> None:
    there = in_queues(Queue(name="a", per_user_limit={"v100": 3}), Queue(name="b", per_user_limit={"v100": 3}))
    assert decide(queued(registry.make(name)), there) == {"x": {"a100": 2}, "y": {"a100": 2}}


@pytest.mark.parametrize("name", EVEN)
@pytest.mark.parametrize(("limit", "goes"), [(1, True), (5, False)])
def test_who_waits_for_its_own_queue_keeps_nobody_from_a_type(name: str, limit: int, goes: bool) -> None:
    there = in_queues(Queue(name="a"), Queue(name="b"), Queue(name="c", limit={"v100": limit}), max=8)
    held = job("z", 2.0, gpu_types=("v100",), steps=9.0, queue="c")
    wide = job("wide", 3.0, min=4, max=4, gpu_types=("v100",), steps=9.0, queue="c")
    there.add_jobs(JobBatch.of((held, wide)))
    runs(there, "z", 1, "v100")
    there.table.max[[there.slot("x"), there.slot("y")]] = 4
    runs(there, "x", 1, "a100")
    runs(there, "y", 1, "a100")
    found = decide(queued(registry.make(name)), there, speeds(there, a100=1.0, v100=9.0))
    assert ({"v100": 3} in found.values()) is goes
    assert found["wide"] == {}


@pytest.mark.parametrize("name", [*ELASTIC, *RIGID])
def test_who_gives_back_what_was_lent_goes_to_the_type_that_lies_idle(name: str) -> None:
    sure = Queue(name="a", guaranteed={"a100": 4})
    old = job("old", 0.0, desired=1, max=4, steps=100.0, queue="b")
    new = job("new", 1.0, min=4, max=4, gpu_types=("a100",), steps=100.0, queue="a")
    there = world(MIXED, old, new, queues=(sure, Queue(name="b")))
    runs(there, "old", 1, "a100")
    size = 4 if name in ELASTIC else 1
    assert decide(queued(registry.make(name)), there) == {"old": {"v100": size}, "new": {"a100": 4}}


@pytest.mark.parametrize(("queues", "of_six"), [((), [3, 3, 3, 3, 2, 2]), (("a", "b"), [4, 4, 2, 2, 2, 2])])
def test_jobs_that_must_share_types_do_so_evenly(queues: tuple[str, ...], of_six: list[int]) -> None:
    """A queue has half of each type, so that three jobs of it are never two and two."""
    for count, sizes in ((8, [2] * 8), (6, of_six)):
        made = [job(f"j{at}", float(at), max=4, queue=queues[at % 2] if queues else "default") for at in range(count)]
        there = world(cluster({"a100": 8}, {"v100": 8}), *made, queues=tuple(Queue(name=name) for name in queues))
        found = decide(queued(registry.make("elastic-fifo")), there)
        assert sorted((sum(each.values()) for each in found.values()), reverse=True) == sizes


def test_who_named_types_shares_the_first_of_them() -> None:
    made = [job(f"j{at}", float(at), max=4, gpu_types=("a100", "v100")) for at in range(3)]
    found = decide(registry.make("elastic-fifo"), world(MIXED, *made))
    assert found == {"j0": {"a100": 2}, "j1": {"v100": 4}, "j2": {"a100": 2}}


@st.composite
def worlds(draw: st.DrawFn) -> World:
    kinds = ("a100", "v100", "k80")
    gpus = [{kind: draw(st.integers(1, 6))} for kind in kinds]
    jobs = []
    for at in range(draw(st.integers(1, 6))):
        low = draw(st.integers(1, 3))
        named = draw(st.sampled_from([(), (), ("a100", "v100"), ("k80",)]))
        size = {"min": low, "max": low + draw(st.integers(0, 6)), "step": draw(st.integers(1, 2))}
        jobs.append(job(f"j{at}", float(at), gpu_types=named, **size))
    made = world(cluster(*gpus), *jobs)
    for each in jobs:
        if draw(st.booleans()):
            runs(made, each.id, each.min, draw(st.sampled_from(each.gpu_types or kinds)))
    return made


@given(worlds())
def test_whoever_goes_gains_and_nobody_loses(there: World) -> None:
    snap = there.snapshot(0.0)
    order, least = by_importance(snap), smallest(snap)
    before = assign_types(snap, order, least, largest(snap))
    had = grow_in_turns(snap, order, before, give(snap, order, before, least))
    types, count = settled(
        snap, LINEAR, order, before, lambda kinds: grow_in_turns(snap, order, kinds, give(snap, order, kinds, least))
    )
    went = types != before
    # Others may shrink for one that waited, as wherever a job starts, but nobody stops.
    keeps = had > 0 if (went & (had == 0)).any() else had
    assert (count[~went] >= keeps[~went]).all()
    assert (count[went] >= np.maximum(2 * had[went], 1)).all()
    assert (left_over(snap, types, count) >= 0).all()
    for _ in range(len(snap) + 1):
        last = types
        types, _ = settled(
            snap, LINEAR, order, last, lambda kinds: grow_in_turns(snap, order, kinds, give(snap, order, kinds, least))
        )
        if (types == last).all():
            break
    assert (types == last).all(), "they settle: nobody goes to and fro"


@pytest.mark.parametrize("policy", ELASTIC)
def test_a_machine_of_another_type_that_joins_is_used_when_guards_allow(policy: str) -> None:
    chaos = Chaos(policy=policy, nodes=(Node.of("a", {"a100": 4}),), min_run_s=60.0)
    for _ in range(2):
        chaos.submit(min=1, max=4, steps=1e6)
    chaos.calm()
    chaos.pass_time(60.0)
    chaos.calm()
    assert sum(chaos.sizes().values()) == 4
    chaos.pass_time(60.0)
    chaos.calm()
    chaos.nodes["v"] = Node.of("v", {"v100": 4})
    chaos.tell(ev.NodesAdded(at=chaos.now, nodes=(chaos.nodes["v"],)))
    chaos.calm()
    assert chaos.sizes() == {"j1": 4, "j2": 4}
    assert {chaos.engine.explain(name).gpu_type for name in ("j1", "j2")} == {"a100", "v100"}
