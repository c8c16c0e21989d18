"""The local backend with real processes: all that any backend must do, and what only this one does."""

from __future__ import annotations

import asyncio
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
from levada.backends.local.devices import pretend_nodes
from levada.backends.local.hands import HandsOf
from levada.backends.local.messages import ENDED, News
from levada.backends.local.record import Record, load
from levada.core.plan import OpKind
from tests.backends.contract import Contract, Harness, op, place
from tests.patience import WAIT_S


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

    def test_workers_are_not_replaced_by_a_backend_that_has_not_seen_all_of_them(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While a restart is under way the server is replaced, and one of two workers ends while the next one opens."""
        ended = threading.Event()

        class Noticing(LocalBackend):
            def hear(self, news: News) -> None:
                super().hear(news)
                if any(seen.state == ENDED for seen in news.sightings):
                    ended.set()

        def slow_mps(*_: object) -> str:
            self.say("fail-0", "75")
            assert ended.wait(WAIT_S)
            return ""

        async def story() -> None:
            both = place(0, "node-0", "0"), place(1, "node-0", "1")
            self.say("stubborn")
            async with self.opened(1, leave=True) as first:
                await first.backend.apply(op(OpKind.START, 1, *both), self.launch())
                await self.up(first, 1, 2)
                await first.until(lambda: first.backend.gangs["toy-1"].running == 2)
                await first.backend.apply(op(OpKind.RESIZE, 2, both[0]), self.launch())
            monkeypatch.setattr(backend_module, "start_mps", slow_mps)
            monkeypatch.setattr(self, "make", lambda: Noticing(self.home, pretend_nodes([{"gpu": 4}, {"gpu": 4}])))
            async with self.opened(2) as second:
                gang = second.backend.gangs["toy-1"]
                assert [gang.record.world, len(gang.record.members)] == [1, 2], "the first two have not both left"
                self.say("fail-1", "75")
                await self.up(second, 2, 1)

        self.run(story)


def _is_below(pid: int, folder: Path) -> bool:
    return procfs.environment(pid).get("LEVADA_STATE_DIR", "").startswith(str(folder))


def test_the_number_of_a_world_is_on_disk_before_anything_starts(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path, pretend_nodes([{"gpu": 1}]))
    record = Record(job="toy", number=7, generation=2, last_world=4, told="JobsFailed")
    asyncio.run(HandsOf(backend, record).reserve(3, 5))
    assert load(tmp_path / "jobs" / "toy") == msgspec.structs.replace(record, last_world=5)
    assert record.last_world == 4, "nothing has happened yet but that it is known"
