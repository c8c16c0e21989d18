"""A live server driven by a history: real service, loop, store and local backend, scripted processes.

Requests of users go through the service. Reports of the backend first become true: the processes change, and the
backend must observe it. The report itself then has the time and the batches of the script, so that the engine is called
as in the simulator. The clock and the ticks of timers are the script's. A scheduler orders all tasks and threads by
seed, in virtual time (`tests/interleavings`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np

from levada.backends.local import worker
from levada.backends.local.backend import LocalBackend
from levada.backends.local.job_state import Stage
from levada.backends.protocol import Report
from levada.core import events as ev
from levada.core.cluster import Node
from levada.engine import Engine
from levada.live import log_entry
from levada.live.executor import CommandExecutor
from levada.live.live import Live
from levada.live.requests import Request
from levada.live.service import Service
from levada.live.store import Store
from levada.plugins import find_policy
from tests.interleavings.processes import Processes
from tests.interleavings.scheduler import SeededLoop, run
from tests.live.histories import JobHistory, Moment
from tests.live.live_server import ManualClock
from tests.live.recording import Recorder, Step

#: Time limit of operations of the backend in virtual seconds, and the polling interval.
_PATIENCE_S, _LOOK_S = 300.0, 0.2
_USERS = (
    *(ev.JobsSubmitted, ev.JobsCancelled, ev.JobsSuspended, ev.JobsResumed, ev.JobsUpdated),
    *(ev.NodesCordoned, ev.NodesDrained, ev.PolicyChanged),
)


class ServerRun(NamedTuple):
    """The steps of a server's engine, without the one in `Live.open`, and the log of all of them."""

    steps: list[Step]
    log: list[bytes]


def served(history: JobHistory, folder: Path) -> ServerRun:
    """Run *history* on a server with a new store in *folder*."""

    async def main(loop: SeededLoop) -> ServerRun:
        processes, timer = Processes(loop), _ScriptedTimer()

        def set_timer(_executor: CommandExecutor, at: float) -> None:
            timer.at = at

        with (
            mock.patch.object(worker, "processes", processes),
            mock.patch.object(worker, "procfs", processes, create=True),
            mock.patch.object(CommandExecutor, "_set_timer", set_timer),
        ):
            return await _drive(history, folder, processes, timer)

    return run(0, main)


def replayed(log: list[bytes]) -> list[Step]:
    """The steps of a new engine that replays *log*."""
    engine = Engine(make_policy=find_policy)
    recorder = Recorder(engine)
    for entry in log:
        log_entry.replay(engine, entry)
    return recorder.steps


class _ScriptedTimer:
    """The timer of the loop: the script has its ticks."""

    at = math.inf


class _ScriptedBackend(LocalBackend):
    """Runs jobs, and reports the events of the script instead of its observations."""

    def __init__(self, home: Path, nodes: tuple[Node, ...]) -> None:
        super().__init__(home, nodes)
        #: Reports of the backend itself: type, job and generation (-1 = none).
        self.seen: set[tuple[type[ev.Event], int, int]] = set()
        self.script: asyncio.Queue[Report] = asyncio.Queue()

    async def reports(self) -> AsyncIterator[Report]:
        watching = asyncio.create_task(self._watch())
        try:
            while True:
                yield await self.script.get()
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        async for report in super().reports():
            for event in report.events:
                if isinstance(event, ev.JobEvent):
                    generations = getattr(event, "generation", np.full(len(event.number), -1))
                    rows = zip(event.number.tolist(), generations.tolist(), strict=True)
                    self.seen.update((type(event), number, generation) for number, generation in rows)


async def _drive(history: JobHistory, folder: Path, processes: Processes, timer: _ScriptedTimer) -> ServerRun:
    backend = _ScriptedBackend(folder, history.nodes)
    clock = ManualClock(history.moments[0].at)
    live = Live(await Store.open(f"sqlite:///{folder}/levada.db"), backend, clock=clock)
    await live.open(policy=history.policy, options=history.options)
    driver = _Driver(live, backend, clock, timer, processes, history)
    work = asyncio.create_task(live.loop.run())
    try:
        await driver.until(lambda: len(driver.recorder.steps) + 1 >= history.moments[0].steps, "the first decision")
        for moment in history.moments[1:]:
            await driver.play(moment)
            if work.done():
                work.result()
        live.stop()
        await work  # the last turn is stored then
        log = [entry async for _, _, entry in live.store.entries(0)]
    finally:
        work.cancel()
        await backend.stop_all()
        await live.close()
    return ServerRun(driver.recorder.steps, log)


class _Driver:
    """Applies the moments of a script to a server."""

    def __init__(
        self,
        live: Live,
        backend: _ScriptedBackend,
        clock: ManualClock,
        timer: _ScriptedTimer,
        processes: Processes,
        history: JobHistory,
    ) -> None:
        self._live, self._backend, self._processes = live, backend, processes
        self._clock, self._timer = clock, timer
        self._service, self._history = Service(live), history
        self._ids: list[str] = []
        self.recorder = Recorder(live.loop.engine)

    async def until(self, true: Callable[[], object], what: str) -> None:
        """Wait until *condition* holds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _PATIENCE_S
        while not true():
            if loop.time() > end:
                last = [step.events for step in self.recorder.steps[-3:]]
                raise AssertionError(f"{what} did not come, step {len(self.recorder.steps)}, after {last}")
            await asyncio.sleep(_LOOK_S)

    async def play(self, moment: Moment) -> None:
        """Apply *moment*; returns when the engine has made all steps that follow from it."""
        for event in moment.events:
            await self._become_true(event)
        progress = tuple(event for event in moment.events if isinstance(event, ev.Progress))
        others = tuple(event for event in moment.events if not isinstance(event, ev.Progress))
        if any(isinstance(event, ev.Tick) for event in others):
            await self.until(lambda: self._timer.at == moment.at, f"the timer for {moment.at}")
        self._clock.time = moment.at
        if isinstance(others[0], _USERS):
            (act,) = others
            await self._request(act, Report(events=progress))
        else:
            self._backend.script.put_nowait(Report(events=moment.events))
        await self.until(lambda: len(self.recorder.steps) + 1 >= moment.steps, f"the last step at {moment.at}")

    async def _request(self, act: ev.Event, progress: Report) -> None:
        """Ask the service for *act*; *progress* becomes part of the same turn."""
        loop, submit = self._live.loop, self._live.loop.submit

        async def submit_with_progress(request: Request) -> None:
            loop.observe(progress)
            await submit(request)

        with mock.patch.object(loop, "submit", submit_with_progress):
            await self._ask(act)

    async def _ask(self, act: ev.Event) -> None:
        service = self._service
        match act:
            case ev.JobsSubmitted():
                begin = len(self._ids)
                documents = self._history.documents[begin : begin + len(act.jobs)]
                views = await service.submissions.submit(
                    documents, user=documents[0]["spec"]["labels"]["user"], key=None
                )
                self._ids += [view["id"] for view in views]
            case ev.JobsCancelled():
                await service.jobs.cancel(self._id(act))
            case ev.JobsSuspended():
                await service.jobs.suspend(self._id(act), force=True)
            case ev.JobsResumed():
                await service.jobs.resume(self._id(act))
            case ev.JobsUpdated(updates=(update,)) if update.fixed is not None:
                await service.jobs.scale(self._ids[update.number], update.fixed, force=True)
            case ev.JobsUpdated(updates=(update,)):
                await service.jobs.update(self._ids[update.number], {"priority": update.priority})
            case ev.NodesCordoned():
                await service.cluster.cordon(act.names[0], cordoned=act.cordoned)
            case ev.NodesDrained():
                await service.cluster.drain(act.names[0], force=act.force)
            case ev.PolicyChanged():
                await service.cluster.set_policy(act.name, {})
            case _:
                raise AssertionError(act)

    def _id(self, act: ev.JobEvent) -> str:
        return self._ids[int(act.number[0])]

    async def _become_true(self, event: ev.Event) -> None:
        """Make workers do what *event* reports, and wait until the backend has observed it."""
        match event:
            case ev.JobsFinished() | ev.JobsFailed():
                # All workers of a job that lost a node are lost: the local backend stops survivors.
                running = [number for number in event.number.tolist() if self._ids[number] in self._processes.alive()]
                for number in running:
                    self._processes.end_job(self._ids[number], int(isinstance(event, ev.JobsFailed)))
                await self._noticed(type(event), [(number, None) for number in running])
            case ev.WorkersFailed():
                await self._end_all([self._ids[number] for number in event.number.tolist()])
            case ev.NodesLost():
                for name in event.names:
                    await self._end_all(self._processes.lose_node(name))
            case ev.Running() | ev.Released():
                # The simulator reports operations of jobs that lost a node; the engine ignores them.
                out = {(op.number, op.generation) for op in self._live.loop.engine.outstanding()}
                rows = zip(event.number.tolist(), event.generation.tolist(), strict=True)
                await self._noticed(type(event), [row for row in rows if row in out])
            case _:
                pass

    async def _end_all(self, jobs: Collection[str]) -> None:
        """End all workers of these jobs, also those of a pending operation."""

        def have_ended() -> bool:
            for job in jobs:
                self._processes.end_job(job, 1)
            return all(self._backend.controllers[job].record.stage is Stage.IDLE for job in jobs)

        await self.until(have_ended, f"the end of {', '.join(jobs)}")

    async def _noticed(self, kind: type[ev.Event], rows: list[tuple[int, int | None]]) -> None:
        """Wait until the backend has observed this for (job, generation); None is any generation."""
        for number, generation in rows:

            def is_seen(number: int = number, generation: int | None = generation) -> bool:
                generations = {seen for other, job, seen in self._backend.seen if (other, job) == (kind, number)}
                return bool(generations) if generation is None else generation in generations

            await self.until(is_seen, f"{kind.__name__} of job {number}, generation {generation},")
