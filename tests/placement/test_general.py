"""Placement of jobs with parameter servers, GPU fractions or no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from levada.core.assignment import INDEX
from levada.core.cluster import Cluster, Node
from levada.core.job import ParameterServers, Tags
from tests.builders import cluster, job
from tests.placement.placer_harness import PlacerHarness

PS = ParameterServers(replicas=1, cpu=1000)


def nodes(*specs: dict[str, Any]) -> Cluster:
    """One node per spec: `v100` GPUs, and fields of a node."""
    nodes = []
    for i, spec in enumerate(specs):
        fields = dict(spec)
        gpus = {"v100": fields.pop("v100", 0)}
        nodes.append(Node.of(f"n{i}", gpus, **fields))
    return Cluster(nodes=tuple(nodes))


# --- parameter servers ----------------------------------------------------------------------------------------------


def test_parameter_servers_go_where_most_workers_fit() -> None:
    there = PlacerHarness(cluster(2, 1, 0), job("a", max=4, servers=PS))
    assert there.resize(a=4) == {"a": 3}
    assert there.servers("a") == ["n0"]
    assert there.by_node("a") == {"n0": 2, "n1": 1}


def test_servers_and_workers_share_the_best_fitting_node() -> None:
    there = PlacerHarness(cluster(8, 4, 2), job("a", max=4, servers=ParameterServers(replicas=2)))
    there.resize(a=3)
    assert there.servers("a") == ["n1", "n1"]
    assert there.by_node("a") == {"n1": 3}


def test_parameter_servers_go_to_a_node_with_enough_cores() -> None:
    there = PlacerHarness(
        nodes({"v100": 4, "cpu": 4000}, {"v100": 1, "cpu": 16000}),
        job("a", max=4, cpu=1000, servers=ParameterServers(replicas=1, cpu=8000)),
    )
    there.resize(a=4)
    assert there.servers("a") == ["n1"]
    assert there.by_node("a") == {"n0": 3, "n1": 1}


def test_parameter_servers_reduce_the_cores_for_workers() -> None:
    there = PlacerHarness(
        nodes({"v100": 4, "cpu": 4000}, {"v100": 4, "cpu": 6000}), job("a", max=8, cpu=1000, servers=PS)
    )
    there.resize(a=4)
    assert there.servers("a") == ["n1"]
    assert there.by_node("a") == {"n1": 4}
    assert there.world.target.cpu.tolist() == [0, 5000]


def test_parameter_servers_too_large_for_one_node_are_split() -> None:
    there = PlacerHarness(
        nodes({"v100": 2, "cpu": 5000}, {"v100": 2, "cpu": 5000}),
        job("a", max=8, cpu=1000, servers=ParameterServers(replicas=2, cpu=3000)),
    )
    assert there.resize(a=4) == {"a": 4}
    assert sorted(there.servers("a")) == ["n0", "n1"]


def test_no_parameter_server_is_placed_without_a_worker() -> None:
    for servers in (PS, ParameterServers(replicas=1, cpu=99000)):
        there = PlacerHarness(nodes({"v100": 1, "cpu": 9000}), job("a", min=2, max=4, servers=servers))
        assert there.resize(a=2) == {"a": 0}
        assert there.places("a") == {}
        assert there.world.target.cpu.tolist() == [0]


def test_new_workers_go_to_the_node_of_the_servers_first() -> None:
    there = PlacerHarness(cluster(3, 8), job("a", max=8, servers=PS), job("b", 1, max=8), job("c", 2, max=8))
    there.resize(b=8)
    there.resize(c=1)
    there.resize(a=2)
    assert there.servers("a") == ["n0"]
    there.resize(b=5)
    there.resize(a=4)
    assert there.by_node("a") == {"n0": 2, "n1": 2}
    there.resize(c=0)
    there.resize(a=5)  # n0 again, although n1 has workers, too
    assert there.by_node("a") == {"n0": 3, "n1": 2}


def test_single_workers_leave_first_and_servers_and_worker_0_never() -> None:
    there = PlacerHarness(cluster(3, 8), job("a", max=8, servers=PS), job("b", 1, max=8))
    there.resize(b=8)
    there.resize(a=3)
    there.resize(b=2)
    there.resize(a=8)
    assert there.by_node("a") == {"n0": 3, "n1": 5}
    for size, expected in ((5, {"n0": 3, "n1": 2}), (3, {"n0": 3}), (1, {"n0": 1})):
        there.resize(a=size)
        assert there.by_node("a") == expected
        assert there.servers("a") == ["n0"]
    assert 0 in there.places("a")
    there.resize(a=0)
    assert there.places("a") == {}


def test_worker_0_stays_even_alone_on_its_node() -> None:
    there = PlacerHarness(
        nodes({"v100": 1, "cpu": 1000}, {"cpu": 9000}, {"v100": 4, "cpu": 1000}),
        job("a", max=8, servers=ParameterServers(replicas=1, cpu=5000)),
        job("b", 1, max=4),
    )
    there.resize(b=4)
    there.resize(a=1)
    there.resize(b=0)
    there.resize(a=4)
    assert (there.servers("a"), there.by_node("a")) == (["n1"], {"n0": 1, "n2": 3})
    there.resize(a=2)
    assert there.by_node("a") == {"n0": 1, "n2": 1}
    assert there.places("a")[0][0] == "n0"


def test_highest_first_applies_to_jobs_with_servers() -> None:
    there = PlacerHarness(cluster(3, 8), job("a", max=8, servers=PS), job("b", 1, max=8), highest_first=True)
    there.resize(b=8)
    there.resize(a=3)
    there.resize(b=2)
    there.resize(a=8)
    there.resize(a=4)
    assert sorted(there.places("a")) == [-1, 0, 1, 2, 3]


def test_a_growth_step_that_does_not_fit_removes_no_running_worker() -> None:
    """New workers get the smallest free index, so the newest one may not have the highest."""
    there = PlacerHarness(cluster(8), job("a", min=1, max=7, step=2, servers=PS), job("b", 1, max=8))
    there.resize(a=5)
    slot = there.world.slot("a")
    rows = there.world.places(there.world.target, slot)
    there.world.clear_workers(there.world.target, slot)
    there.world.put_workers(there.world.target, slot, rows[:, ~np.isin(rows[INDEX], [1, 4])])
    there.world.table.count[slot] = 3
    there.observe()
    there.resize(b=4)
    before = there.places("a")
    assert sorted(before) == [-1, 0, 2, 3]
    assert there.resize(a=5) == {"a": 3}
    assert there.places("a") == before
    there.resize(b=3)
    assert there.resize(a=5) == {"a": 5}
    assert before.items() <= there.places("a").items()


def test_workers_keep_their_devices_when_the_job_grows() -> None:
    there = PlacerHarness(
        cluster(4, 4, gpu_memory=1000),
        job("a", max=8, servers=PS),
        job("b", 1, max=8, milli=300),
        job("c", 2, max=8, milli=0, cpu=100),
    )
    there.resize(a=2, b=2, c=2)
    before = {name: there.places(name) for name in "abc"}
    there.resize(a=3, b=5, c=6)
    for name, places in before.items():
        assert places.items() <= there.places(name).items()


# --- parts of a GPU -------------------------------------------------------------------------------------------------


def test_a_fraction_goes_to_the_device_with_the_tightest_fit() -> None:
    there = PlacerHarness(
        cluster(2, 2), *(job(name, milli=milli) for name, milli in (("a", 300), ("b", 600), ("c", 350)))
    )
    there.resize(a=1)
    there.resize(b=1)
    assert there.places("a")[0][1] == there.places("b")[0][1]  # 700 are free there, 1000 elsewhere
    there.resize(c=1)
    assert there.places("c")[0][1] != there.places("b")[0][1]


def test_best_fit_compares_devices_not_nodes() -> None:
    """The node with the best-fitting device is not the node with the least free capacity."""
    there = PlacerHarness(cluster(2, 1), job("x", milli=700), job("z", 1, milli=300))
    there.resize(x=1)
    assert there.by_node("x") == {"n0": 1}
    there.resize(z=1)
    assert there.places("z") == there.places("x")


def test_fractions_of_one_job_stay_on_one_node() -> None:
    there = PlacerHarness(cluster(1, 2), job("a", max=8, milli=500), job("b", 1, milli=500))
    there.resize(b=1)
    there.resize(a=3)
    assert len(there.by_node("a")) == 1


def test_gpu_memory_limits_fractions() -> None:
    there = PlacerHarness(
        cluster(2, gpu_memory=1000), job("a", max=8, milli=100, gpu_memory=600), job("b", 1, milli=100, gpu_memory=500)
    )
    assert there.resize(a=8) == {"a": 2}
    assert there.resize(b=1) == {"b": 0}


def test_three_fractions_of_334_do_not_fit_one_device() -> None:
    there = PlacerHarness(cluster(2), job("a", max=3, milli=334))
    there.resize(a=3)
    devices = [devices for _, devices in there.places("a").values()]
    assert sorted(devices.count(device) for device in set(devices)) == [1, 2]


def test_whole_gpus_and_fractions_never_share_a_device() -> None:
    there = PlacerHarness(cluster(2), job("a", milli=500), job("b", max=2), job("c", milli=500))
    there.resize(a=1)
    assert there.resize(b=2) == {"b": 1}
    assert there.resize(c=1) == {"c": 1}
    assert there.places("a")[0] == there.places("c")[0]


def test_foreign_use_of_a_device_is_not_granted() -> None:
    there = PlacerHarness(cluster(1, gpu_memory=1000), job("a", max=4, milli=250, gpu_memory=100))
    there.world.inventory.foreign[0] = 300
    there.world.inventory.reserved[0] = 200
    assert there.resize(a=4) == {"a": 2}
    there.resize(a=0)
    there.world.inventory.foreign_gpu_memory[0] = 850
    assert there.resize(a=4) == {"a": 1}


def tagged(name: str, milli: int = 200, most: int = 1, **tags: str) -> Any:
    return job(name, max=most, milli=milli, tags=Tags(**tags))


def device(there: PlacerHarness, name: str, index: int = 0) -> int:
    return there.places(name)[index][1][0]


def test_affinity_takes_a_tagged_or_idle_device() -> None:
    there = PlacerHarness(
        cluster(3),
        tagged("plain", 100),
        tagged("x", affinity="x"),
        tagged("y", affinity="y"),
        tagged("x2", affinity="x"),
    )
    for name in ("plain", "x", "y", "x2"):
        there.resize(**{name: 1})
    assert len({device(there, name) for name in ("plain", "x", "y")}) == 3
    assert device(there, "x2") == device(there, "x")


def test_affinity_without_a_matching_device_places_nothing() -> None:
    there = PlacerHarness(cluster(1), tagged("plain"), tagged("x", affinity="x"))
    there.resize(plain=1)
    assert there.resize(x=1) == {"x": 0}
    assert there.places("x") == {}


def test_a_device_with_foreign_use_is_not_idle() -> None:
    there = PlacerHarness(cluster(2), tagged("x", affinity="x"), tagged("y", exclusion="y"), tagged("z"))
    there.world.inventory.foreign[0] = 500
    there.resize(x=1)
    assert device(there, "x") == 1
    assert there.resize(y=1) == {"y": 0}
    there.resize(z=1)
    assert device(there, "z") == 0


@pytest.mark.parametrize("order", ["xyz", "yxz"])
def test_anti_affinity_checks_every_tag_of_a_device(order: str) -> None:
    """Two jobs with different tags may share; a third with either tag may not join them."""
    tagged_jobs = {"x": tagged("x", anti_affinity="one"), "y": tagged("y", anti_affinity="two")}
    for third in ("one", "two"):
        there = PlacerHarness(
            cluster(1), *(tagged_jobs[name] for name in order if name in tagged_jobs), tagged("z", anti_affinity=third)
        )
        there.resize(x=1)
        there.resize(y=1)
        assert device(there, "x") == device(there, "y")
        assert there.resize(z=1) == {"z": 0}


def test_workers_with_anti_affinity_take_one_device_each() -> None:
    there = PlacerHarness(cluster(2, 1), tagged("a", most=5, anti_affinity="a"))
    assert there.resize(a=5) == {"a": 3}
    assert len({device(there, "a", index) for index in range(3)}) == 3


def test_exclusion_must_be_equal_and_empty_is_a_value() -> None:
    there = PlacerHarness(
        cluster(3), tagged("plain"), tagged("x", exclusion="x"), tagged("y", exclusion="y"), tagged("x2", exclusion="x")
    )
    for name in ("plain", "x", "y", "x2"):
        there.resize(**{name: 1})
    assert len({device(there, name) for name in ("plain", "x", "y")}) == 3
    assert device(there, "x2") == device(there, "x")


def test_tags_do_not_reduce_the_reachable_size() -> None:
    """Only devices that the tags allow count as free, so other workers go to other nodes."""
    there = PlacerHarness(cluster(2, 2), tagged("plain", 100), tagged("a", 500, most=6, affinity="a"))
    there.resize(plain=1)
    assert there.resize(a=6) == {"a": 6}


# --- no GPU ---------------------------------------------------------------------------------------------------------


def test_cpu_workers_use_best_fit_and_avoid_gpu_nodes() -> None:
    there = PlacerHarness(
        nodes({"v100": 4, "cpu": 2000}, {"cpu": 8000}, {"cpu": 3000}),
        job("a", max=16, milli=0, cpu=1000),
        job("b", 1, max=16, milli=0, cpu=1000),
    )
    there.resize(a=2)
    assert there.by_node("a") == {"n2": 2}
    there.resize(a=3)
    assert there.by_node("a") == {"n2": 3}
    there.resize(b=8)
    assert there.by_node("b") == {"n1": 8}
    there.resize(b=12)
    assert there.by_node("b") == {"n0": 2, "n1": 8}


def test_cpu_jobs_respect_memory_and_cordons() -> None:
    there = PlacerHarness(nodes({"memory": 250}, {"memory": 900}), job("a", max=16, milli=0, memory=100))
    there.world.inventory.set_cordoned(1, True)
    assert there.resize(a=9) == {"a": 2}
    assert there.by_node("a") == {"n0": 2}


def test_workers_without_requests_fit_anywhere() -> None:
    there = PlacerHarness(cluster(0, 0), job("a", max=1000, milli=0))
    assert there.resize(a=1000) == {"a": 1000}
    assert len(there.by_node("a")) == 1


# --- restored places ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [{"milli": 400, "gpu_memory": 10, "cpu": 1000}, {"milli": 0, "cpu": 1000}, {"servers": PS, "cpu": 500}],
)
@pytest.mark.parametrize("keep", [0, 1])
def test_workers_that_still_run_get_their_devices_again(fields: dict[str, Any], keep: int) -> None:
    """They run on n1, because n0 was full at their start; a new placement would choose n0."""
    there = PlacerHarness(
        cluster(4, 4, 0, cpu=3000, gpu_memory=100), job("a", max=3, **fields), job("b", 1, max=3, cpu=1000)
    )
    there.resize(b=3)
    there.resize(a=3 if "servers" in fields else 2)
    there.resize(b=0)
    there.resize(a=len([index for index in there.places("a") if index >= 0]))
    before = there.places("a")
    slot, target = there.world.slot("a"), there.world.target
    rows = there.world.places(target, slot)
    there.world.clear_workers(target, slot)
    if keep:
        there.world.put_workers(target, slot, rows[:, rows[INDEX] < keep])
    there.world.table.count[slot], there.world.table.type[slot] = keep, there.world.table.type[slot] if keep else -1
    there.resize(a=len([index for index in before if index >= 0]), observe=False)
    for index, place in before.items():
        assert index < 0 or there.places("a")[index] == place
