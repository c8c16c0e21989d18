"""Pure decisions: ordinals, resources, device ids, classes, merge patches, stamps."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.backends.kubernetes.eligibility import ANY, is_eligible, node_demand
from levada.backends.kubernetes.job_writer import merge_patch
from levada.backends.kubernetes.nodes import device_ids, engine_node, gpus_of
from levada.backends.kubernetes.objects import NodeObject, PodSpec, Pool, SliceSpec
from levada.backends.kubernetes.ordinals import seat
from levada.backends.kubernetes.resources import PodDemand, pod_demand, quantity
from levada.backends.kubernetes.stamp import Stamp, stamp_of
from levada.core.grant import WorkerPlace
from levada.core.plan import OpKind
from tests.kubernetes.backend.api_rules import merge

NODES = st.sampled_from(["a", "b", "c"])


@given(st.lists(NODES, min_size=1, max_size=6), st.dictionaries(st.integers(0, 8), NODES, max_size=6))
def test_seating_uses_each_place_once_with_the_fewest_moves(nodes: list[str], current: dict[int, str]) -> None:
    places = [WorkerPlace(index=2 * number, node=node) for number, node in enumerate(nodes)]
    seating = seat(places, current)
    assert sorted(place.index for place in seating.places) == [place.index for place in places]
    staying = Counter(node for ordinal, node in current.items() if ordinal < len(places))
    assert len(seating.moves) == staying.total() - (staying & Counter(nodes)).total()
    for ordinal, node in current.items():
        if ordinal < len(places) and ordinal not in seating.moves:
            assert seating.places[ordinal].node == node


@given(st.lists(NODES, min_size=1, max_size=6))
def test_seating_of_a_grant_without_holes_is_the_identity(nodes: list[str]) -> None:
    places = [WorkerPlace(index=number, node=node) for number, node in enumerate(nodes)]
    assert seat(places, dict(enumerate(nodes))).places == tuple(places)
    assert seat(places, {}).places == tuple(places)


@pytest.mark.parametrize(
    ("text", "number"),
    [("500m", 0.5), ("2", 2), (3, 3), ("1.5", 1.5), ("1Ki", 1024), ("2Gi", 2 * 1024**3), ("1e3", 1000), ("1k", 1000),
     ("100n", 1e-7), ("", 0), ("abc", 0), ("1.2.3", 0)],
)  # fmt: skip
def test_quantities(text: str | int, number: float) -> None:
    assert float(quantity(text)) == pytest.approx(number)


def container(cpu: str, memory: str = "0", **fields: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}, **fields}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"containers": [container("1"), container("500m", "1Gi")]}, PodDemand(cpu=1500, memory=1024)),
        ({"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}, PodDemand(gpus=2)),
        ({"containers": [container("1")], "initContainers": [container("8")]}, PodDemand(cpu=8000)),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("1", restartPolicy="Always"), container("7")],
                "overhead": {"cpu": "250m"},
            },
            PodDemand(cpu=8250),
        ),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("7"), container("2", restartPolicy="Always")],
            },
            PodDemand(cpu=7000),
        ),
        (
            {"containers": [container("1", "1Gi")], "resources": {"requests": {"cpu": "4"}}},
            PodDemand(cpu=4000, memory=1024),
        ),
    ],
)
def test_pod_takes_what_the_scheduler_counts(spec: dict[str, Any], expected: PodDemand) -> None:
    assert pod_demand(msgspec.convert(spec, PodSpec)) == expected


@pytest.mark.parametrize(
    ("count", "before", "used", "after"),
    [
        (3, [], set(), ["0", "1", "2"]),
        (2, ["0", "1", "2"], {"2"}, ["0", "2"]),
        (1, ["0", "1", "2"], {"1", "2"}, ["1", "2"]),
        (3, ["0", "2"], {"2"}, ["0", "1", "2"]),
        (2, [], {"7"}, ["0", "7"]),
        (0, ["0", "1"], set(), []),
    ],
)
def test_device_ids_in_use_stay(count: int, before: list[str], used: set[str], after: list[str]) -> None:
    assert list(device_ids(count, before, used)) == after


def node(**fields: Any) -> NodeObject:
    meta = {"name": "n0", "labels": fields.pop("labels", {})}
    return msgspec.convert({"metadata": meta, "spec": fields.pop("spec", {}), "status": fields}, NodeObject)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, "gpu"),
        ({"nvidia.com/gpu.product": "NVIDIA-A100"}, "NVIDIA-A100"),
        ({"cloud.google.com/gke-accelerator": "nvidia-l4"}, "nvidia-l4"),
        ({"vodascheduler/accelerator": "v100", "nvidia.com/gpu.product": "Tesla"}, "v100"),
        ({"levada.dev/accelerator": "a100", "vodascheduler/accelerator": "v100"}, "a100"),
    ],
)
def test_gpu_type_comes_from_labels(labels: dict[str, str], expected: str) -> None:
    assert gpus_of(node(labels=labels, allocatable={"nvidia.com/gpu": "8"}), [])[:2] == (8, expected)


def test_gpus_come_from_the_newest_slices_where_no_resource_is_allocatable() -> None:
    device = {
        "name": "g0",
        "attributes": {"productName": {"string": "H100"}},
        "capacity": {"memory": {"value": "80Gi"}},
    }
    slices = [
        SliceSpec(driver="gpu.nvidia.com", devices=(device, device), pool=Pool(generation=2)),
        SliceSpec(driver="gpu.nvidia.com", devices=(device,)),
        SliceSpec(driver="nic.example.com", devices=(device,)),
    ]
    assert gpus_of(node(allocatable={}), slices) == (2, "H100", 80 * 1024)


def test_heartbeat_and_unknown_labels_change_nothing_of_a_node() -> None:
    def at(when: str, **labels: str) -> Any:
        ready = [{"type": "Ready", "status": "True", "lastHeartbeatTime": when}]
        found = node(labels=labels, conditions=ready, allocatable={"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"})
        return engine_node(found, gpus_of(found, []), ["0"], [node_demand([])])

    assert at("2026-11-18T10:00:00Z") == at("2026-11-18T10:05:00Z", anything="else")
    assert at("2026-11-18T10:00:00Z").open_to == (ANY,)


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


def affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


@pytest.mark.parametrize(
    ("spec", "fields", "eligible"),
    [
        ({}, {}, True),
        ({}, {"spec": {"taints": [TAINT]}}, False),
        ({}, {"spec": {"taints": [{**TAINT, "effect": "PreferNoSchedule"}]}}, True),
        ({}, {"spec": {"taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}}, True),
        ({"tolerations": [{"operator": "Exists"}]}, {"spec": {"taints": [TAINT]}}, True),
        ({"tolerations": [{"key": "gpu", "value": "yes"}]}, {"spec": {"taints": [TAINT]}}, True),
        ({"tolerations": [{"key": "gpu", "value": "no"}]}, {"spec": {"taints": [TAINT]}}, False),
        ({"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]}, {"spec": {"taints": [TAINT]}}, False),
        ({"nodeSelector": {"pool": "a"}}, {"labels": {"pool": "a"}}, True),
        ({"nodeSelector": {"pool": "a"}}, {"labels": {"pool": "b"}}, False),
        (affinity({"key": "pool", "operator": "In", "values": ["a", "b"]}), {"labels": {"pool": "b"}}, True),
        (affinity({"key": "pool", "operator": "NotIn", "values": ["a"]}), {"labels": {"pool": "a"}}, False),
        (affinity({"key": "pool", "operator": "DoesNotExist"}), {"labels": {"pool": "a"}}, False),
        (affinity({"key": "gen", "operator": "Gt", "values": ["7"]}), {"labels": {"gen": "8"}}, True),
        (affinity({"key": "gen", "operator": "Lt", "values": ["x"]}), {"labels": {"gen": "8"}}, False),
        (affinity(), {}, False),
    ],
)  # fmt: skip
def test_nodes_that_a_pod_may_use(spec: dict[str, Any], fields: dict[str, Any], eligible: bool) -> None:
    assert is_eligible(node_demand([{"spec": spec}]), node(**fields)) is eligible


def test_bound_volume_restricts_the_nodes() -> None:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z1"]}]}]
    demand = node_demand([{"spec": {"volumes": volumes}}], {"data": terms}.get)
    assert demand.name != ANY
    assert is_eligible(demand, node(labels={"zone": "z1"}))
    assert not is_eligible(demand, node(labels={"zone": "z2"}))


def test_equal_demands_have_one_class() -> None:
    first = node_demand([{"spec": {"nodeSelector": {"a": "1", "b": "2"}, "tolerations": [{"key": "x"}, {"key": "y"}]}}])
    second = node_demand(
        [{"spec": {"tolerations": [{"key": "y"}, {"key": "x"}], "nodeSelector": {"b": "2", "a": "1"}}}]
    )
    assert first.name == second.name != ANY
    assert node_demand([{"spec": {}}]).name == ANY


json = st.recursive(
    st.none() | st.integers(0, 3) | st.text("ab", max_size=2),
    lambda children: st.lists(children, max_size=2) | st.dictionaries(st.text("xyz", min_size=1, max_size=1), children),
    max_leaves=8,
)
objects = st.dictionaries(st.text("xyz", min_size=1, max_size=1), json.filter(lambda value: value is not None))


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(item is None or _has_null(item) for item in value.values())
    return False


@given(objects.filter(lambda value: not _has_null(value)), objects.filter(lambda value: not _has_null(value)))
def test_merge_patch_changes_one_object_to_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    patch = merge_patch(old, new)
    assert merge(old, patch) == new
    assert (patch == {}) == (old == new)


def test_stamp_survives_its_annotations() -> None:
    places = (
        WorkerPlace(index=0, node="a", devices=("0", "1")),
        WorkerPlace(index=0, node="b", group="server"),
    )
    stamp = Stamp(store="s", epoch=3, job="j", number=5, generation=9, kind=OpKind.RESIZE, places=places, world=2)
    notes = stamp.annotations()
    assert stamp_of(notes) == stamp
    assert stamp_of({**notes, "levada.dev/epoch": "x"}) is None
    assert stamp_of({**notes, "levada.dev/grant": "[]"}) is None
    assert stamp_of({}) is None
