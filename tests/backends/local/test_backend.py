"""Local backend with real processes: the backend contract and its own behaviour."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from levada.backends.local import backend as backend_module
from levada.backends.local import processes, procfs
from levada.backends.local.backend import LocalBackend
from levada.backends.local.gpus import pretend_nodes
from levada.backends.local.job_actions import MachineActions
from levada.backends.local.job_state import ControllerState, load
from levada.backends.local.supervisor_protocol import ENDED, StatusUpdate
from levada.core.plan import OpKind
from tests.backends.contract import BackendContract, BackendHarness, op, place
from tests.timeouts import WAIT_S


class LocalTest(BackendHarness):
    """A local backend with pretend nodes; leaves no process running."""

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
        """Kill the reaper and its worker."""
        for folder in self.home.parent.glob(f"*/jobs/{job}/workers/*-{index}"):
            processes.kill(folder)


class TestLocal(LocalTest, BackendContract):
    """The backend contract on this machine."""

    async def test_workers_are_not_replaced_before_all_are_observed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The server is replaced during a restart, and one of two workers ends while the next server opens."""
        ended = threading.Event()

        class Noticing(LocalBackend):
            def observe(self, news: StatusUpdate) -> None:
                super().observe(news)
                if any(seen.state == ENDED for seen in news.workers):
                    ended.set()

        def slow_mps(*_: object) -> str:
            self.write_control("fail-0", "75")
            assert ended.wait(WAIT_S)
            return ""

        both = place(0, "node-0", "0"), place(1, "node-0", "1")
        self.write_control("stubborn")
        async with self.opened(1, leave=True) as first:
            await first.backend.apply(op(OpKind.START, 1, *both), self.launch())
            await self.wait_scripts(first, 1, 2)
            await first.wait_until(lambda: first.backend.controllers["toy-1"].workers.running == 2)
            await first.backend.apply(op(OpKind.RESIZE, 2, both[0]), self.launch())
        monkeypatch.setattr(backend_module, "start_mps", slow_mps)
        monkeypatch.setattr(self, "make", lambda: Noticing(self.home, pretend_nodes([{"gpu": 4}, {"gpu": 4}])))
        async with self.opened(2) as second:
            gang = second.backend.controllers["toy-1"]
            assert [gang.record.world, len(gang.record.members)] == [1, 2], "the first two have not both left"
            self.write_control("fail-1", "75")
            await self.wait_scripts(second, 2, 1)


def _is_below(pid: int, folder: Path) -> bool:
    return procfs.environment(pid).get("LEVADA_STATE_DIR", "").startswith(str(folder))


async def test_the_world_number_is_on_disk_before_a_start(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path, pretend_nodes([{"gpu": 1}]))
    record = ControllerState(job="toy", number=7, generation=2, last_world=4, told="JobsFailed")
    await MachineActions(backend, record).reserve(3, 5)
    assert load(tmp_path / "jobs" / "toy") == msgspec.structs.replace(record, last_world=5)
    assert record.last_world == 4, "nothing has happened yet but that it is known"
