"""Jobs move from crowded GPU types to idle ones if they gain and none loses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.cluster import Node
from levada.core.queue import Queue
from levada.perf.table_model import JobSpeed, TableModel
from levada.policies import registry
from levada.policies.assign import assign_types
from levada.policies.fill import fill_in_order, free_after, grow_in_turns
from levada.policies.ordering import by_importance
from levada.policies.queued import queued
from levada.policies.relocate import move_to_idle_types
from levada.policies.sizes import largest, smallest
from levada.tables.cluster_state import ClusterState
from tests.builders import cluster, job, world
from tests.engine.faulty_world import FaultyWorld
from tests.policies.test_assign import ELASTIC, LINEAR, RIGID, decide, runs

MIXED = cluster({"a100": 4}, {"v100": 4})
#: Under these two jobs of the same range share a type in equal parts.
EVEN = ("elastic-fifo", "elastic-srjf")


def crowded(*names: str, machines: object = MIXED, **fields: object) -> ClusterState:
    """Jobs that share the a100 of a cluster, two each, while its v100 lie idle."""
    created = [job(name, float(at), **{"max": 4, "steps": 1000.0, **fields}) for at, name in enumerate(names)]
    there = world(machines, *created)  # type: ignore[arg-type]
    for name in names:
        runs(there, name, 2, "a100")
    return there


def speeds(there: ClusterState, **rate: float) -> TableModel:
    """Steps/s of one worker by type, for all jobs."""
    types = {there.inventory.types.find(name): item for name, item in rate.items()}
    return TableModel([JobSpeed(job=number, throughput=types) for number in range(4)])


@pytest.mark.parametrize("name", ELASTIC)
def test_one_of_two_that_share_a_type_goes_to_the_one_that_lies_idle(name: str) -> None:
    result = decide(registry.make(name), crowded("x", "y"))
    assert sorted(result.values(), key=str) == [{"a100": 4}, {"v100": 4}]


@pytest.mark.parametrize("name", RIGID)
def test_who_does_not_grow_has_no_reason_to_go(name: str) -> None:
    result = decide(registry.make(name), crowded("x", "y", min=2, desired=2))
    assert result == {"x": {"a100": 2}, "y": {"a100": 2}}


@pytest.mark.parametrize("name", EVEN)
def test_nobody_goes_for_less_than_twice_as_much(name: str) -> None:
    there = crowded("x", "y", machines=cluster({"a100": 4}, {"v100": 3}))
    assert decide(registry.make(name), there) == {"x": {"a100": 2}, "y": {"a100": 2}}


@pytest.mark.parametrize("name", EVEN)
@pytest.mark.parametrize(("v100", "goes"), [(4.0, True), (3.0, False), (30.0, True)])
def test_what_is_known_of_speeds_counts(name: str, v100: float, goes: bool) -> None:
    there = crowded("x", "y")
    result = decide(registry.make(name), there, speeds(there, a100=4.0, v100=v100))
    assert (result["x"] == {"v100": 4}) is goes


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
    for item, kind in (("x", "a100"), ("y", "a100"), ("z", "v100")):
        runs(there, item, 1, kind)
    there.table.max[[there.slot("x"), there.slot("y")]] = 8
    result = decide(registry.make(name), there)
    assert {kind for item in ("x", "y") for kind in result[item]} == {"a100"}


# --- with queues ----------------------------------------------------------------------------------------------------


def in_queues(*queues: Queue, machines: object = MIXED, **fields: object) -> ClusterState:
    """Jobs x (queue a) and y (queue b) share the a100s while all v100s are idle."""
    created = [
        job(name, float(at), **{"max": 4, "steps": 1000.0, "queue": queue, **fields})
        for at, (name, queue) in enumerate([("x", "a"), ("y", "b")])
    ]
    there = world(machines, *created, queues=queues)  # type: ignore[arg-type]
    for name in ("x", "y"):
        runs(there, name, 2, "a100")
    return there


@pytest.mark.parametrize("name", ELASTIC)
def test_in_queues_too_one_of_two_goes_to_the_type_that_lies_idle(name: str) -> None:
    for queues in ((Queue(name="a"), Queue(name="b")), (Queue(name="a", guaranteed={"a100": 4}), Queue(name="b"))):
        result = decide(queued(registry.make(name)), in_queues(*queues))
        assert sorted(result.values(), key=str) == [{"a100": 4}, {"v100": 4}]


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
    result = decide(queued(registry.make(name)), there, speeds(there, a100=1.0, v100=9.0))
    assert ({"v100": 3} in result.values()) is goes
    assert result["wide"] == {}


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
        created = [
            job(f"j{at}", float(at), max=4, queue=queues[at % 2] if queues else "default") for at in range(count)
        ]
        there = world(cluster({"a100": 8}, {"v100": 8}), *created, queues=tuple(Queue(name=name) for name in queues))
        result = decide(queued(registry.make("elastic-fifo")), there)
        assert sorted((sum(item.values()) for item in result.values()), reverse=True) == sizes


def test_who_named_types_shares_the_first_of_them() -> None:
    created = [job(f"j{at}", float(at), max=4, gpu_types=("a100", "v100")) for at in range(3)]
    result = decide(registry.make("elastic-fifo"), world(MIXED, *created))
    assert result == {"j0": {"a100": 2}, "j1": {"v100": 4}, "j2": {"a100": 2}}


@st.composite
def worlds(draw: st.DrawFn) -> ClusterState:
    kinds = ("a100", "v100", "k80")
    gpus = [{kind: draw(st.integers(1, 6))} for kind in kinds]
    jobs = []
    for at in range(draw(st.integers(1, 6))):
        low = draw(st.integers(1, 3))
        named = draw(st.sampled_from([(), (), ("a100", "v100"), ("k80",)]))
        size = {"min": low, "max": low + draw(st.integers(0, 6)), "step": draw(st.integers(1, 2))}
        jobs.append(job(f"j{at}", float(at), gpu_types=named, **size))
    created = world(cluster(*gpus), *jobs)
    for item in jobs:
        if draw(st.booleans()):
            runs(created, item.id, item.min, draw(st.sampled_from(item.gpu_types or kinds)))
    return created


@given(worlds())
def test_whoever_goes_gains_and_nobody_loses(there: ClusterState) -> None:
    snap = there.snapshot(0.0)
    order, least = by_importance(snap), smallest(snap)
    before = assign_types(snap, order, least, largest(snap))
    had = grow_in_turns(snap, order, before, fill_in_order(snap, order, before, least))
    types, count = move_to_idle_types(
        snap,
        LINEAR,
        order,
        before,
        lambda kinds: grow_in_turns(snap, order, kinds, fill_in_order(snap, order, kinds, least)),
    )
    went = types != before
    # Other jobs may shrink, but not stop, for a job that starts.
    keeps = had > 0 if (went & (had == 0)).any() else had
    assert (count[~went] >= keeps[~went]).all()
    assert (count[went] >= np.maximum(2 * had[went], 1)).all()
    assert (free_after(snap, types, count) >= 0).all()
    for _ in range(len(snap) + 1):
        last = types
        types, _ = move_to_idle_types(
            snap,
            LINEAR,
            order,
            last,
            lambda kinds: grow_in_turns(snap, order, kinds, fill_in_order(snap, order, kinds, least)),
        )
        if (types == last).all():
            break
    assert (types == last).all(), "jobs must not move back and forth"


@pytest.mark.parametrize("policy", ELASTIC)
def test_a_machine_of_another_type_that_joins_is_used_when_guards_allow(policy: str) -> None:
    system = FaultyWorld(policy=policy, nodes=(Node.of("a", {"a100": 4}),), min_run_s=60.0)
    for _ in range(2):
        system.submit(min=1, max=4, steps=1e6)
    system.calm()
    system.pass_time(60.0)
    system.calm()
    assert sum(system.sizes().values()) == 4
    system.pass_time(60.0)
    system.calm()
    system.nodes["v"] = Node.of("v", {"v100": 4})
    system.tell(ev.NodesAdded(at=system.now, nodes=(system.nodes["v"],)))
    system.calm()
    assert system.sizes() == {"j1": 4, "j2": 4}
    assert {system.engine.explain(name).gpu_type for name in ("j1", "j2")} == {"a100", "v100"}
