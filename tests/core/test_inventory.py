"""The cluster as columns: devices keep their identity when they are renumbered."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from levada.core import layout
from levada.core.cluster import Cluster, Device, Node
from levada.core.inventory import UNLIMITED, Inventory
from levada.core.names import Names
from levada.core.types import CPU_TYPE
from tests.builders import cluster


def test_a_name_never_changes_its_number() -> None:
    names = Names(["a", "b", "a"])
    assert (list(names), names.add("b"), names.add("c"), names.find("z")) == (["a", "b"], 1, 2, -1)
    twin = names.copy()
    twin.add("d")
    assert "d" not in names
    assert (names[2], len(names), "c" in names) == ("c", 3, True)


def test_pools_are_the_devices_of_one_type_in_one_node() -> None:
    mixed = Node(
        name="m",
        devices=tuple(Device(id=f"g{i}", type=kind) for i, kind in enumerate(["b", "a", "b", "a"])),
    )
    inventory = Inventory(Cluster(nodes=(mixed, Node(name="bare"), *cluster(2, gpu_type="a").nodes)))
    assert list(inventory.types) == ["cpu", "b", "a"]
    pools = zip(inventory.pool_node, inventory.pool_type, inventory.pool_start, inventory.pool_stop, strict=True)
    assert [tuple(int(value) for value in pool) for pool in pools] == [(0, 1, 0, 2), (0, 2, 2, 4), (2, 2, 4, 6)]
    assert inventory.device_keys() == [(0, "g0"), (0, "g2"), (0, "g1"), (0, "g3"), (2, "0"), (2, "1")]
    assert inventory.devices_of(0).tolist() == [0, 1, 2, 3]
    assert not len(inventory.devices_of(1))


DEVICES = st.lists(
    st.builds(Device, id=st.sampled_from("abcd"), type=st.sampled_from(["x", "y", "z"])),
    max_size=4,
    unique_by=lambda device: device.id,
)
ROUNDS = st.lists(
    st.dictionaries(st.sampled_from(["n0", "n1", "n2"]), DEVICES, min_size=1, max_size=3), min_size=1, max_size=5
)


@given(ROUNDS)
def test_put_returns_the_new_number_of_every_device(rounds: list[dict[str, list[Device]]]) -> None:
    """Foreign use follows its device; removed devices become -1; nodes and types keep their numbers."""
    inventory = Inventory()
    marks = 0
    for change in rounds:
        keys, nodes, types = inventory.device_keys(), list(inventory.nodes), list(inventory.types)
        inventory.foreign = np.arange(marks, marks + len(keys))
        marks += len(keys)
        old = inventory.foreign.copy()
        moved = inventory.put(tuple(Node(name=name, devices=tuple(devices)) for name, devices in change.items()))
        new_keys = inventory.device_keys()
        assert len(set(new_keys)) == len(new_keys)
        assert [new_keys[to] if to >= 0 else None for to in moved] == [key if key in new_keys else None for key in keys]
        expected = np.zeros(len(new_keys), np.int64)
        expected[moved[moved >= 0]] = old[moved >= 0]
        assert inventory.foreign.tolist() == expected.tolist()
        assert list(inventory.nodes)[: len(nodes)] == nodes
        assert list(inventory.types)[: len(types)] == types
        for name, devices in change.items():
            here = inventory.devices_of(inventory.nodes.find(name))
            devices_here = {(inventory.device_id(int(d)), inventory.types[int(inventory.type_of[d])]) for d in here}
            assert devices_here == {(device.id, device.type) for device in devices}
        pools = list(zip(inventory.node_of, inventory.type_of, strict=True))
        assert pools == sorted(pools)
        for start, stop in zip(inventory.pool_start, inventory.pool_stop, strict=True):
            assert len(set(pools[start:stop])) == 1
        assert int((inventory.pool_stop - inventory.pool_start).sum()) == len(pools)


def test_a_replaced_node_has_its_new_size_and_is_no_longer_lost() -> None:
    inventory = Inventory(cluster(2, 2, cpu=4000))
    inventory.set_lost(0)
    assert inventory.present.tolist() == [False, False, True, True]
    inventory.put((Node.of("n0", {"v100": 3}, cpu=9000, cordoned=True),))
    assert inventory.present.all()
    assert inventory.cpu.tolist() == [9000, 4000]
    assert inventory.usable.tolist() == [False, False, False, True, True]
    assert inventory.memory.tolist() == [UNLIMITED, UNLIMITED]


def test_a_vanished_held_device_is_absent_until_it_returns_or_is_released() -> None:
    whole = Node.of("n0", {"v100": 2})
    fewer = Node(name="n0", devices=whole.devices[1:])
    inventory = Inventory(cluster(2, 1))
    assert inventory.put((fewer,), np.array([True, False, False])).tolist() == [1, 0, 2]
    assert [inventory.device_id(device) for device in range(3)] == ["1", "0", "0"]
    for there in (inventory.present, inventory.usable, inventory.free_milli() > 0):
        assert there.tolist() == [True, False, True]
    assert inventory.capacity()[1] == 2000
    assert inventory.put((fewer,), np.array([False, True, False])).tolist() == [0, 1, 2], "still held"
    back = inventory.copy()
    assert back.put((whole,), np.array([False, True, False])).tolist() == [1, 0, 2]
    assert back.usable.all()
    assert inventory.put((Node.of("n1", {"v100": 1}),), np.zeros(3, bool)).tolist() == [0, -1, 1], "held no more"


def test_a_cordon_survives_changes_of_its_node_and_new_nodes() -> None:
    inventory = Inventory(cluster(2, 2))
    inventory.set_cordoned(0, True)
    inventory.put((Node.of("new", {"v100": 1}),))
    assert inventory.cordoned.tolist() == [True, False, False]
    inventory.put((Node.of(inventory.nodes[0], {"v100": 1}),))
    assert inventory.cordoned.tolist() == [True, False, False]
    inventory.set_cordoned(0, False)
    inventory.put((Node.of("newer", {"v100": 1}),))
    assert not inventory.cordoned.any()


def test_cordons_of_the_backend_and_of_the_operator_are_independent() -> None:
    inventory = Inventory(cluster(2, 2))
    node = inventory.node_values[0]
    closed = msgspec.structs.replace(node, cordoned=True)
    inventory.set_cordoned(0, True)
    inventory.put((closed,))
    inventory.set_cordoned(0, False)
    assert inventory.cordoned.tolist() == [True, False], "the backend's cordon stays"
    inventory.set_cordoned(0, True)
    inventory.put((node,))
    assert inventory.cordoned.tolist() == [True, False], "the operator's cordon stays"
    inventory.set_cordoned(0, False)
    assert not inventory.cordoned.any()
    inventory.put((closed,))
    inventory.put((node,))
    assert not inventory.cordoned.any(), "the backend's cordon is replaced with each report"


def test_classes_of_nodes_and_jobs_in_any_order() -> None:
    nodes = Node.of("a", {"v100": 1}, open_to=("x",)), Node.of("b", {"v100": 1}), Node.of("c", {"v100": 1}, open_to=())
    inventory = Inventory(Cluster(nodes=nodes))
    assert inventory.add_class("") == 0
    x, y = inventory.add_class("x"), inventory.add_class("y")
    assert inventory.eligible[[0, x, y]].tolist() == [[True, True, True], [True, True, False], [False, True, False]]
    whole = [inventory.allocatable_for(number).devices[layout.WHOLE_OPEN].tolist() for number in (0, x, y)]
    assert whole == [[1, 1, 1], [1, 1, 0], [0, 1, 0]]
    inventory.put((Node.of("c", {"v100": 1}, open_to=("y", "z")),))
    assert inventory.eligible[:, 2].tolist() == [True, False, True, True]
    assert inventory.classes == ["", "x", "y", "z"]


def test_devices_with_foreign_use_or_reservations_are_not_free() -> None:
    inventory = Inventory(cluster(3, 2, cpu=4000, memory=100))
    inventory.foreign[0], inventory.reserved[0] = 700, 200
    inventory.foreign[1], inventory.reserved[1] = 700, 700
    inventory.healthy[2] = False
    inventory.set_cordoned(1, True)
    inventory.foreign_cpu[0], inventory.reserved_cpu[0], inventory.reserved_memory[0] = 1000, 4000, 30
    assert inventory.free_milli().tolist() == [100, 0, 0, 0, 0]
    assert inventory.free_cpu().tolist() == [-1000, 0]
    assert inventory.free_memory().tolist() == [70, 0]
    assert inventory.usable_nodes.tolist() == [True, False]
    assert inventory.capacity().tolist() == [0, 100]
    inventory.set_cordoned(1, False)
    assert inventory.capacity().tolist() == [4000, 2100]


def test_capacity_without_limits_is_unlimited_for_any_number_of_nodes() -> None:
    inventory = Inventory(cluster(*[1] * 50))
    assert inventory.capacity()[CPU_TYPE] == UNLIMITED


def test_racks_of_different_zones_are_different_racks() -> None:
    def node(name: str, **labels: str) -> Node:
        return Node(name=name, labels=labels)

    west = {"topology.kubernetes.io/zone": "west", "rack": "r1"}
    nodes = (
        node("a", zone="east", rack="r1"),
        Node(name="b", labels=west),
        node("c", zone="east", rack="r1"),
        node("d"),
    )
    inventory = Inventory(Cluster(nodes=nodes))
    assert inventory.rack.tolist() == [0, 1, 0, 2]
    assert inventory.zone.tolist() == [0, 1, 0, 2]


def test_a_copy_is_independent() -> None:
    inventory = Inventory(cluster(2))
    twin = inventory.copy()
    twin.put((Node.of("new", {"a100": 1}),))
    twin.set_lost(0)
    twin.foreign[0] = 9
    assert (list(inventory.nodes), list(inventory.types), len(inventory.node_of)) == (["n0"], ["cpu", "v100"], 2)
    assert not inventory.lost.any()
    assert not inventory.foreign.any()
    assert len(inventory.node_values) == 1


def test_allocatable_is_recomputed_after_changed() -> None:
    inventory = Inventory(Cluster(nodes=(Node.of("a", {"v100": 2}, cpu=4000), Node.of("b", {"a100": 2}, cpu=8000))))
    v100, a100 = inventory.types.find("v100"), inventory.types.find("a100")
    assert inventory.allocatable.supply.tolist() == [[1, 1, 1], [0, 2000, 2000], [12000, 2000, 2000]]
    inventory.foreign[0] = 700
    inventory.changed()
    assert inventory.allocatable.devices[layout.WHOLE_OPEN].tolist() == [0, 1, 1, 1]
    assert inventory.allocatable.devices[layout.MILLI_LEFT].tolist() == [300, 1000, 1000, 1000]
    inventory.set_cordoned(1, True)
    assert inventory.allocatable.supply[1, [v100, a100]].tolist() == [1300, 0]
    assert inventory.allocatable.nodes[layout.CPU_FREE].tolist() == [4000, 0]
    inventory.set_lost(0)
    assert inventory.allocatable.supply.tolist() == [[1, 0, 1], [0, 0, 0], [8000, 0, 2000]]
    assert not inventory.allocatable.nodes[layout.NODE_OPEN].any()
    inventory.types.add("h100")
    assert inventory.allocatable.supply.shape == (3, 4)
