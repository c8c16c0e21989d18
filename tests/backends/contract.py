"""What any backend must do, with real workers. A backend's own test inherits `Contract` and says how to make one."""

from __future__ import annotations

import asyncio
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from levada.backends.protocol import Backend, Launch, LogLine, Note, Observation
from levada.core import events as ev
from levada.core.grant import Grant, WorkerPlace
from levada.core.plan import Op, OpKind
from levada.errors import Refused
from tests.patience import WAIT_S

#: A script that knows nothing of Levada. It does what the files in its folder say: `go` holds the exit code of all,
#: `fail-N` that of rank N alone. Asked to leave it saves.
SCRIPT = """
import os, pathlib, signal, sys, time
here, saves = pathlib.Path(sys.argv[1]), pathlib.Path(os.environ['LEVADA_CHECKPOINT_DIR'])
rank = os.environ['LEVADA_RANK']
def leave(*_):
    (saves / f'model-{rank}').write_text('saved')
    print('saved', flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, signal.SIG_IGN if (here / 'stubborn').exists() else leave)
print('up', rank, os.environ['LEVADA_WORLD_SIZE'], os.environ['LEVADA_GENERATION'], flush=True)
(here / f"up-{os.environ['LEVADA_GENERATION']}-{rank}").write_text(str(os.getpid()))
while True:
    for name in ('go', f'fail-{rank}'):
        if (here / name).exists():
            code = int((here / name).read_text() or 0)
            if name != 'go':
                (here / name).unlink()
            print('bye', flush=True)
            os._exit(code)
    time.sleep(0.005)
"""


class Watch:
    """A backend and all that it has told so far."""

    def __init__(self, backend: Backend, first: Observation) -> None:
        self.backend, self.first = backend, first
        self.events: list[ev.Event] = list(first.report.events)
        self.notes: list[Note] = list(first.report.notes)
        self._task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for report in self.backend.reports():
            self.events += report.events
            self.notes += report.notes

    def all(self, kind: type[Any], generation: int | None = None) -> list[Any]:
        """Events of one kind."""
        found = [event for event in self.events if isinstance(event, kind)]
        return [event for event in found if generation is None or event.generation.tolist() == [generation]]

    async def for_(self, kind: type[Any], generation: int | None = None, count: int = 1) -> Any:
        """Waits for an event."""
        await self.until(lambda: len(self.all(kind, generation)) >= count, f"{kind.__name__} of {generation}")
        return self.all(kind, generation)[-1]

    async def until(self, true: Callable[[], object], what: str = "it") -> None:
        """Waits for something."""
        end = time.monotonic() + WAIT_S
        while not true():
            assert time.monotonic() < end, f"{what} never came; told: {self.events} {self.notes}"
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        """Stops listening."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


def place(index: int, node: str, *devices: str, **fields: Any) -> WorkerPlace:
    """Where a worker is to be."""
    return WorkerPlace(index=index, node=node, devices=devices, **fields)


def op(kind: int, generation: int, *places: WorkerPlace, job: str = "toy-1", number: int = 7, batch: int = 0) -> Op:
    """An operation on a job."""
    grant = Grant(gpu_type="gpu", workers=len(places), places=places) if places else None
    return Op(job=job, number=number, kind=kind, generation=generation, grant=grant, batch=batch)


class Harness(ABC):
    """How tests make and use a backend. Nodes `node-0` and `node-1` have four GPUs each, "0" to "3"."""

    @pytest.fixture(autouse=True)
    def _folders(self, tmp_path: Path) -> None:
        self.home, self.here = tmp_path / "home", tmp_path / "here"
        self.here.mkdir()

    @abstractmethod
    def make(self) -> Backend:
        """A backend whose state is in `self.home`; a second one takes over from the first."""

    @abstractmethod
    async def lose(self, job: str, index: int) -> None:
        """Lets a worker vanish without a word."""

    @asynccontextmanager
    async def opened(self, epoch: int = 1, *, leave: bool = False) -> AsyncIterator[Watch]:
        """A backend at work; afterwards nothing of it runs, unless it is left to the next one."""
        backend = self.make()
        watch = Watch(backend, await backend.open(epoch))
        try:
            yield watch
            if not leave:
                await self.stop_all(watch)
        finally:
            await watch.end()
            await backend.close()

    async def stop_all(self, watch: Watch) -> None:
        """Nothing is left running."""
        (self.here / "go").touch()
        for job, seen in (await watch.backend.running()).items():
            stop = op(OpKind.STOP, seen.generation + 1000, job=job, number=seen.number)
            await watch.backend.apply(stop, None)
            await watch.until(lambda: self._has_ended(watch, stop), f"the end of {job}")  # noqa: B023

    @staticmethod
    def _has_ended(watch: Watch, stop: Op) -> bool:
        over = [*watch.all(ev.Released, stop.generation), *watch.all(ev.JobsFinished)]
        return any(stop.number in event.number.tolist() for event in over)

    def run(self, story: Callable[[], Awaitable[None]]) -> None:
        """Runs a test's coroutine."""

        async def limited() -> None:
            async with asyncio.timeout(3 * WAIT_S):
                await story()

        asyncio.run(limited())

    def launch(self, **fields: Any) -> Launch:
        """The script."""
        (self.here / "script.py").write_text(SCRIPT)
        command = (sys.executable, "-u", "-S", "-E", str(self.here / "script.py"), str(self.here))
        return Launch(**{"command": command, "workdir": str(self.here), "grace_s": 20.0, "max_workers": 8, **fields})

    def say(self, name: str, text: str = "") -> None:
        """Tells the script something, all at once."""
        (self.here / f"{name}.new").write_text(text)
        (self.here / f"{name}.new").rename(self.here / name)

    async def up(self, watch: Watch, generation: int, workers: int) -> None:
        """Waits until so many scripts say that they are up."""
        pattern = f"up-{generation}-*"
        await watch.until(lambda: len(list(self.here.glob(pattern))) == workers, f"{workers} scripts of {generation}")


class Contract(Harness):
    """All that a backend must do."""

    # --- start and end ----------------------------------------------------------------------------------------------

    def test_a_job_starts_runs_and_is_done(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                backend = watch.backend
                start = op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-1", "2"))
                await backend.apply(start, self.launch())
                await watch.for_(ev.Running, 1)
                await self.up(watch, 1, 2)
                assert {
                    job: (seen.number, seen.generation, seen.running) for job, seen in (await backend.running()).items()
                } == {"toy-1": (7, 1, 2)}
                seen = backend.workers("toy-1")
                assert [(one.index, one.node, one.devices, one.phase) for one in seen] == [
                    (0, "node-0", ("0",), "Running"),
                    (1, "node-1", ("2",), "Running"),
                ]
                assert all(one.pid for one in seen)
                self.say("go", "0")
                await watch.for_(ev.JobsFinished)
                assert watch.all(ev.JobsFinished)[0].number.tolist() == [7]
                assert [note.data["exit_code"] for note in watch.notes if "exit_code" in note.data] == [0]
                assert await backend.running() == {}
                assert [one.exit_code for one in backend.workers("toy-1")] == [0, 0]
                assert not watch.all(ev.JobsFailed)

        self.run(story)

    def test_a_job_that_is_done_at_once_has_run(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0")), self.launch(command=("true",)))
                await watch.for_(ev.JobsFinished)
                assert [type(event) for event in watch.events] == [ev.Running, ev.JobsFinished]

        self.run(story)

    def test_a_worker_that_fails_fails_the_job_and_nothing_is_left(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                start = op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-0", "1"))
                await watch.backend.apply(start, self.launch())
                await watch.for_(ev.Running, 1)
                await self.up(watch, 1, 2)
                self.say("fail-1", "9")
                failed = await watch.for_(ev.JobsFailed, 1)
                assert failed.number.tolist() == [7]
                assert await watch.backend.running() == {}
                assert [note.data["exit_code"] for note in watch.notes if "exit_code" in note.data] == [9]

        self.run(story)

    def test_a_command_that_cannot_run_fails_the_job_with_its_code(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                launch = self.launch(command=("no-such-program",))
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0")), launch)
                await watch.for_(ev.JobsFailed, 1)
                assert [note.data["exit_code"] for note in watch.notes if "exit_code" in note.data] == [127]
                lines = [line.text async for line in watch.backend.logs("toy-1")]
                assert any("cannot start 'no-such-program'" in line for line in lines)

        self.run(story)

    def test_a_worker_that_vanishes_fails_the_job(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                start = op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-0", "1"))
                await watch.backend.apply(start, self.launch())
                await watch.for_(ev.Running, 1)
                await self.up(watch, 1, 2)
                await self.lose("toy-1", 1)
                await watch.for_(ev.JobsFailed, 1)
                assert await watch.backend.running() == {}

        self.run(story)

    # --- stop -------------------------------------------------------------------------------------------------------

    def test_a_stop_lets_workers_save_and_frees_everything(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                backend = watch.backend
                await backend.apply(
                    op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-0", "1")), self.launch()
                )
                await watch.for_(ev.Running, 1)
                await self.up(watch, 1, 2)
                await backend.apply(op(OpKind.STOP, 2), None)
                await watch.for_(ev.Released, 2)
                assert await backend.running() == {}
                lines = [line.text async for line in backend.logs("toy-1")]
                assert lines.count("saved") == 2
                assert not watch.all(ev.JobsFailed)
                assert not watch.all(ev.JobsFinished)

        self.run(story)

    def test_who_does_not_leave_is_killed_after_the_grace_period(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                self.say("stubborn")
                await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch(grace_s=0.2))
                await self.up(watch, 1, 1)
                await watch.backend.apply(op(OpKind.STOP, 2), None)
                await watch.for_(ev.Released, 2)
                assert await watch.backend.running() == {}

        self.run(story)

    def test_a_stop_of_what_never_ran_is_done_at_once(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                await watch.backend.apply(op(OpKind.STOP, 4), None)
                await watch.for_(ev.Released, 4)

        self.run(story)

    # --- resize -----------------------------------------------------------------------------------------------------

    def test_a_resize_stops_and_starts_a_script_that_knows_nothing(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                backend, launch = watch.backend, self.launch()
                await backend.apply(op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-0", "1")), launch)
                await watch.for_(ev.Running, 1)
                await self.up(watch, 1, 2)
                wider = [place(0, "node-0", "0"), place(1, "node-1", "1"), place(2, "node-1", "2")]
                await backend.apply(op(OpKind.RESIZE, 2, *wider), launch)
                await watch.for_(ev.Running, 2)
                assert [type(event) for event in watch.events if getattr(event, "generation", None) == [2]][:3] == [
                    ev.JobsRestarted,
                    ev.Released,
                    ev.Running,
                ]
                await self.up(watch, 2, 3)
                assert [(one.node, one.devices) for one in backend.workers("toy-1")] == [
                    ("node-0", ("0",)),
                    ("node-1", ("1",)),
                    ("node-1", ("2",)),
                ]
                assert (await backend.running())["toy-1"].running == 3

        self.run(story)

    # --- idempotence, generations, epochs ---------------------------------------------------------------------------

    def test_an_operation_that_is_repeated_is_done_once_and_told_again(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                start = op(OpKind.START, 1, place(0, "node-0", "0"))
                for _ in range(3):
                    await watch.backend.apply(start, self.launch())
                await watch.for_(ev.Running, 1)
                await self.up(watch, 1, 1)
                pid = watch.backend.workers("toy-1")[0].pid
                await watch.backend.apply(start, self.launch())
                await watch.for_(ev.Running, 1, count=2)
                assert watch.backend.workers("toy-1")[0].pid == pid

        self.run(story)

    def test_an_older_generation_changes_nothing(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                launch = self.launch()
                await watch.backend.apply(op(OpKind.START, 5, place(0, "node-0", "0")), launch)
                await watch.for_(ev.Running, 5)
                pid = watch.backend.workers("toy-1")[0].pid
                await watch.backend.apply(op(OpKind.STOP, 4), None)
                await watch.backend.apply(op(OpKind.RESIZE, 3, place(0, "node-1", "0")), launch)
                await watch.backend.apply(op(OpKind.START, 5, place(0, "node-0", "0")), launch)
                await watch.for_(ev.Running, 5, count=2)
                assert [(one.node, one.pid) for one in watch.backend.workers("toy-1")] == [("node-0", pid)]
                assert not watch.all(ev.Released)

        self.run(story)

    def test_a_stop_overtakes_a_start(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                start = op(OpKind.START, 1, *[place(i, "node-0", str(i)) for i in range(4)])
                await watch.backend.apply(start, self.launch())
                await watch.backend.apply(op(OpKind.STOP, 2), None)
                await watch.for_(ev.Released, 2)
                assert await watch.backend.running() == {}

        self.run(story)

    def test_what_nobody_should_have_is_stopped_under_the_generation_it_was_found_with(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                await watch.backend.apply(op(OpKind.START, 3, place(0, "node-0", "0")), self.launch())
                await watch.for_(ev.Running, 3)
                found = (await watch.backend.running())["toy-1"]
                await watch.backend.apply(op(OpKind.STOP, found.generation), None)
                await watch.for_(ev.Released, 3)
                assert await watch.backend.running() == {}

        self.run(story)

    def test_a_server_that_goes_can_stop_everything(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                for number in (1, 2):
                    start = op(OpKind.START, 1, place(0, "node-0", str(number)), job=f"toy-{number}", number=number)
                    await watch.backend.apply(start, self.launch())
                await watch.until(lambda: len(watch.all(ev.Running)) == 2)
                await watch.backend.stop_all()
                assert await watch.backend.running() == {}

        self.run(story)

    def test_a_start_that_a_server_that_goes_has_stopped_is_done_when_it_is_applied_again(self) -> None:
        async def story() -> None:
            start = op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-1", "1"))
            async with self.opened(1, leave=True) as first:
                await first.backend.apply(start, self.launch())
                await first.until(lambda: any(one.pid for one in first.backend.workers("toy-1")), "a process")
                assert not first.all(ev.Running)
                await first.backend.stop_all()
                assert await first.backend.running() == {}
            async with self.opened(2) as second:
                assert await second.backend.running() == {}
                await second.backend.apply(start, self.launch())
                await second.for_(ev.Running, 1)
                assert (await second.backend.running())["toy-1"].running == 2

        self.run(story)

    def test_an_older_epoch_is_refused(self) -> None:
        async def story() -> None:
            async with self.opened(epoch=1) as old, self.opened(epoch=2):
                with pytest.raises(Refused, match="epoch"):
                    await old.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                assert await old.backend.running() == {}
            older = self.make()
            with pytest.raises(Refused):
                await older.open(1)
            await older.close()

        self.run(story)

    # --- recovery ---------------------------------------------------------------------------------------------------

    def test_the_next_backend_finds_what_runs_and_goes_on(self) -> None:
        async def story() -> None:
            start = op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-1", "1"))
            async with self.opened(1, leave=True) as first:
                await first.backend.apply(start, self.launch())
                await first.for_(ev.Running, 1)
                await self.up(first, 1, 2)
                pids = [one.pid for one in first.backend.workers("toy-1")]
            async with self.opened(2) as second:
                found = (await second.backend.running())["toy-1"]
                assert (found.number, found.generation, found.running) == (7, 1, 2)
                assert [one.pid for one in second.backend.workers("toy-1")] == pids
                await second.backend.apply(start, self.launch())
                await second.for_(ev.Running, 1)
                assert [one.pid for one in second.backend.workers("toy-1")] == pids
                self.say("go", "0")
                await second.for_(ev.JobsFinished)

        self.run(story)

    def test_what_ended_while_nobody_watched_is_told(self) -> None:
        async def story() -> None:
            async with self.opened(1, leave=True) as first:
                await first.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                await first.for_(ev.Running, 1)
                await self.up(first, 1, 1)
            self.say("go", "4")
            async with self.opened(2, leave=True) as second:
                await second.for_(ev.JobsFailed, 1)
                assert [note.data["exit_code"] for note in second.notes if "exit_code" in note.data] == [4]
            async with self.opened(3) as third:
                await third.for_(ev.JobsFailed, 1)

        self.run(story)

    def test_a_job_that_ends_while_a_backend_opens_runs_or_has_ended(self) -> None:
        async def story() -> None:
            async with self.opened(1, leave=True) as first:
                await first.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                await first.for_(ev.Running, 1)
                await self.up(first, 1, 1)
            self.say("go", "0")
            async with self.opened(2) as second:
                told = [event for event in second.first.report.events if isinstance(event, ev.JobsFinished)]
                assert bool(told) != ("toy-1" in second.first.running)
                await second.for_(ev.JobsFinished, 1)

        self.run(story)

    @pytest.mark.parametrize("kind", [OpKind.START, OpKind.RESIZE])
    def test_what_is_done_is_never_begun_again(self, kind: int) -> None:
        async def story() -> None:
            async with self.opened(1, leave=True) as first:
                await first.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                await self.up(first, 1, 1)
                self.say("go", "0")
                await first.for_(ev.JobsFinished, 1)
                again = op(kind, 2, place(0, "node-0", "0"))
                await first.backend.apply(again, self.launch())
                await first.for_(ev.JobsFinished, 2)
            async with self.opened(2) as second:
                await second.for_(ev.JobsFinished, 2)
                assert not second.first.running
                await second.backend.apply(op(OpKind.STOP, 3), None)
                await second.for_(ev.JobsFinished, 3)
            assert [path.name for path in self.here.glob("up-*")] == ["up-1-0"]

        self.run(story)

    def test_the_next_backend_completes_what_was_under_way(self) -> None:
        async def story() -> None:
            start = op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-1", "1"))
            async with self.opened(1, leave=True) as first:
                await first.backend.apply(start, self.launch())
            async with self.opened(2, leave=True) as second:
                await second.for_(ev.Running, 1)
                await self.up(second, 1, 2)
                await second.backend.apply(op(OpKind.STOP, 2), None)
            async with self.opened(3) as third:
                await third.for_(ev.Released, 2)
                assert await third.backend.running() == {}

        self.run(story)

    # --- logs and forgetting ----------------------------------------------------------------------------------------

    def test_logs_are_read_followed_and_cut(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                backend = watch.backend
                await backend.apply(
                    op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-0", "1")), self.launch()
                )
                await self.up(watch, 1, 2)
                followed: list[LogLine] = []

                async def follow() -> None:
                    async for line in backend.logs("toy-1", follow=True):
                        followed.append(line)

                following = asyncio.create_task(follow())
                await watch.until(lambda: len(followed) == 2)
                one = [line.text async for line in backend.logs("toy-1", worker="1")]
                assert one == ["up 1 2 1"]
                self.say("go", "0")
                await watch.for_(ev.JobsFinished)
                async with asyncio.timeout(WAIT_S):
                    await following
                assert sorted(line.text for line in followed) == ["bye", "bye", "up 0 2 1", "up 1 2 1"]
                assert all(line.at > 0 for line in followed)
                assert [line.text async for line in backend.logs("toy-1", worker="0", tail=1)] == ["bye"]

        self.run(story)

    def test_a_job_that_is_forgotten_is_gone(self) -> None:
        async def story() -> None:
            async with self.opened() as watch:
                backend = watch.backend
                await backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
                await self.up(watch, 1, 1)
                with pytest.raises(Refused):
                    await backend.forget("toy-1")
                self.say("go", "0")
                await watch.for_(ev.JobsFinished)
                await backend.forget("toy-1")
                assert backend.workers("toy-1") == []
                assert [line async for line in backend.logs("toy-1")] == []

        self.run(story)
