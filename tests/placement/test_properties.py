"""Properties of placement, on random clusters and sizes."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.core.assignment import DEVICE, GPU_MEMORY, MILLI, SLOT
from levada.core.cluster import Cluster, Node
from levada.core.job import Job, ParameterServers, Tags
from tests import kernel_modes
from tests.builders import job
from tests.placement.placer_harness import PlacerHarness

TYPES = ("v100", "a100")


@st.composite
def clusters(draw: st.DrawFn, *, plain: bool = False) -> Cluster:
    """Up to five unequal nodes; unless *plain* with several types, limits, racks and zones."""
    nodes = []
    for i in range(draw(st.integers(1, 5))):
        gpus = {"v100": draw(st.integers(0, 6))}
        fields: dict[str, Any] = {}
        if not plain:
            gpus["a100"] = draw(st.integers(0, 4))
            fields["cpu"] = draw(st.sampled_from([None, 2000, 5000]))
            fields["memory"] = draw(st.sampled_from([None, 300]))
            fields["labels"] = {"rack": draw(st.sampled_from("ab")), "zone": draw(st.sampled_from("yz"))}
            fields["cordoned"] = draw(st.integers(0, 9)) == 0
            fields["gpu_memory"] = draw(st.sampled_from([0, 1000]))
            fields["open_to"] = draw(st.sampled_from([None, None, ("x",), ("x", "y"), ()]))
        nodes.append(Node.of(f"n{i}", gpus, **fields))
    return Cluster(nodes=tuple(nodes))


@st.composite
def any_job(draw: st.DrawFn, index: int) -> Job:
    """A random job."""
    tag = st.sampled_from([None, None, "s", "t"])
    least = draw(st.integers(1, 3))
    servers = draw(st.sampled_from([None, None, None, ParameterServers(replicas=2, cpu=500, memory=20)]))
    return Job(
        id=f"j{index}",
        submitted=float(index),
        min=least,
        max=least + 6,
        step=draw(st.integers(1, 2)),
        milli=draw(st.sampled_from([1000, 1000, 2000, 500, 334, 0])),
        gpu_memory=draw(st.sampled_from([0, 300])),
        cpu=draw(st.sampled_from([0, 1000])),
        memory=draw(st.sampled_from([0, 50])),
        servers=servers,
        node_class=draw(st.sampled_from(["", "", "x", "y"])),
        tags=Tags(affinity=draw(tag), anti_affinity=draw(tag), exclusion=draw(tag)),
    )


@st.composite
def changes(draw: st.DrawFn, jobs: list[Job]) -> list[tuple[dict[str, int], dict[str, str], bool]]:
    """Rounds of new sizes and types, each observed at once or not."""
    rounds = []
    for _ in range(draw(st.integers(1, 6))):
        chosen = draw(st.lists(st.sampled_from(jobs), unique_by=lambda item: item.id, min_size=1))
        sizes = {}
        for item in chosen:
            steps = draw(st.integers(-1, (item.max - item.min) // item.step))
            sizes[item.id] = 0 if steps < 0 else item.min + steps * item.step
        kinds = {item.id: draw(st.sampled_from(TYPES)) for item in chosen}
        rounds.append((sizes, kinds, draw(st.booleans())))
    return rounds


@given(clusters(), st.data(), st.booleans())
def test_any_sequence_of_sizes_is_placed_validly(machines: Cluster, data: st.DataObject, highest_first: bool) -> None:
    jobs = [data.draw(any_job(i)) for i in range(data.draw(st.integers(1, 6)))]
    there = PlacerHarness(machines, *jobs, highest_first=highest_first)
    known = set(there.world.inventory.types)
    for sizes, kinds, observe in data.draw(changes(jobs)):
        kinds = {name: kind for name, kind in kinds.items() if kind in known}
        sizes = {name: size for name, size in sizes.items() if name in kinds}
        if not sizes:
            continue
        table = there.world.table
        before = {item.id: (there.places(item.id), _kind(there, item.id)) for item in jobs}
        reached = there.resize(kinds, observe=observe, **sizes)  # asserts I1, I2, I4, I12 and I14 of all jobs
        for item in jobs:
            slot = there.world.slot(item.id)
            old, old_kind = before[item.id]
            new = there.places(item.id)
            if item.id not in sizes:
                assert new == old
                continue
            count = reached[item.id]
            assert count <= max(sizes[item.id], len([i for i in old if i >= 0]))
            assert count == 0 or (count >= item.min and (count - item.min) % item.step == 0)
            if count and old and _kind(there, item.id) == old_kind:
                smaller, larger = (old, new) if len(new) >= len(old) else (new, old)
                assert smaller.items() <= larger.items()
                assert 0 in new
                if highest_first and len(new) < len(old):
                    assert sorted(new) == sorted(larger)[: len(new)]
            if table.servers[slot] and count:
                assert sum(index < 0 for index in new) == table.servers[slot]
        _shares_are_sound(there)


def _kind(there: PlacerHarness, name: str) -> int:
    return int(there.world.table.type[there.world.slot(name)])


def _shares_are_sound(there: PlacerHarness) -> None:
    """No device is overcommitted, and tags are respected."""
    rows, table, inventory = there.world.target.rows, there.world.table, there.world.inventory
    for device in np.unique(rows[DEVICE][rows[DEVICE] >= 0]):
        here = rows[:, rows[DEVICE] == device]
        assert here[MILLI].sum() <= 1000
        assert here[GPU_MEMORY].sum() <= inventory.gpu_memory[device]
        assert len(set(table.exclusion[here[SLOT]])) == 1
        against = table.anti_affinity[here[SLOT]]
        assert len(against[against > 0]) == len(set(against[against > 0]))
        attached = table.affinity[here[SLOT]]
        assert len(set(attached[attached > 0])) <= 1


@given(clusters(plain=True), st.integers(1, 20), st.integers(1, 3))
def test_a_new_job_on_an_empty_cluster_uses_the_fewest_nodes(machines: Cluster, workers: int, whole: int) -> None:
    there = PlacerHarness(machines, job("a", max=workers, milli=whole * 1000))
    room = [len(node.devices) // whole for node in machines.nodes]
    reached = there.resize(a=workers)["a"]
    assert reached == min(workers, sum(room))
    if reached:
        fewest = next(
            count
            for count in range(1, len(room) + 1)
            if any(sum(chosen) >= reached for chosen in combinations(room, count))
        )
        assert len(there.by_node("a")) == fewest


@given(clusters(), st.integers(1, 12))
def test_a_new_job_uses_the_tightest_domain_and_its_fewest_nodes(machines: Cluster, workers: int) -> None:
    there = PlacerHarness(machines, job("a", max=workers))
    room = [0 if node.cordoned else sum(device.type == "v100" for device in node.devices) for node in machines.nodes]
    zone = [node.labels["zone"] for node in machines.nodes]
    rack = [node.labels["zone"] + node.labels["rack"] for node in machines.nodes]
    if "v100" not in set(there.world.inventory.types) or not (reached := there.resize(a=workers)["a"]):
        return

    def rank(chosen: tuple[int, ...]) -> tuple[int, int, int]:
        several = len(chosen) > 1
        return several * len({zone[i] for i in chosen}), several * len({rack[i] for i in chosen}), len(chosen)

    used = tuple(int(name[1:]) for name in there.by_node("a"))
    every = [
        chosen
        for count in range(1, len(room) + 1)
        for chosen in combinations(range(len(room)), count)
        if sum(room[i] for i in chosen) >= reached and all(room[i] for i in chosen)
    ]
    best = min(rank(chosen) for chosen in every)
    # In one zone with several racks, or in several zones, only the number of nodes is guaranteed.
    if best[1] <= 1:
        assert rank(used) == best
    else:
        assert rank(used)[0] == best[0] or best[0] > 1


@given(clusters(), st.data())
def test_both_kernel_modes_place_identically(machines: Cluster, data: st.DataObject) -> None:
    pytest.importorskip("numba")
    jobs = [data.draw(any_job(i)) for i in range(data.draw(st.integers(1, 6)))]
    rounds = data.draw(changes(jobs))
    before = kernel_modes.active()
    planes = []
    try:
        for implementation in ("interpreted", "compiled"):
            kernel_modes.use(implementation)
            there = PlacerHarness(machines, *jobs)
            known = set(there.world.inventory.types)
            for sizes, kinds, observe in rounds:
                sizes = {name: size for name, size in sizes.items() if kinds[name] in known}
                if sizes:
                    there.resize(kinds, observe=observe, **sizes)
            target = there.world.target
            planes.append((target.owner, target.index * (target.owner >= 0), target.rows, target.cpu, target.memory))
    finally:
        kernel_modes.use(before)
    for interpreted, compiled in zip(*planes, strict=True):
        np.testing.assert_array_equal(interpreted, compiled)


@given(clusters(), st.data())
def test_parameter_servers_never_move_and_attract_workers(machines: Cluster, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=6))
    there = PlacerHarness(
        machines, job("a", max=9, cpu=1000, servers=ParameterServers(replicas=1, cpu=500)), job("b", 1, max=4)
    )
    if "v100" not in set(there.world.inventory.types):
        return
    there.resize(b=data.draw(st.integers(0, 4)))
    anchor = None
    for size in sizes:
        had = there.by_node("a")
        there.resize(a=size)
        now = there.by_node("a")
        if not now:
            continue
        assert anchor in (None, there.servers("a")[0])
        anchor = there.servers("a")[0]
        elsewhere = {node for node in now if node != anchor and now[node] > had.get(node, 0)}
        if elsewhere:
            # Workers are on other nodes only if the node of the servers is full.
            node = there.world.inventory.nodes.find(anchor)
            on_node = there.world.inventory.node_of == node
            kind = there.world.inventory.types.find("v100")
            free = on_node & (there.world.target.owner == -1) & (there.world.inventory.type_of == kind)
            cores = there.world.inventory.free_cpu()[node] - there.world.target.cpu[node]
            assert cores < 1000 or not free.any() or machines.nodes[node].cordoned
        if sum(now.values()) < sum(had.values()) and now.get(anchor, 0) < had.get(anchor, 0):
            assert set(now) == {anchor} or 0 in {i for i, (n, _) in there.places("a").items() if n != anchor}
