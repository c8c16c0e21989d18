"""Machines that change while no server watches: the next one sees it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from levada.backends.local import machine
from levada.backends.local.backend import LocalBackend
from levada.backends.local.devices import Nvml, nodes_here
from levada.core.cluster import Cluster
from levada.live.live import Live
from levada.live.service import Service
from levada.live.store import Store
from tests.backends.local.test_devices import Driver
from tests.engine.inspect import state_of
from tests.live.house import house
from tests.live.rehearsal import Stage
from tests.patience import WAIT_S


@pytest.mark.parametrize("change", [{"cpu": 4000}, {"memory": 1024}, {"labels": {"rack": "r7"}}])
def test_a_node_that_is_different_is_noticed(sqlite_url: str, change: dict[str, object]) -> None:
    async def story() -> None:
        stage = Stage()
        async with house(sqlite_url, stage) as up:
            await up.service.cordon("n0", cordoned=True)
        before, other = stage.cluster.nodes
        stage.cluster = Cluster(nodes=(msgspec.structs.replace(before, **change), other))
        async with house(sqlite_url, stage) as up:
            known = state_of(up.live.loop.engine).world.inventory.node_values[0]
            assert {name: getattr(known, name) for name in change} == change
            assert known.cordoned, "what its user said of it stays"

    asyncio.run(story())


def test_what_others_used_and_do_not_any_more_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_LOOK_S", 0.02)
    driver = Driver("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB")

    async def up_until_used(gpus: int, *, reserve: bool = False) -> None:
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
        if reserve:
            await Service(live).reserve(node="box", gpu_type=None, gpus=1, seconds=3600.0, user="ann")
        live.stop()
        await task
        await live.close()

    driver.processes = {1: [(os.getpid(), 100)]}
    asyncio.run(up_until_used(1, reserve=True))
    driver.processes = {}
    asyncio.run(up_until_used(1))  # the reservation stays
