"""Placement of plain jobs: few nodes, few moves, best fit, topology, unequal and mixed nodes."""

from __future__ import annotations

import numpy as np
import pytest

from levada.core.assignment import INDEX
from levada.core.cluster import Cluster, Node, merged
from levada.core.types import WHOLE
from levada.tables.cluster_state import ClusterState
from tests.builders import cluster, job
from tests.placement.placer_harness import PlacerHarness


def node(name: str, gpus: int | dict[str, int], rack: str = "", zone: str = "", **fields: object) -> Node:
    labels = {key: value for key, value in (("rack", rack), ("zone", zone)) if value}
    return Node.of(name, {"v100": gpus} if isinstance(gpus, int) else gpus, labels=labels, **fields)


def machines(*nodes: Node) -> Cluster:
    return Cluster(nodes=nodes)


# --- growing and shrinking ------------------------------------------------------------------------------------------


def test_a_growing_job_keeps_its_workers_and_fills_its_own_nodes_first() -> None:
    there = PlacerHarness(cluster(4, 8, 4), job("a", max=16), job("b", 1, max=16))
    there.resize(b=2)
    there.resize(a=2)
    before = there.places("a")
    assert there.by_node("a") == there.by_node("b") == {"n0": 2}
    there.resize(b=1)
    there.resize(a=4)
    assert there.by_node("a") == {"n0": 3, "n2": 1}
    assert before.items() <= there.places("a").items()
    there.resize(a=6)
    assert there.by_node("a") == {"n0": 3, "n2": 3}


def test_new_workers_take_the_smallest_free_indices() -> None:
    there = PlacerHarness(cluster(2, 2, 8), job("a", max=16), job("b", 1, max=16), job("c", 2, max=16))
    there.resize(b=8)
    there.resize(a=3)
    assert there.by_node("a") == {"n0": 2, "n1": 1}
    there.resize(c=1)
    there.resize(b=4)
    there.resize(a=6)
    there.resize(c=0)
    there.resize(a=5)
    assert sorted(there.places("a")) == [0, 1, 3, 4, 5]  # the single worker was released
    there.resize(a=6)
    assert sorted(there.places("a")) == [0, 1, 2, 3, 4, 5]


def test_a_shrinking_job_releases_single_workers_first() -> None:
    there = PlacerHarness(cluster(1, 2, 4), job("a", max=16))
    there.resize(a=7)
    assert there.by_node("a") == {"n0": 1, "n1": 2, "n2": 4}
    home = there.places("a")[0][0]
    assert home == "n2"
    before = there.places("a")
    for size, nodes in ((6, {"n1": 2, "n2": 4}), (5, {"n1": 1, "n2": 4}), (4, {"n2": 4}), (2, {"n2": 2})):
        there.resize(a=size)
        assert there.by_node("a") == nodes
        assert there.places("a").items() <= before.items()


def test_worker_0_and_its_node_stay_even_if_it_is_alone() -> None:
    there = PlacerHarness(cluster(1, 4), job("a", max=16), job("b", 1, max=16))
    there.resize(b=4)
    there.resize(a=1)
    there.resize(b=0)
    there.resize(a=5)
    assert there.by_node("a") == {"n0": 1, "n1": 4}
    there.resize(a=2)
    assert there.by_node("a") == {"n0": 1, "n1": 1}
    there.resize(a=1)
    assert there.places("a") == {0: ("n0", (0,))}


def test_highest_first_uses_only_the_index() -> None:
    there = PlacerHarness(cluster(1, 4), job("a", max=16), job("b", 1, max=16), highest_first=True)
    there.resize(b=4)
    there.resize(a=1)
    there.resize(b=0)
    there.resize(a=5)
    for size in (4, 3, 2, 1):
        there.resize(a=size)
        assert sorted(there.places("a")) == list(range(size))


def test_workers_that_are_not_running_are_released_first() -> None:
    there = PlacerHarness(cluster(2, 4), job("a", max=16), job("b", 1, max=16))
    there.resize(b=1)
    there.resize(a=2)
    assert there.by_node("a") == {"n1": 2}
    there.resize(a=1)
    there.resize(b=0)
    running = there.places("a")
    there.resize(a=4, observe=False)
    there.resize(a=1, observe=False)
    assert there.places("a") == running
    # Even if only the single worker runs.
    there = PlacerHarness(cluster(1, 4), job("a", max=16), job("b", 1, max=16))
    there.resize(a=5)
    there.resize(a=4)
    there.world.held.owner[0], there.world.held.index[0] = there.world.slot("a"), 4
    there.resize(a=5, observe=False)
    there.world.held.owner[4], there.world.held.index[4] = -1, 0
    gone = there.world.target.index[4]
    there.resize(a=4, observe=False)
    assert gone not in there.places("a")


def test_a_job_that_returns_to_its_old_type_keeps_its_running_workers() -> None:
    there = PlacerHarness(
        machines(node("n0", {"v100": 4}), node("n1", {"v100": 4}), node("n2", {"a100": 4})),
        job("a", max=8),
        job("b", 1, max=8),
    )
    there.resize(a=6)
    there.resize(a=5)
    there.resize(a=4)
    there.resize(b=1)
    there.resize(a=6)
    before = there.places("a")
    there.resize({"a": "a100"}, a=4, observe=False)  # stopping, but not stopped yet
    assert there.by_node("a") == {"n2": 4}
    there.resize(a=6, observe=False)
    assert there.places("a") == before
    there.resize({"a": "a100"}, a=4, observe=False)
    there.resize(a=3, observe=False)
    assert there.places("a").items() <= before.items()
    assert sorted(there.places("a")) == [0, 1, 2]


def test_devices_granted_to_others_meanwhile_are_not_taken_back() -> None:
    there = PlacerHarness(machines(node("n0", {"v100": 4, "a100": 4})), job("a", max=8), job("b", 1, max=8))
    there.resize(a=4)
    there.resize({"a": "a100"}, a=4, observe=False)
    there.resize(b=2, observe=False)
    assert there.resize(a=4, observe=False) == {"a": 2}


def test_a_place_is_not_restored_if_its_index_is_used_again() -> None:
    there = PlacerHarness(cluster(2, 1), job("a", max=4))
    there.resize(a=3)
    slot, target = there.world.slot("a"), there.world.target
    assert there.places("a")[2] == ("n1", (2,))
    there.world.held.index[2] = 1  # like a move of worker 1 from n1 to n0
    rows = there.world.places(target, slot)
    there.world.clear_workers(target, slot)
    there.world.put_workers(target, slot, rows[:, rows[INDEX] < 2])
    there.world.table.count[slot] = 2
    there.resize(a=3, observe=False)
    assert sorted(there.places("a")) == [0, 1, 2]


def test_devices_that_are_free_now_come_first() -> None:
    there = PlacerHarness(cluster(4, 4), job("a", max=8), job("b", 1, max=8))
    there.resize(a=4)
    there.resize(a=0, observe=False)  # a must release n0 first
    there.resize(b=2)
    assert there.by_node("b") == {"n1": 2}


# --- few nodes, best fit --------------------------------------------------------------------------------------------


def test_a_job_takes_the_best_fitting_node() -> None:
    there = PlacerHarness(cluster(8, 4, 2), job("a", max=8), job("b", 1, max=8), job("c", 2, max=8))
    there.resize(a=2, b=4, c=8)
    assert (there.by_node("a"), there.by_node("b"), there.by_node("c")) == ({"n2": 2}, {"n1": 4}, {"n0": 8})


def test_a_job_too_large_for_any_node_fills_the_largest_and_the_rest_fits_best() -> None:
    there = PlacerHarness(cluster(3, 8, 2, 4, 8), job("a", max=32))
    there.resize(a=18)
    assert there.by_node("a") == {"n1": 8, "n2": 2, "n4": 8}


def test_a_job_that_does_not_fit_gets_an_allowed_size_or_nothing() -> None:
    there = PlacerHarness(cluster(4, 3), job("a", min=2, max=12, step=3), job("b", 1, min=3, max=3), job("c", 2, max=1))
    assert there.resize(a=11) == {"a": 5}
    assert there.resize(b=3, c=1) == {"b": 0, "c": 1}
    assert there.resize(a=8) == {"a": 5}


def test_workers_with_several_gpus_stay_on_one_node() -> None:
    there = PlacerHarness(cluster(3, 5, 4), job("a", max=8, milli=2 * WHOLE), job("b", 1, max=8, milli=3 * WHOLE))
    assert there.resize(a=4) == {"a": 4}
    assert there.by_node("a") == {"n1": 2, "n2": 2}
    assert all(len(devices) == 2 for _, devices in there.places("a").values())
    assert there.resize(b=2) == {"b": 1}
    assert there.by_node("b") == {"n0": 1}


def test_mixed_nodes_give_each_job_its_type() -> None:
    there = PlacerHarness(
        machines(node("n0", {"v100": 2, "a100": 4}), node("n1", {"a100": 2, "v100": 4})),
        job("a", max=8),
        job("b", 1, max=8),
    )
    there.resize({"a": "a100", "b": "v100"}, a=4, b=4)
    assert (there.by_node("a"), there.by_node("b")) == ({"n0": 4}, {"n1": 4})
    there.resize({"a": "a100", "b": "v100"}, a=6, b=6)
    type_of = there.world.inventory.type_of
    for name, kind in (("a", "a100"), ("b", "v100")):
        devices = [device for _, devices in there.places(name).values() for device in devices]
        assert set(type_of[devices]) == {there.world.inventory.types.find(kind)}


def test_cores_and_memory_of_a_node_limit_its_workers() -> None:
    there = PlacerHarness(
        machines(node("n0", 8, cpu=3000), node("n1", 8, memory=200), node("n2", {"v100": 4, "a100": 4}, cpu=4000)),
        job("a", max=16, cpu=1000, memory=100),
        job("b", 1, max=8, cpu=1000),
    )
    assert there.resize(a=16) == {"a": 9}
    assert there.by_node("a") == {"n0": 3, "n1": 2, "n2": 4}
    # Cores of a node are shared by all types.
    assert there.resize("a100", b=1) == {"b": 0}
    there.resize(a=0)
    assert there.resize("a100", b=5) == {"b": 4}
    assert there.resize(a=9) == {"a": 5}


def test_cordoned_broken_and_foreign_devices_are_not_used() -> None:
    there = PlacerHarness(cluster(4, 4, 4), job("a", max=12))
    inventory = there.world.inventory
    inventory.set_cordoned(0, True)
    inventory.healthy[4] = False
    inventory.foreign[5] = 1
    inventory.set_lost(2)
    assert there.resize(a=12) == {"a": 2}
    assert there.places("a") == {0: ("n1", (6,)), 1: ("n1", (7,))}


# --- topology -------------------------------------------------------------------------------------------------------


def test_a_job_stays_in_one_rack_if_it_fits() -> None:
    there = PlacerHarness(
        machines(node("n0", 8, "r1"), node("n1", 2, "r2"), node("n2", 8, "r2"), node("n3", 4, "r1")),
        job("a", max=16),
    )
    there.resize(a=10)
    assert there.by_node("a") == {"n1": 2, "n2": 8}  # it fits r2 exactly


def test_a_job_takes_the_rack_with_the_fewest_nodes() -> None:
    small = [node(f"s{i}", 2, "small") for i in range(5)]
    there = PlacerHarness(machines(*small, node("l0", 8, "large"), node("l1", 8, "large")), job("a", max=16))
    there.resize(a=10)
    assert there.by_node("a") == {"l0": 8, "l1": 2}


def test_a_job_stays_in_one_zone_if_no_rack_fits() -> None:
    there = PlacerHarness(
        machines(
            node("n0", 4, "r1", "east"),
            node("n1", 4, "r1", "west"),
            node("n2", 4, "r2", "east"),
            node("n3", 3, "r2", "west"),
        ),
        job("a", max=16),
    )
    there.resize(a=7)
    assert there.by_node("a") == {"n1": 4, "n3": 3}
    there.resize(a=0)
    there.resize(a=8)
    assert there.by_node("a") == {"n0": 4, "n2": 4}


def test_a_growing_job_stays_in_its_rack() -> None:
    there = PlacerHarness(
        machines(node("n0", 2, "r1"), node("n1", 8, "r2"), node("n2", 4, "r1"), node("n3", 4, "r1")),
        job("a", max=16),
        job("b", 1, max=16),
    )
    there.resize(b=8)
    there.resize(a=2)
    there.resize(b=0)
    there.resize(a=9)  # n1 and n0 would suffice, but are in two racks
    assert there.by_node("a") == {"n0": 2, "n2": 4, "n3": 3}


def test_kubernetes_topology_labels_are_used() -> None:
    there = PlacerHarness(
        machines(
            *(Node.of(f"n{i}", {"v100": 2}, labels={"topology.kubernetes.io/zone": f"z{i % 2}"}) for i in range(4))
        ),
        job("a", max=16),
    )
    there.resize(a=4)
    assert there.by_node("a") == {"n0": 2, "n2": 2}


# --- sizes only -----------------------------------------------------------------------------------------------------


def test_placement_can_be_left_to_the_backend() -> None:
    there = PlacerHarness(
        merged(machines(node("n0", 3, cpu=1), node("n1", 5), node("n2", 4, cordoned=True))), job("a", max=16, cpu=9000)
    )
    assert there.resize(a=8) == {"a": 8}
    assert there.by_node("a") == {"*": 8}


def test_an_empty_cluster_and_an_unknown_type_give_nothing() -> None:
    there = PlacerHarness(Cluster(), job("a", max=4, gpu_types=("v100",)))
    assert there.resize(a=4) == {"a": 0}
    there = PlacerHarness(cluster(4), job("a", max=4, gpu_types=("v100", "tpu")))
    assert there.resize("tpu", a=4) == {"a": 0}


@pytest.mark.parametrize("nodes", [1, 3])
def test_nothing_to_place_changes_nothing(nodes: int) -> None:
    there = PlacerHarness(cluster(*[4] * nodes), job("a", max=4))
    plane = there.world.target.copy()
    empty = np.zeros(0, np.int64)
    assert len(there.packer.place(there.world, plane, empty, empty, empty)) == 0
    assert isinstance(there.world, ClusterState)
    assert (plane.owner == -1).all()
