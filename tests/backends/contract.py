"""Backend contract: tests that every backend must pass, with real workers."""

from __future__ import annotations

import asyncio
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from levada.backends.protocol import Backend, Launch, LogLine, Note, Observation
from levada.core import events as ev
from levada.core.grant import Grant, WorkerPlace
from levada.core.plan import Op, OpKind
from levada.errors import Refused
from tests.timeouts import WAIT_S

#: A script without the runtime. Control files in its folder end it: `go` has the exit code of all workers,
#: `fail-N` that of rank N. On SIGTERM it saves a checkpoint.
SCRIPT = """
import os, pathlib, signal, sys, time
work, saves = pathlib.Path(sys.argv[1]), pathlib.Path(os.environ['LEVADA_CHECKPOINT_DIR'])
rank = os.environ['LEVADA_RANK']
def leave(*_):
    (saves / f'model-{rank}').write_text('saved')
    print('saved', flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, signal.SIG_IGN if (work / 'stubborn').exists() else leave)
print('up', rank, os.environ['LEVADA_WORLD_SIZE'], os.environ['LEVADA_GENERATION'], flush=True)
(work / f"up-{os.environ['LEVADA_GENERATION']}-{rank}").write_text(str(os.getpid()))
while True:
    for name in ('go', f'fail-{rank}'):
        if (work / name).exists():
            code = int((work / name).read_text() or 0)
            if name != 'go':
                (work / name).unlink()
            print('bye', flush=True)
            os._exit(code)
    time.sleep(0.005)
"""


class BackendWatch:
    """A backend and all its reports so far."""

    def __init__(self, backend: Backend, first: Observation) -> None:
        self.backend, self.first = backend, first
        self.events: list[ev.Event] = list(first.report.events)
        self.notes: list[Note] = list(first.report.notes)
        self._task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for report in self.backend.reports():
            self.events += report.events
            self.notes += report.notes

    def events_of(self, kind: type[Any], generation: int | None = None) -> list[Any]:
        """Events of one kind, optionally of one generation."""
        events = [event for event in self.events if isinstance(event, kind)]
        return [event for event in events if generation is None or event.generation.tolist() == [generation]]

    async def wait_event(self, kind: type[Any], generation: int | None = None, count: int = 1) -> Any:
        """Wait for *count* events of this kind; return the last one."""
        await self.wait_until(
            lambda: len(self.events_of(kind, generation)) >= count, f"{kind.__name__} of {generation}"
        )
        return self.events_of(kind, generation)[-1]

    async def wait_until(self, condition: Callable[[], object], what: str = "condition") -> None:
        """Wait until *condition* holds; fail with *what* after `WAIT_S`."""
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, f"timeout: {what}; reports: {self.events} {self.notes}"
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        """Stop reading reports."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


def place(index: int, node: str, *devices: str, **fields: Any) -> WorkerPlace:
    """The place of a worker."""
    return WorkerPlace(index=index, node=node, devices=devices, **fields)


def op(kind: int, generation: int, *places: WorkerPlace, job: str = "toy-1", number: int = 7, batch: int = 0) -> Op:
    """An operation on a job."""
    grant = Grant(gpu_type="gpu", workers=len(places), places=places) if places else None
    return Op(job=job, number=number, kind=kind, generation=generation, grant=grant, batch=batch)


class BackendHarness(ABC):
    """Creates a backend with nodes `node-0` and `node-1` of four GPUs each, "0" to "3"."""

    @pytest.fixture(autouse=True)
    def _folders(self, tmp_path: Path) -> None:
        self.home, self.work = tmp_path / "home", tmp_path / "work"
        self.work.mkdir()

    @abstractmethod
    def make(self) -> Backend:
        """A backend with its state in `self.home`; a second one takes over from the first."""

    @abstractmethod
    async def lose(self, job: str, index: int) -> None:
        """Kill a worker without an exit record."""

    @asynccontextmanager
    async def opened(self, epoch: int = 1, *, leave: bool = False) -> AsyncIterator[BackendWatch]:
        """An open backend; stops all jobs at the end unless *leave* is set, for the next backend."""
        async with asyncio.timeout(3 * WAIT_S):
            backend = self.make()
            watch = BackendWatch(backend, await backend.open(epoch))
            try:
                yield watch
                if not leave:
                    await self.stop_all(watch)
            finally:
                await watch.end()
                await backend.close()

    async def stop_all(self, watch: BackendWatch) -> None:
        """Stop all jobs and wait for their end."""
        (self.work / "go").touch()
        for job, seen in (await watch.backend.running()).items():
            stop = op(OpKind.STOP, seen.generation + 1000, job=job, number=seen.number)
            await watch.backend.apply(stop, None)
            await watch.wait_until(lambda: self._has_ended(watch, stop), f"the end of {job}")  # noqa: B023

    @staticmethod
    def _has_ended(watch: BackendWatch, stop: Op) -> bool:
        over = [*watch.events_of(ev.Released, stop.generation), *watch.events_of(ev.JobsFinished)]
        return any(stop.number in event.number.tolist() for event in over)

    def launch(self, **fields: Any) -> Launch:
        """The launch of `SCRIPT`."""
        (self.work / "script.py").write_text(SCRIPT)
        command = (sys.executable, "-u", "-S", "-E", str(self.work / "script.py"), str(self.work))
        return Launch(**{"command": command, "workdir": str(self.work), "grace_s": 20.0, "max_workers": 8, **fields})

    def write_control(self, name: str, text: str = "") -> None:
        """Create a control file of the script atomically."""
        (self.work / f"{name}.new").write_text(text)
        (self.work / f"{name}.new").rename(self.work / name)

    async def wait_scripts(self, watch: BackendWatch, generation: int, workers: int) -> None:
        """Wait until *workers* scripts of this generation have started."""
        pattern = f"up-{generation}-*"
        await watch.wait_until(
            lambda: len(list(self.work.glob(pattern))) == workers, f"{workers} scripts of {generation}"
        )


class BackendContract(BackendHarness):
    """The behaviour that every backend must have."""

    # --- start and end ----------------------------------------------------------------------------------------------

    async def test_a_job_starts_runs_and_finishes(self) -> None:
        async with self.opened() as watch:
            backend = watch.backend
            start = op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-1", "2"))
            await backend.apply(start, self.launch())
            await watch.wait_event(ev.Running, 1)
            await self.wait_scripts(watch, 1, 2)
            assert {
                job: (seen.number, seen.generation, seen.running) for job, seen in (await backend.running()).items()
            } == {"toy-1": (7, 1, 2)}
            seen = backend.workers("toy-1")
            assert [(one.index, one.node, one.devices, one.phase) for one in seen] == [
                (0, "node-0", ("0",), "Running"),
                (1, "node-1", ("2",), "Running"),
            ]
            assert all(one.pid for one in seen)
            self.write_control("go", "0")
            await watch.wait_event(ev.JobsFinished)
            assert watch.events_of(ev.JobsFinished)[0].number.tolist() == [7]
            assert [note.data["exit_code"] for note in watch.notes if "exit_code" in note.data] == [0]
            assert await backend.running() == {}
            assert [one.exit_code for one in backend.workers("toy-1")] == [0, 0]
            assert not watch.events_of(ev.JobsFailed)

    async def test_a_job_that_finishes_at_once_reports_running_first(self) -> None:
        async with self.opened() as watch:
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0")), self.launch(command=("true",)))
            await watch.wait_event(ev.JobsFinished)
            assert [type(event) for event in watch.events] == [ev.Running, ev.JobsFinished]

    async def test_a_failed_worker_fails_the_job_and_leaves_no_process(self) -> None:
        async with self.opened() as watch:
            start = op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-0", "1"))
            await watch.backend.apply(start, self.launch())
            await watch.wait_event(ev.Running, 1)
            await self.wait_scripts(watch, 1, 2)
            self.write_control("fail-1", "9")
            failed = await watch.wait_event(ev.JobsFailed, 1)
            assert failed.number.tolist() == [7]
            assert await watch.backend.running() == {}
            assert [note.data["exit_code"] for note in watch.notes if "exit_code" in note.data] == [9]

    async def test_a_command_that_cannot_run_fails_the_job_with_its_code(self) -> None:
        async with self.opened() as watch:
            launch = self.launch(command=("no-such-program",))
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0")), launch)
            await watch.wait_event(ev.JobsFailed, 1)
            assert [note.data["exit_code"] for note in watch.notes if "exit_code" in note.data] == [127]
            lines = [line.text async for line in watch.backend.logs("toy-1")]
            assert any("cannot start 'no-such-program'" in line for line in lines)

    async def test_a_killed_worker_fails_the_job(self) -> None:
        async with self.opened() as watch:
            start = op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-0", "1"))
            await watch.backend.apply(start, self.launch())
            await watch.wait_event(ev.Running, 1)
            await self.wait_scripts(watch, 1, 2)
            await self.lose("toy-1", 1)
            await watch.wait_event(ev.JobsFailed, 1)
            assert await watch.backend.running() == {}

    # --- stop -------------------------------------------------------------------------------------------------------

    async def test_a_stop_lets_workers_save_and_releases_everything(self) -> None:
        async with self.opened() as watch:
            backend = watch.backend
            await backend.apply(op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-0", "1")), self.launch())
            await watch.wait_event(ev.Running, 1)
            await self.wait_scripts(watch, 1, 2)
            await backend.apply(op(OpKind.STOP, 2), None)
            await watch.wait_event(ev.Released, 2)
            assert await backend.running() == {}
            lines = [line.text async for line in backend.logs("toy-1")]
            assert lines.count("saved") == 2
            assert not watch.events_of(ev.JobsFailed)
            assert not watch.events_of(ev.JobsFinished)

    async def test_a_worker_that_ignores_the_stop_is_killed_after_the_grace_period(self) -> None:
        async with self.opened() as watch:
            self.write_control("stubborn")
            await watch.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch(grace_s=0.2))
            await self.wait_scripts(watch, 1, 1)
            await watch.backend.apply(op(OpKind.STOP, 2), None)
            await watch.wait_event(ev.Released, 2)
            assert await watch.backend.running() == {}

    async def test_a_stop_of_a_job_that_never_ran_completes_at_once(self) -> None:
        async with self.opened() as watch:
            await watch.backend.apply(op(OpKind.STOP, 4), None)
            released = await watch.wait_event(ev.Released, 4)
            assert released.number.tolist() == [7]

    # --- resize -----------------------------------------------------------------------------------------------------

    async def test_a_resize_restarts_a_script_without_the_runtime(self) -> None:
        async with self.opened() as watch:
            backend, launch = watch.backend, self.launch()
            await backend.apply(op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-0", "1")), launch)
            await watch.wait_event(ev.Running, 1)
            await self.wait_scripts(watch, 1, 2)
            wider = [place(0, "node-0", "0"), place(1, "node-1", "1"), place(2, "node-1", "2")]
            await backend.apply(op(OpKind.RESIZE, 2, *wider), launch)
            await watch.wait_event(ev.Running, 2)
            assert [type(event) for event in watch.events if getattr(event, "generation", None) == [2]][:3] == [
                ev.JobsRestarted,
                ev.Released,
                ev.Running,
            ]
            await self.wait_scripts(watch, 2, 3)
            assert [(one.node, one.devices) for one in backend.workers("toy-1")] == [
                ("node-0", ("0",)),
                ("node-1", ("1",)),
                ("node-1", ("2",)),
            ]
            assert (await backend.running())["toy-1"].running == 3

    # --- idempotence, generations, epochs ---------------------------------------------------------------------------

    async def test_a_repeated_operation_is_done_once_and_reported_again(self) -> None:
        async with self.opened() as watch:
            start = op(OpKind.START, 1, place(0, "node-0", "0"))
            for _ in range(3):
                await watch.backend.apply(start, self.launch())
            await watch.wait_event(ev.Running, 1)
            await self.wait_scripts(watch, 1, 1)
            pid = watch.backend.workers("toy-1")[0].pid
            await watch.backend.apply(start, self.launch())
            await watch.wait_event(ev.Running, 1, count=2)
            assert watch.backend.workers("toy-1")[0].pid == pid

    async def test_an_older_generation_changes_nothing(self) -> None:
        async with self.opened() as watch:
            launch = self.launch()
            await watch.backend.apply(op(OpKind.START, 5, place(0, "node-0", "0")), launch)
            await watch.wait_event(ev.Running, 5)
            pid = watch.backend.workers("toy-1")[0].pid
            await watch.backend.apply(op(OpKind.STOP, 4), None)
            await watch.backend.apply(op(OpKind.RESIZE, 3, place(0, "node-1", "0")), launch)
            await watch.backend.apply(op(OpKind.START, 5, place(0, "node-0", "0")), launch)
            await watch.wait_event(ev.Running, 5, count=2)
            assert [(one.node, one.pid) for one in watch.backend.workers("toy-1")] == [("node-0", pid)]
            assert not watch.events_of(ev.Released)

    async def test_a_stop_overtakes_a_start(self) -> None:
        async with self.opened() as watch:
            start = op(OpKind.START, 1, *[place(i, "node-0", str(i)) for i in range(4)])
            await watch.backend.apply(start, self.launch())
            await watch.backend.apply(op(OpKind.STOP, 2), None)
            await watch.wait_event(ev.Released, 2)
            assert await watch.backend.running() == {}

    async def test_a_stray_job_is_stopped_with_its_observed_generation(self) -> None:
        async with self.opened() as watch:
            await watch.backend.apply(op(OpKind.START, 3, place(0, "node-0", "0")), self.launch())
            await watch.wait_event(ev.Running, 3)
            observed = (await watch.backend.running())["toy-1"]
            await watch.backend.apply(op(OpKind.STOP, observed.generation), None)
            await watch.wait_event(ev.Released, 3)
            assert await watch.backend.running() == {}

    async def test_stop_all_stops_every_job(self) -> None:
        async with self.opened() as watch:
            for number in (1, 2):
                start = op(OpKind.START, 1, place(0, "node-0", str(number)), job=f"toy-{number}", number=number)
                await watch.backend.apply(start, self.launch())
            await watch.wait_until(lambda: len(watch.events_of(ev.Running)) == 2)
            await watch.backend.stop_all()
            assert await watch.backend.running() == {}

    async def test_a_start_interrupted_by_stop_all_is_completed_when_applied_again(self) -> None:
        start = op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-1", "1"))
        async with self.opened(1, leave=True) as first:
            await first.backend.apply(start, self.launch())
            await first.wait_until(lambda: any(one.pid for one in first.backend.workers("toy-1")), "a process")
            assert not first.events_of(ev.Running)
            await first.backend.stop_all()
            assert await first.backend.running() == {}
        async with self.opened(2) as second:
            assert await second.backend.running() == {}
            await second.backend.apply(start, self.launch())
            await second.wait_event(ev.Running, 1)
            assert (await second.backend.running())["toy-1"].running == 2

    async def test_an_older_epoch_is_rejected(self) -> None:
        async with self.opened(epoch=1) as old, self.opened(epoch=2):
            with pytest.raises(Refused, match="epoch"):
                await old.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
            assert await old.backend.running() == {}
        older = self.make()
        with pytest.raises(Refused):
            await older.open(1)
        await older.close()

    # --- recovery ---------------------------------------------------------------------------------------------------

    async def test_the_next_backend_finds_running_jobs_and_continues_them(self) -> None:
        start = op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-1", "1"))
        async with self.opened(1, leave=True) as first:
            await first.backend.apply(start, self.launch())
            await first.wait_event(ev.Running, 1)
            await self.wait_scripts(first, 1, 2)
            pids = [one.pid for one in first.backend.workers("toy-1")]
        async with self.opened(2) as second:
            observed = (await second.backend.running())["toy-1"]
            assert (observed.number, observed.generation, observed.running) == (7, 1, 2)
            assert [one.pid for one in second.backend.workers("toy-1")] == pids
            await second.backend.apply(start, self.launch())
            await second.wait_event(ev.Running, 1)
            assert [one.pid for one in second.backend.workers("toy-1")] == pids
            self.write_control("go", "0")
            await second.wait_event(ev.JobsFinished)

    async def test_a_job_end_during_downtime_is_reported(self) -> None:
        async with self.opened(1, leave=True) as first:
            await first.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
            await first.wait_event(ev.Running, 1)
            await self.wait_scripts(first, 1, 1)
        self.write_control("go", "4")
        async with self.opened(2, leave=True) as second:
            await second.wait_event(ev.JobsFailed, 1)
            assert [note.data["exit_code"] for note in second.notes if "exit_code" in note.data] == [4]
        async with self.opened(3) as third:
            await third.wait_event(ev.JobsFailed, 1)

    async def test_a_job_that_ends_while_a_backend_opens_is_running_or_ended(self) -> None:
        async with self.opened(1, leave=True) as first:
            await first.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
            await first.wait_event(ev.Running, 1)
            await self.wait_scripts(first, 1, 1)
        self.write_control("go", "0")
        async with self.opened(2) as second:
            finished = [event for event in second.first.report.events if isinstance(event, ev.JobsFinished)]
            assert bool(finished) != ("toy-1" in second.first.running)
            await second.wait_event(ev.JobsFinished, 1)

    @pytest.mark.parametrize("kind", [OpKind.START, OpKind.RESIZE])
    async def test_a_finished_job_is_never_started_again(self, kind: int) -> None:
        async with self.opened(1, leave=True) as first:
            await first.backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
            await self.wait_scripts(first, 1, 1)
            self.write_control("go", "0")
            await first.wait_event(ev.JobsFinished, 1)
            again = op(kind, 2, place(0, "node-0", "0"))
            await first.backend.apply(again, self.launch())
            await first.wait_event(ev.JobsFinished, 2)
        async with self.opened(2) as second:
            await second.wait_event(ev.JobsFinished, 2)
            assert not second.first.running
            await second.backend.apply(op(OpKind.STOP, 3), None)
            await second.wait_event(ev.JobsFinished, 3)
        assert [path.name for path in self.work.glob("up-*")] == ["up-1-0"]

    async def test_the_next_backend_completes_pending_operations(self) -> None:
        start = op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-1", "1"))
        async with self.opened(1, leave=True) as first:
            await first.backend.apply(start, self.launch())
        async with self.opened(2, leave=True) as second:
            await second.wait_event(ev.Running, 1)
            await self.wait_scripts(second, 1, 2)
            await second.backend.apply(op(OpKind.STOP, 2), None)
        async with self.opened(3) as third:
            await third.wait_event(ev.Released, 2)
            assert await third.backend.running() == {}

    # --- logs and removal -------------------------------------------------------------------------------------------

    async def test_logs_can_be_read_followed_and_tailed(self) -> None:
        async with self.opened() as watch:
            backend = watch.backend
            await backend.apply(op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-0", "1")), self.launch())
            await self.wait_scripts(watch, 1, 2)
            followed: list[LogLine] = []

            async def follow() -> None:
                async for line in backend.logs("toy-1", follow=True):
                    followed.append(line)

            following = asyncio.create_task(follow())
            await watch.wait_until(lambda: len(followed) == 2)
            one = [line.text async for line in backend.logs("toy-1", worker="1")]
            assert one == ["up 1 2 1"]
            self.write_control("go", "0")
            await watch.wait_event(ev.JobsFinished)
            async with asyncio.timeout(WAIT_S):
                await following
            assert sorted(line.text for line in followed) == ["bye", "bye", "up 0 2 1", "up 1 2 1"]
            assert all(line.at > 0 for line in followed)
            assert [line.text async for line in backend.logs("toy-1", worker="0", tail=1)] == ["bye"]

    async def test_a_forgotten_job_has_no_workers_and_logs(self) -> None:
        async with self.opened() as watch:
            backend = watch.backend
            await backend.apply(op(OpKind.START, 1, place(0, "node-0", "0")), self.launch())
            await self.wait_scripts(watch, 1, 1)
            with pytest.raises(Refused):
                await backend.forget("toy-1")
            self.write_control("go", "0")
            await watch.wait_event(ev.JobsFinished)
            await backend.forget("toy-1")
            assert backend.workers("toy-1") == []
            assert [line async for line in backend.logs("toy-1")] == []
