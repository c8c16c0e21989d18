"""Cluster state: adding and removing jobs, sums of assignments, capacity of snapshots."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.core.assignment import DEVICE, FREE, INDEX, NODE, SHARED, SLOT, Assignment
from levada.core.batch import JobBatch
from levada.core.cluster import Node
from levada.core.inventory import UNLIMITED
from levada.core.job import Job, ParameterServers, Phase, Preemptible, Tags
from levada.core.layout import NOT_ALLOWED
from levada.core.queue import Queue
from levada.core.reasons import Code
from levada.core.types import CPU_TYPE
from levada.tables.cluster_state import ClusterState
from tests.builders import cluster, job, world
from tests.tables.cluster_harness import A100, V100, ClusterHarness

# --- jobs -------------------------------------------------------------------------------------------------------------


def test_every_job_field_is_stored_in_its_column() -> None:
    full = Job(
        id="full",
        submitted=3.5,
        min=2,
        max=8,
        desired=4,
        step=2,
        milli=500,
        gpu_memory=11,
        cpu=12,
        memory=13,
        gpu_types=("a100", "v100"),
        servers=ParameterServers(replicas=3, cpu=14, memory=15),
        tags=Tags(affinity="near", anti_affinity="far", exclusion="alone"),
        workload="bert",
        queue="team",
        entity="lab",
        priority=7,
        weight=2.5,
        steps=99.0,
        deadline=1e6,
        time_limit_s=60.0,
        retries=4,
        preemptible=Preemptible.AUTO,
        resizes_in_place=False,
    )
    there = world(cluster(2), job("plain", 1.0), full, queues=(Queue(name="team"),))
    table, slot = there.table, there.slot("full")
    for column, value in {
        "min": 2, "max": 8, "desired": 4, "step": 2, "milli": 500, "gpu_memory": 11, "cpu": 12, "memory": 13,
        "servers": 3, "server_cpu": 14, "server_memory": 15, "priority": 7, "retries": 4, "weight": 2.5, "steps": 99.0,
        "deadline": 1e6, "time_limit": 60.0, "submitted": 3.5, "since": 3.5, "preemptible": Preemptible.AUTO,
        "resizes_in_place": 0, "any_type": 0, "type": -1, "held_type": -1, "count": 0, "held": 0,
        "phase": Phase.PENDING, "reason": Code.NEW, "first_started": math.inf, "op_deadline": math.inf,
    }.items():  # fmt: skip
        assert getattr(table, column)[slot] == value, column
    assert there.workloads[int(table.workload[slot])] == "bert"
    assert there.entities[int(table.entity[slot])] == "lab"
    assert there.queues.names[int(table.queue[slot])] == "team"
    tags = [there.tags[int(column[slot])] for column in (table.affinity, table.anti_affinity, table.exclusion)]
    assert tags == ["near", "far", "alone"]
    plain = there.slot("plain")
    assert math.isnan(table.steps[plain])
    assert (table.deadline[plain], table.time_limit[plain], table.affinity[plain]) == (math.inf, math.inf, 0)
    assert table.any_type[plain] == 1


def test_missing_batch_columns_have_the_defaults_of_a_job() -> None:
    short = JobBatch(
        id=("a", "b"), columns={"submitted": np.array([1.0, 2.0]), "min": np.array([2, 3]), "max": np.array([5, 5])}
    )
    long = JobBatch.of([job("a", 1.0, min=2, max=5), job("b", 2.0, min=3, max=5)])
    tables = []
    for batch in (short, long):
        there = world(cluster(2))
        there.add_jobs(batch)
        tables.append(there.table)
    np.testing.assert_array_equal(tables[0].ints, tables[1].ints)
    np.testing.assert_array_equal(tables[0].floats, tables[1].floats)
    np.testing.assert_array_equal(tables[0].preference, tables[1].preference)


def test_an_active_id_is_not_added_twice() -> None:
    there = world(cluster(2), job("a"), job("b"))
    slots = there.add_jobs(JobBatch.of([job("b", min=9), job("c", min=2), job("a"), job("c", min=3), job("d")]))
    assert [there.ids[int(number)] for number in there.table.number[slots]] == ["c", "d"]
    assert there.table.min[slots].tolist() == [2, 1]
    assert (there.next_number, len(there.table)) == (4, 4)
    there.remove_jobs(np.array([there.slot("a")]))
    assert there.slot("a") == -1
    again = there.add_jobs(JobBatch.of([job("a")]))
    assert there.table.number[again].tolist() == [4]
    assert there.slot("a") == again[0]
    assert not len(there.add_jobs(JobBatch.of([job("a")])))


def test_a_job_of_an_unknown_queue_joins_the_default_queue() -> None:
    there = world(cluster(1), job("a", queue="nowhere"), queues=(Queue(name="team"),))
    assert there.queues.names[int(there.table.queue[there.slot("a")])] == "default"


def test_gpu_types_that_join_later_are_preferred_least() -> None:
    there = world(
        cluster({"v100": 1, "k80": 1}),
        job("any"),
        job("listed", gpu_types=("h100", "k80", "h100")),
        job("cores", milli=0, gpu_types=("v100",)),
    )
    there.put_nodes((Node.of("late", {"b200": 1}),))
    types, preference = list(there.inventory.types), there.table.preference
    assert types == ["cpu", "v100", "k80", "h100", "b200"]
    ranks = {name: preference[:, there.slot(name)].tolist() for name in ("any", "listed", "cores")}
    no = NOT_ALLOWED
    assert ranks["listed"] == [no, no, 1, 0, no]
    assert ranks["cores"] == [0, no, no, no, no]
    liked = ranks["any"][1:]
    assert ranks["any"][0] == no
    assert liked == sorted(set(liked))
    assert liked[-1] < no


# --- assignments ------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from(["whole", "pairs", "part", "slice", "cores", "served"]), st.integers(0, 3)),
        max_size=8,
    )
)
def test_sums_stay_correct_when_workers_are_added_and_removed(story: list[tuple[str, int]]) -> None:
    scene = ClusterHarness()
    there, plane = scene.world, scene.world.target
    given_places = {
        "whole": [(0, 0), (1, 1), (2, 4)],
        "pairs": [(0, 2), (0, 3), (1, 6), (1, 7)],
        "part": [(0, 8), (1, 9)],
        "slice": [(0, 8)],
        "cores": [(0, 0), (1, 0), (2, 2)],
        "served": [(0, 5)],
    }
    for name, size in story:
        places = given_places[name][: size * (2 if name == "pairs" else 1)]
        servers = (0, 1) if name == "served" and places else ()
        scene.put(plane, name, *places, servers=servers)
        rows = there.places(plane, scene.slot(name))
        workers = rows[:, rows[INDEX] >= 0]
        at = workers[NODE] if name == "cores" else workers[DEVICE]
        assert list(zip(workers[INDEX].tolist(), at.tolist(), strict=True)) == places
        assert rows[INDEX][rows[INDEX] < 0].tolist() == ([-2, -1] if servers else [])
        cpu, memory = there.use_of(plane)
        assert (plane.cpu.tolist(), plane.memory.tolist()) == (cpu.tolist(), memory.tolist())
        shared = set(plane.rows[DEVICE][plane.rows[DEVICE] >= 0].tolist())
        assert set((plane.owner == SHARED).nonzero()[0].tolist()) == shared
    for name in given_places:
        there.clear_workers(plane, scene.slot(name))
    assert (plane.owner == FREE).all()
    assert not plane.rows.shape[1]
    assert not plane.cpu.any()
    assert not plane.memory.any()


def test_a_worker_with_several_devices_uses_its_cores_once() -> None:
    scene = ClusterHarness().runs("pairs", (0, 0), (0, 1), (1, 4), (1, 5), (2, 2), (2, 3))
    assert scene.world.target.cpu.tolist() == [2000, 1000, 0]


def test_a_worker_that_moves_within_its_node_uses_its_cores_once() -> None:
    moving = world(cluster(3), job("a", cpu=3000))
    rows = np.array([[0, 0], [0, 0], [0, 0], [0, 2], [1000, 1000], [0, 0]])
    moving.put_workers(moving.held, 0, rows)
    assert moving.held.cpu.tolist() == [3000]
    moving.clear_workers(moving.held, 0)
    assert moving.held.cpu.tolist() == [0]


def test_placement_rows_follow_their_devices() -> None:
    scene = ClusterHarness().runs("whole", (0, 4), (1, 5)).runs("part", (0, 8), (1, 9), kind=A100)
    scene.runs("cores", (0, 0), kind=CPU_TYPE).runs("other", (0, 6))
    there = scene.world
    there.held.claimed[4] = True
    # Devices 4 and 9 are gone.
    one, two = (there.inventory.node_values[node].devices for node in (1, 2))
    fewer = (Node(name="n1", devices=one[1:]), Node(name="n2", devices=two[:1]))
    there.put_nodes((*fewer, Node.of("n0", {"v100": 6}), Node.of("n3", {"v100": 1})))
    # Node 1 had three workers of 1000 each and has two; holders of removed devices still hold them, at the end.
    for plane, gone, cpu in ((there.target, False, 2000), (there.held, True, 3000)):
        whole, part = ([[1, 0], [6, 9]], [[0, 1], [10, 11]]) if gone else ([[1], [6]], [[0], [10]])
        found = there.places(plane, scene.slot("whole"))[[INDEX, DEVICE]]
        assert found[:, found[DEVICE - NODE].argsort()].tolist() == whole
        assert there.places(plane, scene.slot("part"))[[INDEX, DEVICE]].tolist() == part
        assert there.places(plane, scene.slot("other"))[[INDEX, DEVICE]].tolist() == [[0], [7]]
        assert there.places(plane, scene.slot("cores"))[[INDEX, NODE]].tolist() == [[0], [0]]
        assert (plane.owner == SHARED).nonzero()[0].tolist() == part[1]
        assert plane.cpu.tolist() == [2000, cpu, 0, 0]
        assert len(plane.index) == len(plane.claimed) == len(there.inventory.node_of) == 13
    assert there.held.claimed.nonzero()[0].tolist() == [9]
    assert there.inventory.absent.nonzero()[0].tolist() == [9, 11]


def test_a_shared_device_is_free_after_its_last_part() -> None:
    plane = Assignment(3, 1)
    plane.add_rows(np.array([[0, 0, 0, 1, 400, 5], [1, 0, 0, 1, 300, 6], [1, 1, 0, 2, 300, 6], [2, 0, 0, -1, 0, 0]]).T)
    assert plane.owner.tolist() == [FREE, SHARED, SHARED]
    assert plane.shared_milli().tolist() == [0, 700, 300]
    assert plane.shared_gpu_memory().tolist() == [0, 11, 6]
    plane.drop_rows(plane.rows[SLOT] == 1)
    assert plane.owner.tolist() == [FREE, SHARED, FREE]
    plane.drop_rows(plane.rows[SLOT] == 0)
    assert plane.owner.tolist() == [FREE, FREE, FREE]
    assert plane.rows_of(2).shape == (6, 1)


def test_a_copied_assignment_is_independent_and_can_be_adopted() -> None:
    scene = ClusterHarness().runs("whole", (0, 0)).runs("part", (0, 8), kind=A100)
    old = scene.world.target
    twin = old.copy()
    scene.put(twin, "other", (0, 1))
    scene.put(twin, "part", (0, 9))
    assert (old.owner[1], old.rows[DEVICE].tolist(), int(old.cpu[0])) == (FREE, [8], 1000)
    old.take_from(twin)
    assert (old.owner[1], old.rows[DEVICE].tolist(), int(old.cpu[0])) == (scene.slot("other"), [9], 2000)


def test_a_grant_names_nodes_devices_and_parameter_servers() -> None:
    scene = ClusterHarness().runs("served", (0, 4), (2, 1), servers=(1, 0))
    grant = scene.world.grant(scene.world.target, scene.slot("served"))
    assert (grant.gpu_type, grant.workers, grant.allocation) == ("v100", 2, {"v100": 2})
    assert [(p.group, p.index, p.node, p.devices) for p in grant.places] == [
        ("server", 1, "n0", ()),
        ("server", 0, "n1", ()),
        ("worker", 0, "n1", ("0",)),
        ("worker", 2, "n0", ("1",)),
    ]
    assert scene.world.grant(scene.world.target, scene.slot("other")).allocation == {}


# --- capacity ---------------------------------------------------------------------------------------------------------


def _capacity(scene: ClusterHarness, *in_view: str) -> dict[str, int]:
    there = scene.world
    flags = np.zeros(there.table.capacity, bool)
    flags[[scene.slot(name) for name in in_view]] = True
    return dict(zip(there.inventory.types, there.capacity_for(flags).tolist(), strict=True))


def test_devices_of_hidden_jobs_are_not_in_the_capacity() -> None:
    scene = (
        ClusterHarness()
        .runs("whole", (0, 0), (1, 1))
        .runs("part", (0, 8), kind=A100)
        .runs("cores", (0, 0), kind=CPU_TYPE)
    )
    # The two workers of `whole` use a core each; hiding the job hides its devices, not the cores.
    assert _capacity(scene, "whole", "part", "cores") == {"cpu": 22000, "v100": 8000, "a100": 2000}
    assert _capacity(scene) == {"cpu": 20000, "v100": 6000, "a100": 1400}


def test_visible_jobs_may_stay_on_closed_devices() -> None:
    scene = (
        ClusterHarness()
        .runs("whole", (0, 0), (1, 1))
        .runs("part", (0, 8), kind=A100)
        .runs("cores", (0, 0), kind=CPU_TYPE)
    )
    for node in range(3):
        scene.world.inventory.set_cordoned(node, True)
    assert _capacity(scene, "whole", "part", "cores") == {"cpu": 2000, "v100": 2000, "a100": 600}
    assert _capacity(scene) == {"cpu": 0, "v100": 0, "a100": 0}
    for node in range(3):
        scene.world.inventory.set_lost(node)
    assert _capacity(scene, "whole", "part", "cores") == {"cpu": 0, "v100": 0, "a100": 0}


def test_foreign_use_limits_only_new_grants() -> None:
    scene = ClusterHarness().runs("whole", (0, 0)).runs("part", (0, 8), kind=A100)
    inventory = scene.world.inventory
    inventory.foreign[[0, 1, 8, 9]], inventory.foreign_cpu[1] = [1000, 1000, 700, 700], 9000
    inventory.changed()
    assert _capacity(scene, "whole", "part") == {"cpu": 7000 + 8000, "v100": 7000, "a100": 600 + 300}


def test_unlimited_cores_stay_unlimited() -> None:
    scene = ClusterHarness(job("cores", milli=0, cpu=1000), machines=cluster(1, 1)).runs("cores", (0, 0), kind=CPU_TYPE)
    assert _capacity(scene, "cores")["cpu"] == UNLIMITED


# --- views ------------------------------------------------------------------------------------------------------------


def test_a_snapshot_shows_its_jobs_in_order_and_read_only() -> None:
    there = world(cluster(2), job("late", 5.0, min=3), job("early", 1.0, min=2))
    snap = there.snapshot(9.0)
    assert snap.jobs.min.tolist() == [2, 3]
    with pytest.raises(ValueError):
        snap.jobs.min[0] = 9
    one = snap.restricted(np.array([1]), np.array([0, 500]), only_type=np.array([V100]))
    assert (len(one), one.jobs.min.tolist(), one.capacity.tolist()) == (1, [3], [0, 500])
    assert one.allowed.tolist() == [[False, True]]


def test_a_detached_snapshot_ignores_later_events() -> None:
    scene = ClusterHarness().runs("whole", (0, 0), (1, 1)).runs("part", (0, 8), kind=A100)
    there = scene.world
    snap = there.snapshot(1.0, revision=7)
    apart = snap.detached()
    slots = apart.jobs.slots.copy()
    before = (apart.capacity.tolist(), apart.target.owner.tolist(), apart.preference.tolist(), apart.held.rows.tolist())
    there.table.count[:] = 77
    there.table.preference[:] = 5
    there.clear_workers(there.target, scene.slot("whole"))
    there.clear_workers(there.held, scene.slot("part"))
    there.held.cpu[:] = 5
    there.inventory.set_lost(0)
    there.inventory.foreign[:] = 9
    there.put_nodes((Node.of("n9", {"h100": 1}),))
    there.add_jobs(JobBatch.of([job("newcomer")]))
    there.remove_jobs(np.array([scene.slot("other")]))
    assert apart.jobs.count[:2].tolist() == [2, 0]
    assert (
        apart.capacity.tolist(),
        apart.target.owner.tolist(),
        apart.preference.tolist(),
        apart.held.rows.tolist(),
    ) == before
    assert (apart.jobs.slots == slots).all()
    assert (apart.jobs.number >= 0).all()
    assert list(apart.inventory.types) == ["cpu", "v100", "a100"]
    assert not apart.inventory.foreign.any()
    assert not apart.inventory.lost.any()
    assert (apart.revision, len(apart)) == (7, 8)


def test_a_copied_cluster_state_is_independent() -> None:
    scene = ClusterHarness().runs("whole", (0, 0))
    there: ClusterState = scene.world
    twin = there.copy()
    twin.add_jobs(JobBatch.of([job("new", workload="w", entity="e", tags=Tags(affinity="t"), gpu_types=("h100",))]))
    twin.remove_jobs(np.array([twin.slot("part")]))
    twin.clear_workers(twin.target, twin.slot("whole"))
    twin.put_nodes((Node.of("n9", {"b200": 1}),))
    assert there.slot("new") == -1
    assert there.slot("part") >= 0
    assert (there.next_number, len(there.ids), len(there.numbers)) == (8, 8, 8)
    assert ("w" in there.workloads, "e" in there.entities, "t" in there.tags) == (False, False, False)
    assert list(there.inventory.types) == ["cpu", "v100", "a100"]
    assert there.target.owner[0] == there.slot("whole")
