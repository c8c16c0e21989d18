"""Nodes, classes and foreign use, as the backend reports them."""

from __future__ import annotations

import asyncio
from typing import Any

from levada.backends.kubernetes.client import CLAIMS, NODES, PODS, VOLUMES
from levada.core import events as ev
from levada.core.cluster import Foreign
from tests.kubernetes.backend import jobs
from tests.kubernetes.backend.api_rules import Object
from tests.kubernetes.backend.scene import BackendScene, Watch, start, stop
from tests.kubernetes.backend.virtual_time import run


def change(scene: BackendScene, name: str, how: Any) -> None:
    scene.api.change(NODES, "", name, how)


def ready(status: str, since: str = "2026-11-18T10:00:00Z") -> Any:
    condition = {"type": "Ready", "status": status, "lastTransitionTime": since}
    return lambda body: body["status"].update(conditions=[condition])


def test_nodes_join_change_are_cordoned_and_leave() -> None:
    scene = BackendScene()

    async def story(watch: Watch) -> None:
        assert [node.name for node in watch.first.cluster.nodes] == ["n0", "n1", "n2"]
        scene.cluster.add_node("n3", 8, "v100", labels={"topology.kubernetes.io/zone": "z1"})
        await watch.until(lambda: watch.all(ev.NodesAdded))
        (node,) = watch.all(ev.NodesAdded)[0].nodes
        assert (node.name, len(node.devices), node.devices[0].type, node.labels) == ("n3", 8, "v100", {"zone": "z1"})
        assert (node.cpu, node.memory) == (32000, 128 * 1024)
        change(scene, "n0", lambda body: body["spec"].update(unschedulable=True))
        await watch.until(lambda: watch.all(ev.NodesChanged))
        assert watch.all(ev.NodesChanged)[0].nodes[0].cordoned
        scene.api.remove(NODES, "", "n1")
        await watch.until(lambda: watch.all(ev.NodesRemoved))
        assert watch.all(ev.NodesLost)[0].names == watch.all(ev.NodesRemoved)[0].names == ("n1",)

    scene.run(story)


def test_heartbeats_are_not_reported() -> None:
    scene = BackendScene()

    async def story(watch: Watch) -> None:
        for number in range(100):
            change(scene, "n0", lambda body, number=number: body["metadata"].update(annotations={"beat": str(number)}))
            await asyncio.sleep(1)
        assert watch.events == []

    scene.run(story)


def test_silent_node_is_lost_and_comes_back() -> None:
    scene = BackendScene()

    async def story(watch: Watch) -> None:
        change(scene, "n0", ready("Unknown"))
        await watch.until(lambda: watch.all(ev.NodesLost))
        assert [node.name for node in (await watch.backend.cluster()).nodes] == ["n1", "n2"]
        change(scene, "n0", ready("True"))
        await watch.until(lambda: watch.all(ev.NodesAdded))

    scene.run(story)


def test_node_in_trouble_is_cordoned_before_it_is_lost() -> None:
    scene = BackendScene()

    async def story(watch: Watch) -> None:
        change(scene, "n0", ready("False", "2999-01-01T00:00:00Z"))
        await watch.until(lambda: watch.all(ev.NodesChanged))
        assert watch.all(ev.NodesChanged)[0].nodes[0].cordoned
        await asyncio.sleep(30)
        assert not watch.all(ev.NodesLost)
        change(scene, "n0", ready("False", "2020-01-01T00:00:00Z"))
        await watch.until(lambda: watch.all(ev.NodesLost))

    scene.run(story)


def test_lower_gpu_count_drops_free_devices_and_waits_for_used_ones() -> None:
    scene = BackendScene()
    scene.adopt(jobs.batch_job())

    def gpus(count: int) -> Any:
        return lambda body: body["status"]["allocatable"].update({"nvidia.com/gpu": str(count)})

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n0"), scene.launch())
        await watch.for_(ev.Running, 1)
        change(scene, "n0", gpus(3))
        await watch.until(lambda: watch.all(ev.NodesChanged))
        assert [device.id for device in watch.all(ev.NodesChanged)[-1].nodes[0].devices] == ["0", "1", "2"]
        change(scene, "n0", gpus(1))
        await watch.until(lambda: len(watch.all(ev.NodesChanged)) == 2)
        assert [device.id for device in watch.all(ev.NodesChanged)[-1].nodes[0].devices] == ["0", "1"]
        await asyncio.sleep(60)
        assert scene.nodes() == ["n0", "n0"]
        await watch.backend.apply(stop(2), None)
        await watch.for_(ev.Released, 2)
        await watch.until(lambda: len(watch.all(ev.NodesChanged)) == 3)
        assert [device.id for device in watch.all(ev.NodesChanged)[-1].nodes[0].devices] == ["0"]

    scene.run(story)


def test_foreign_pods_are_one_entry_per_node_and_changes_are_coalesced() -> None:
    scene = BackendScene()
    scene.cluster.add_pod("a", "n0", 1)
    scene.cluster.add_pod("b", "n0", 2)

    async def story(watch: Watch) -> None:
        (first,) = watch.all(ev.ForeignAppeared)
        assert [(each.id, each.node, each.milli) for each in first.foreign] == [("node/n0", "n0", 3000)]
        for number in range(20):
            scene.cluster.add_pod(f"c{number}", "n1", 0, labels={"x": "y"})
        scene.cluster.add_pod("d", "n1", 1)
        scene.api.remove(PODS, "others", "a", 0)
        await asyncio.sleep(1)
        _, second = watch.all(ev.ForeignAppeared)
        assert [(each.node, each.milli) for each in second.foreign] == [("n0", 2000), ("n1", 1000)]
        scene.api.remove(PODS, "others", "b", 0)
        await watch.until(lambda: watch.all(ev.ForeignGone))
        assert watch.all(ev.ForeignGone)[0].ids == ("node/n0",)

    scene.run(story)


def test_foreign_use_that_ended_while_no_server_ran_is_reported_gone() -> None:
    scene = BackendScene()
    scene.cluster.add_pod("a", "n1", 1)

    async def story() -> None:
        known = Foreign(id="node/n1", node="n1", milli=1000)
        watch = await scene.open(1, (Foreign(id="node/n0", node="n0", milli=2000), known))
        assert watch.all(ev.ForeignGone)[0].ids == ("node/n0",)
        assert watch.all(ev.ForeignAppeared) == []
        await watch.close()

    run(story())


def test_pods_of_granted_jobs_are_not_foreign() -> None:
    scene = BackendScene()
    scene.adopt(jobs.mpijob())

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        await asyncio.sleep(5)
        assert watch.all(ev.ForeignAppeared) == []

    scene.run(story)


def test_class_of_a_job_opens_its_nodes_before_it_arrives() -> None:
    scene = BackendScene()
    scene.cluster.add_node("tainted", taints=[{"key": "team", "value": "nlp", "effect": "NoSchedule"}])

    def tolerating() -> Object:
        body = jobs.batch_job()
        body["spec"]["template"]["spec"]["tolerations"] = [{"key": "team", "operator": "Exists"}]
        return body

    async def story(watch: Watch) -> None:
        nodes = {node.name: node.open_to for node in watch.first.cluster.nodes}
        assert nodes == {"n0": ("any",), "n1": ("any",), "n2": ("any",), "tainted": ()}
        scene.adopt(tolerating())
        await watch.until(lambda: watch.arrivals)
        name = watch.arrivals[0].node_class
        changed = {node.name: node.open_to for event in watch.all(ev.NodesChanged) for node in event.nodes}
        assert changed == {"n0": ("any", name), "n1": ("any", name), "n2": ("any", name), "tainted": (name,)}
        assert watch.backend.node_class(tolerating()) == name
        assert watch.backend.node_class(jobs.batch_job()) == "any"

    scene.run(story)


def test_bound_volume_restricts_the_class_of_a_job() -> None:
    scene = BackendScene()
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]}]
    scene.api.add(
        VOLUMES, "", {"metadata": {"name": "pv"}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}
    )
    scene.api.add(CLAIMS, "ns", {"metadata": {"name": "data"}, "spec": {"volumeName": "pv"}})
    body = jobs.batch_job()
    body["spec"]["template"]["spec"]["volumes"] = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
    scene.adopt(body)

    async def story(watch: Watch) -> None:
        (arrival,) = watch.arrivals
        open_nodes = [node.name for node in watch.first.cluster.nodes if arrival.node_class in (node.open_to or ())]
        assert open_nodes == ["n1"]

    scene.run(story)
