"""What a supervisor must bear: a machine without file handles, watches that are lost, and files that are many."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from levada.backends.local import supervisor
from levada.backends.local.backend import LocalBackend
from levada.core import events as ev
from levada.core.plan import OpKind
from levada.errors import LevadaError
from tests.backends.contract import WAIT_S, Watch, op, place
from tests.backends.local.test_backend import LocalTest


def lacks_handles(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """The machine has no handle left for a process, so often; the list fills with whom it was asked for."""
    asked: list[int] = []
    real = os.pidfd_open

    def open_or_not(pid: int, flags: int = 0) -> int:
        asked.append(pid)
        if len(asked) <= times:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(pid, flags)

    monkeypatch.setattr(os, "pidfd_open", open_or_not)
    return asked


def supervisor_of(watch: Watch) -> supervisor.Supervisor:
    """The one on this machine."""
    assert isinstance(watch.backend, LocalBackend)
    return watch.backend._supervisor


class TestSupervisor(LocalTest):
    """One worker is enough."""

    @pytest.fixture(autouse=True)
    def _in_a_hurry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(supervisor, "_AGAIN_S", 0.02)
        monkeypatch.setattr(supervisor, "_DOUBT_EVERY", 10**9)
        monkeypatch.setattr(supervisor, "_POLL_S", 0.05)

    def test_the_end_of_a_worker_is_seen_though_handles_ran_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                asked = lacks_handles(monkeypatch, 3)
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                await self.up(watch, 1, 1)
                self.say("go", "0")
                await watch.for_(ev.JobsFinished)
                assert len(asked) > 3

        self.run(story)

    def test_the_end_of_a_worker_that_was_found_is_seen_though_handles_ran_out(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def story() -> None:
            async with self.opened(1, leave=True) as watch:
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                await watch.for_(ev.Running, 1)
                await self.up(watch, 1, 1)
            asked = lacks_handles(monkeypatch, 3)
            async with self.opened(2) as watch:
                await watch.until(lambda: len(asked) > 3, "a look that succeeds")
                self.say("go", "0")
                await watch.for_(ev.JobsFinished)

        self.run(story)

    def test_a_watch_that_was_lost_is_taken_up_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(supervisor, "_DOUBT_EVERY", 2)

        async def story() -> None:
            async with self.opened() as watch:
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                await watch.for_(ev.Running, 1)
                await self.up(watch, 1, 1)
                lost = supervisor_of(watch).jobs["toy-1"].workers["g1-0"].task
                assert lost is not None
                lost.cancel()
                self.say("go", "0")
                await watch.for_(ev.JobsFinished)

        self.run(story)

    def test_what_nobody_understands_makes_deaf_for_nothing_else(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                backend = watch.backend
                assert isinstance(backend, LocalBackend)
                # As Levada's own mistakes are: a job without a gang is to be looked after, and one has no number.
                backend.hurry("nobody")
                backend._progress = {None: 1.0}  # type: ignore[dict-item]
                await backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                await watch.for_(ev.Running, 1)
                backend._progress = {}
                self.say("go", "0")
                await watch.for_(ev.JobsFinished)

        self.run(story)

    @pytest.mark.parametrize("which", ["the backend", "the supervisor"])
    def test_a_backend_that_cannot_go_on_says_so_to_who_listens(self, which: str) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                backend = watch.backend
                assert isinstance(backend, LocalBackend)
                broken = backend._tasks[-1] if which == "the backend" else supervisor_of(watch)._poller
                assert broken is not None
                broken.cancel()
                with pytest.raises(LevadaError, match="start the server again"):
                    await asyncio.wait_for(asyncio.shield(watch._task), WAIT_S)
                with pytest.raises(LevadaError, match="start the server again"):
                    await anext(backend.reports())
                watch._task = asyncio.create_task(asyncio.sleep(0))

        self.run(story)
