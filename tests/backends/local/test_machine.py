"""A machine with GPUs, by a driver that the test plays: what others do with them, GPUs that fall ill, parts of them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from levada.backends.local import machine
from levada.backends.local.backend import LocalBackend
from levada.backends.local.devices import Nvml, nodes_here
from levada.core import events as ev
from levada.core.plan import OpKind
from tests.backends.contract import op, place
from tests.backends.local.test_backend import LocalTest
from tests.backends.local.test_devices import Driver


class TestMachine(LocalTest):
    """One real node, `box`."""

    @pytest.fixture(autouse=True)
    def _driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "_LOOK_S", 0.02)
        self.driver = Driver("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB")

    def make(self) -> LocalBackend:
        nvml = Nvml(self.driver)
        nodes, _ = nodes_here(nvml=nvml, name="box")
        return LocalBackend(self.home, nodes, nvml=nvml)

    def test_what_others_compute_comes_and_goes(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                self.driver.processes = {1: [(os.getpid(), 100)]}
                came = await watch.for_(ev.ForeignAppeared)
                (one,) = came.foreign
                assert (one.node, one.devices, one.milli, one.gpu_memory) == ("box", ("GPU-1",), 1000, 100)
                self.driver.processes = {}
                gone = await watch.for_(ev.ForeignGone)
                assert gone.ids == (one.id,)

        self.run(story)

    def test_our_own_workers_are_not_others(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                await watch.backend.apply(op(OpKind.START, 1, place(0, "box", "GPU-0")), self.launch())
                await watch.for_(ev.Running, 1)
                await self.up(watch, 1, 1)
                ours = watch.backend.workers("toy-1")[0].pid
                assert ours is not None
                self.driver.processes = {0: [(ours, 10)], 1: [(os.getpid(), 20)]}
                came = await watch.for_(ev.ForeignAppeared)
                assert [one.devices for one in came.foreign] == [("GPU-1",)]

        self.run(story)

    def test_a_gpu_that_is_not_seen_any_more_is_ill(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                self.driver.broken = (0,)
                changed = await watch.for_(ev.NodesChanged)
                (node,) = changed.nodes
                assert [(one.id, one.healthy) for one in node.devices] == [("GPU-0", False), ("GPU-1", True)]
                assert (await watch.backend.cluster()).nodes == (node,)

        self.run(story)

    def test_a_look_that_fails_is_not_the_last(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                # As a library does that was replaced under the feet of those who use it.
                names, self.driver.names = self.driver.names, None  # type: ignore[assignment]
                await asyncio.sleep(0.1)
                self.driver.names = names
                self.driver.processes = {1: [(os.getpid(), 100)]}
                await watch.for_(ev.ForeignAppeared)

        self.run(story)

    def test_a_part_of_a_gpu_is_given_out_by_the_daemon(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tools, told = tmp_path / "tools", tmp_path / "told"
        tools.mkdir()
        program = tools / "nvidia-cuda-mps-control"
        program.write_text(f'#!/bin/sh\necho "$@" "$CUDA_MPS_PIPE_DIRECTORY" >> {told}\n')
        program.chmod(0o700)
        monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        code = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('CUDA')}))"

        async def story() -> None:
            async with self.opened() as watch:
                assert told.read_text() == f"-d {self.home}/mps\n"
                start = op(OpKind.START, 1, place(0, "box", "GPU-1", milli=250))
                await watch.backend.apply(start, self.launch(command=(sys.executable, "-c", code), gpu_memory=3072))
                await watch.for_(ev.JobsFinished)
                (line,) = [line.text async for line in watch.backend.logs("toy-1")]
                assert json.loads(line) == {
                    "CUDA_VISIBLE_DEVICES": "GPU-1",
                    "CUDA_MPS_PIPE_DIRECTORY": f"{self.home}/mps",
                    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
                    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M",
                }

        self.run(story)
