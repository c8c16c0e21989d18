"""GPU monitor with a fake driver: foreign use, failed GPUs, fractions."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from levada.backends.local import gpu_monitor
from levada.backends.local.backend import LocalBackend
from levada.backends.local.gpus import Nvml, nodes_here
from levada.core import events as ev
from levada.core.plan import OpKind
from tests.backends.contract import op, place
from tests.backends.local.test_backend import LocalTest
from tests.backends.local.test_gpus import Driver


class TestMachine(LocalTest):
    """One real node, `box`."""

    @pytest.fixture(autouse=True)
    def _driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gpu_monitor, "_LOOK_S", 0.02)
        self.driver = Driver("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB")

    def make(self) -> LocalBackend:
        nvml = Nvml(self.driver)
        nodes, _ = nodes_here(nvml=nvml, name="box")
        return LocalBackend(self.home, nodes, nvml=nvml)

    async def test_foreign_processes_appear_and_disappear(self) -> None:
        async with self.opened() as watch:
            self.driver.processes = {1: [(os.getpid(), 100)]}
            came = await watch.wait_event(ev.ForeignAppeared)
            (one,) = came.foreign
            assert (one.node, one.devices, one.milli, one.gpu_memory) == ("box", ("GPU-1",), 1000, 100)
            self.driver.processes = {}
            gone = await watch.wait_event(ev.ForeignGone)
            assert gone.ids == (one.id,)

    async def test_own_workers_are_not_foreign(self) -> None:
        async with self.opened() as watch:
            await watch.backend.apply(op(OpKind.START, 1, place(0, "box", "GPU-0")), self.launch())
            await watch.wait_event(ev.Running, 1)
            await self.wait_scripts(watch, 1, 1)
            ours = watch.backend.workers("toy-1")[0].pid
            assert ours is not None
            self.driver.processes = {0: [(ours, 10)], 1: [(os.getpid(), 20)]}
            came = await watch.wait_event(ev.ForeignAppeared)
            assert [one.devices for one in came.foreign] == [("GPU-1",)]

    async def test_a_vanished_gpu_is_unhealthy(self) -> None:
        async with self.opened() as watch:
            self.driver.broken = (0,)
            changed = await watch.wait_event(ev.NodesChanged)
            (node,) = changed.nodes
            assert [(one.id, one.healthy) for one in node.devices] == [("GPU-0", False), ("GPU-1", True)]
            assert (await watch.backend.cluster()).nodes == (node,)

    async def test_polling_continues_after_a_failure(self) -> None:
        async with self.opened() as watch:
            # Like a library that was replaced while in use.
            names, self.driver.names = self.driver.names, None  # type: ignore[assignment]
            await asyncio.sleep(0.1)
            self.driver.names = names
            self.driver.processes = {1: [(os.getpid(), 100)]}
            appeared = await watch.wait_event(ev.ForeignAppeared)
            assert len(appeared.foreign) == 1

    async def test_gpu_fractions_use_the_mps_daemon(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tools, calls = tmp_path / "tools", tmp_path / "calls"
        tools.mkdir()
        program = tools / "nvidia-cuda-mps-control"
        program.write_text(f'#!/bin/sh\necho "$@" "$CUDA_MPS_PIPE_DIRECTORY" >> {calls}\n')
        program.chmod(0o700)
        monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        code = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('CUDA')}))"

        async with self.opened() as watch:
            assert calls.read_text() == f"-d {self.home}/mps\n"
            start = op(OpKind.START, 1, place(0, "box", "GPU-1", milli=250))
            await watch.backend.apply(start, self.launch(command=(sys.executable, "-c", code), gpu_memory=3072))
            await watch.wait_event(ev.JobsFinished)
            (line,) = [line.text async for line in watch.backend.logs("toy-1")]
            assert json.loads(line) == {
                "CUDA_VISIBLE_DEVICES": "GPU-1",
                "CUDA_MPS_PIPE_DIRECTORY": f"{self.home}/mps",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M",
            }
