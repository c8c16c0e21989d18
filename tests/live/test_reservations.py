"""Reservations: GPUs are withheld from jobs until the end time, also across a restart."""

from __future__ import annotations

from pathlib import Path

from tests.live.fake_backend import FakeMachines
from tests.live.live_server import LiveServer, document, live_server


async def _reserve_all(up: LiveServer, seconds: float) -> None:
    gpus = sum(len(node["devices"]) for node in up.service.cluster.nodes())
    await up.service.cluster.reserve(node=None, gpu_type=None, gpus=gpus, seconds=seconds, user="ann")


async def test_a_reservation_withholds_gpus_until_its_end(tmp_path: Path) -> None:
    async with live_server(f"sqlite:///{tmp_path}/levada.db") as up:
        await _reserve_all(up, 3.0)
        (view,) = await up.service.submissions.submit([document()], user="ben", key=None)
        await up.settle()
        assert up.phase(view["id"]) == "Pending"
        await up.until(lambda: up.phase(view["id"]) == "Running")
        assert not up.live.loop.engine.query.foreign


async def test_a_reservation_that_expires_during_downtime_is_released(tmp_path: Path) -> None:
    machines, url = FakeMachines(), f"sqlite:///{tmp_path}/levada.db"
    async with live_server(url, machines) as up:
        await _reserve_all(up, 0.01)
        await up.kill()
    async with live_server(url, machines) as up:
        (view,) = await up.service.submissions.submit([document()], user="ben", key=None)
        await up.until(lambda: up.phase(view["id"]) == "Running")
        assert not up.live.loop.engine.query.foreign
