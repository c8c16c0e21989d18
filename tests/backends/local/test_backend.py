"""The local backend with real processes: all that any backend must do, and what only this one does."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from levada.backends.local import processes, procfs
from levada.backends.local.backend import LocalBackend
from levada.backends.local.devices import pretend_nodes
from levada.backends.local.hands import HandsOf
from levada.backends.local.record import Record, load
from tests.backends.contract import Contract, Harness


class LocalTest(Harness):
    """A local backend with pretend nodes; afterwards nothing of it is left running."""

    @pytest.fixture(autouse=True)
    def _no_orphans(self, tmp_path: Path):  # type: ignore[no-untyped-def]
        yield
        left = [one.pid for one in procfs.all_processes() if _is_below(one.pid, tmp_path) and not one.is_zombie]
        for folder in tmp_path.glob("*/jobs/*/workers/*"):
            processes.kill(folder)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert left == []

    def make(self) -> LocalBackend:
        return LocalBackend(self.home, pretend_nodes([{"gpu": 4}, {"gpu": 4}]), server_url="http://127.0.0.1:1")

    async def lose(self, job: str, index: int) -> None:
        """The guard is killed, and its worker with it."""
        for folder in self.home.parent.glob(f"*/jobs/{job}/workers/*-{index}"):
            processes.kill(folder)


class TestLocal(LocalTest, Contract):
    """Everything of the contract, on this machine."""


def _is_below(pid: int, folder: Path) -> bool:
    return procfs.environment(pid).get("LEVADA_STATE_DIR", "").startswith(str(folder))


def test_the_number_of_a_world_is_on_disk_before_anything_starts(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path, pretend_nodes([{"gpu": 1}]))
    record = Record(job="toy", number=7, generation=2, last_world=4, told="JobsFailed")
    asyncio.run(HandsOf(backend, record).reserve(3, 5))
    assert load(tmp_path / "jobs" / "toy") == msgspec.structs.replace(record, last_world=5)
    assert record.last_world == 4, "nothing has happened yet but that it is known"
