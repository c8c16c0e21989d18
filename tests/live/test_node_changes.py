"""Node changes while no server runs are found by the next start."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from levada.backends.local import gpu_monitor
from levada.backends.local.backend import LocalBackend
from levada.backends.local.gpus import Nvml, nodes_here
from levada.core import events as ev
from levada.core.cluster import Cluster
from levada.live.live import Live
from levada.live.service import Service
from levada.live.store import Store
from tests.backends.local.test_gpus import Driver
from tests.engine.engine_state import state_of
from tests.live.fake_backend import FakeMachines
from tests.live.live_server import LiveServer, live_server
from tests.timeouts import WAIT_S


@pytest.mark.parametrize("change", [{"cpu": 4000}, {"memory": 1024}, {"labels": {"rack": "r7"}}])
async def test_a_changed_node_is_detected_at_start(sqlite_url: str, change: dict[str, object]) -> None:
    machines = FakeMachines()
    async with live_server(sqlite_url, machines) as up:
        await up.service.cluster.cordon("n0", cordoned=True)
    before, other = machines.cluster.nodes
    machines.cluster = Cluster(nodes=(msgspec.structs.replace(before, **change), other))
    async with live_server(sqlite_url, machines) as up:
        inventory = state_of(up.live.loop.engine).world.inventory
        known = inventory.node_values[0]
        assert {name: getattr(known, name) for name in change} == change
        assert inventory.cordoned[0], "the cordon of the user stays"


async def test_cordons_of_the_backend_and_of_the_operator_are_independent(sqlite_url: str) -> None:
    machines = FakeMachines()

    def phases(up: LiveServer) -> list[str]:
        return [node["phase"] for node in up.service.cluster.nodes()]

    async def report(up: LiveServer, *, cordoned: bool) -> None:
        nodes = tuple(msgspec.structs.replace(node, cordoned=cordoned) for node in machines.cluster.nodes)
        machines.cluster = Cluster(nodes=nodes)
        await up.live.loop.apply(ev.NodesChanged(at=0.0, nodes=nodes))

    async with live_server(sqlite_url, machines) as up:
        await up.service.cluster.cordon("n0", cordoned=True)
        await report(up, cordoned=True)
        await up.service.cluster.cordon("n0", cordoned=False)
        assert phases(up) == ["Cordoned", "Cordoned"], "the backend's cordon stays"
        await up.service.cluster.cordon("n0", cordoned=True)
    async with live_server(sqlite_url, machines) as up:
        assert phases(up) == ["Cordoned", "Cordoned"]
        await report(up, cordoned=False)
        assert phases(up) == ["Cordoned", "Ready"], "the operator's cordon stays"
    machines.cluster = Cluster(
        nodes=tuple(msgspec.structs.replace(node, cordoned=True) for node in machines.cluster.nodes)
    )
    async with live_server(sqlite_url, machines) as up:
        assert phases(up) == ["Cordoned", "Cordoned"], "the backend cordoned n1 while no server ran"


async def test_foreign_use_that_ended_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_monitor, "_LOOK_S", 0.02)
    driver = Driver("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB")

    async def assert_used_gpus(gpus: int, *, reserve: bool = False) -> None:
        nvml = Nvml(driver)
        nodes, _ = nodes_here(nvml=nvml, name="box")
        store = await Store.open(f"sqlite:///{tmp_path}/levada.db")
        live = Live(store, LocalBackend(tmp_path / "home", nodes, nvml=nvml))
        await live.open()
        task = asyncio.create_task(live.run())
        foreign = live.loop.engine.query.foreign
        async with asyncio.timeout(WAIT_S):
            while len(foreign) != gpus:
                await asyncio.sleep(0.005)
        assert len(foreign) == gpus
        if reserve:
            await Service(live).cluster.reserve(node="box", gpu_type=None, gpus=1, seconds=3600.0, user="ann")
        live.stop()
        await task
        await live.close()

    driver.processes = {1: [(os.getpid(), 100)]}
    await assert_used_gpus(1, reserve=True)
    driver.processes = {}
    await assert_used_gpus(1)  # the reservation stays
