"""Local backend: jobs as processes of this machine and of machines with agents."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from levada.backends.clock import MachineClock
from levada.backends.local.agents import Agents, report_machine
from levada.backends.local.gpu_monitor import GpuMonitor, is_real, start_mps
from levada.backends.local.gpus import Nvml
from levada.backends.local.job_actions import MachineActions
from levada.backends.local.job_controller import JobController
from levada.backends.local.job_reports import exit_code
from levada.backends.local.job_state import ControllerState, Stage, load
from levada.backends.local.log_stream import LogStream
from levada.backends.local.machines import LocalMachine, MachineLink
from levada.backends.local.members import covering, started_in
from levada.backends.local.supervisor import Supervisor
from levada.backends.local.supervisor_protocol import (
    LOST,
    RUNS,
    STARTING,
    UNREACHABLE,
    CheckpointStatus,
    Forget,
    LastCommand,
    PollFast,
    StatusUpdate,
    WorkerStatus,
)
from levada.backends.local.worker_set import IN_PROCESS
from levada.backends.protocol import (
    Capabilities,
    ClusterBackend,
    Launch,
    LogLine,
    Note,
    Observation,
    Report,
    Seen,
    Socket,
    WorkerSeen,
)
from levada.core.cluster import Cluster, Foreign, Node
from levada.core.events import Event, Progress
from levada.core.plan import Op, OpKind
from levada.errors import LevadaError, Refused

T = TypeVar("T")
_log = logging.getLogger(__name__)
#: Period of job controllers with an operation under way, and the least time between two progress reports.
_STEP_S, _PROGRESS_S = 0.05, 0.25
#: Generations of workers at or above this number are not believed.
_MAX_WORLD = 1 << 40


class LocalBackend(ClusterBackend):
    """Runs jobs on *nodes* of this machine and on those of its agents; state is below *home*.

    `token_for(job, number, worker)` makes the token of a worker.
    """

    def __init__(
        self,
        home: Path,
        nodes: Sequence[Node],
        *,
        server_url: str = "",
        token_for: Callable[[str, int, str], str] = lambda _job, _number, _worker: "",
        address: str = "127.0.0.1",
        checkpoints: Path | None = None,
        silence_s: float = 30.0,
        nvml: Nvml | None = None,
    ) -> None:
        self.home = home
        self.server_url, self.token_for = server_url, token_for
        self.epoch = 0
        #: For all time limits: a change of the system clock must not end them.
        self._clock = MachineClock()
        self._supervisor = Supervisor(home, self.observe, str(checkpoints.absolute()) if checkpoints else "")
        self.here = LocalMachine(self._supervisor, tuple(nodes), address)
        self.hosts: dict[str, MachineLink] = {self.here.name: self.here}
        self.controllers: dict[str, JobController] = {}
        self.agents = Agents(self, silence_s)
        self._last_commands: dict[str, LastCommand] = {}
        #: Jobs whose controllers step every `_STEP_S`.
        self.fast_polled: set[str] = set()
        self._errors: dict[str, str] = {}
        self._wakeup = asyncio.Event()
        self._progress: dict[int, float] = {}
        self._progress_sent = 0.0
        self._events: list[Event] = []
        self._notes: list[Note] = []
        self._queue: asyncio.Queue[Report] = asyncio.Queue()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._tasks: list[asyncio.Task[None]] = []
        #: Why reports have ended; empty while the backend works.
        self._broken = ""
        self._is_open = self._is_closed = False
        self._nvml = nvml
        #: Foreign use of GPUs as known to the engine before this process.
        self._foreign: Sequence[Foreign] = ()
        self.capabilities = Capabilities(in_place_with_runtime=IN_PROCESS, fractions=True)

    # --- lifecycle --------------------------------------------------------------------------------------------------

    async def open(self, epoch: int, foreign: Sequence[Foreign] = ()) -> Observation:
        """Observe all machines, continue operations under way, and report what ended while no server ran."""
        self.epoch, self._foreign = epoch, foreign
        self.here.foreign = self.foreign_on(self.here.nodes)
        self._supervisor.take_epoch(epoch)
        await self._supervisor.open()
        records = await asyncio.to_thread(self._records)
        self.here.mps_pipe = await asyncio.to_thread(start_mps, self.here.nodes, self.home)
        # Nothing is awaited from here on: the observation is of one moment. No controller exists before it, and none
        # steps before it has the workers of every machine: it would start workers that run already.
        self._is_open = True
        for record in records:
            record.since = min(record.since, self._clock.now())  # the clock may have been set back
            self.controllers[record.job] = JobController(record, MachineActions(self, record))
        self.agents.load()
        for controller in self.controllers.values():
            # Before the first observation, so that an end or a loss found by it is reported only once.
            controller.reports.repeat_end()
            controller.repeat_losses(lambda node: self.host_of(node) is None)
        updates = [host.full_status() for host in list(self.hosts.values())]
        for update in updates:
            self._observe_workers(update)
        for job in list(self.controllers):
            self.step(job)
        for update in updates:
            self._observe_files(update)
        self.flush()
        reports = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        self._add_vital_task(asyncio.create_task(self._supervisor.watches()))
        self._add_vital_task(asyncio.create_task(self._run()))
        if is_real(self.here.nodes):
            monitor = GpuMonitor(self.here.nodes[0], self.home, self._observe_machine, self._nvml)
            self._add_vital_task(asyncio.create_task(monitor.run()))
        return Observation(
            report=Report(
                events=tuple(event for report in reports for event in report.events),
                notes=tuple(note for report in reports for note in report.notes),
            ),
            running=self._running(),
            cluster=self._cluster(),
        )

    def _add_vital_task(self, task: asyncio.Task[None]) -> None:
        """Register a task whose end means the end of `reports`."""
        self._tasks.append(task)
        task.add_done_callback(self._fail)

    def _fail(self, task: asyncio.Task[None]) -> None:
        if self._is_closed or self._broken:
            return
        error = None if task.cancelled() else task.exception()
        why = str(error) if isinstance(error, LevadaError) else f"the backend stopped ({error!r})"
        self._broken = f"{why}; running jobs are not affected: start the server again"
        self._queue.put_nowait(Report())

    async def close(self) -> None:
        """Stop observing; running jobs continue."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._supervisor.close()
        self._writer.shutdown(wait=False)

    async def stop_all(self) -> None:
        """Stop all workers and wait until they have saved and left; their operations can be applied again."""
        while running := {job: controller for job, controller in self.controllers.items() if controller.has_workers()}:
            for job, controller in running.items():
                controller.quit(self._clock.now())
                self._update_polling(job, controller)
            await asyncio.sleep(_STEP_S)

    def _records(self) -> list[ControllerState]:
        folders = self.home / "jobs"
        records = [load(folder) for folder in sorted(folders.iterdir())] if folders.exists() else []
        return [record for record in records if record is not None]

    async def _run(self) -> None:
        """Step controllers with an operation under way, send progress, and watch agents for silence."""
        while True:
            for job in list(self.fast_polled):
                self.step(job)
            for duty in (self._flush_progress, self.agents.tick, self.flush):
                self._guarded(duty, duty.__name__)
            self._wakeup.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STEP_S if self.fast_polled else min(_PROGRESS_S, self.agents.heartbeat_s)):
                    await self._wakeup.wait()

    # --- backend protocol -------------------------------------------------------------------------------------------

    async def cluster(self) -> Cluster:
        """The current nodes of all machines that are not lost."""
        return self._cluster()

    def _cluster(self) -> Cluster:
        return Cluster(nodes=tuple(node for host in self.hosts.values() if not host.lost for node in host.nodes))

    async def running(self) -> Mapping[str, Seen]:
        """Jobs with live workers, by job id."""
        return self._running()

    def _running(self) -> dict[str, Seen]:
        running = {}
        for job, controller in self.controllers.items():
            if controller.workers.alive():
                record, count = controller.record, controller.workers.running
                running[job] = Seen(number=record.number, generation=record.generation, running=count)
        return running

    async def apply(self, op: Op, launch: Launch | None) -> None:
        """Accept an operation; idempotent on (job, generation)."""
        controller = self.controllers.get(op.job)
        if controller is None:
            controller = self._new_controller(op.job, op.number, 0)
        self._supervisor.check(self.epoch)
        record = controller.record
        if op.kind == OpKind.START and record.stage is Stage.IDLE and op.generation > record.generation:
            await controller.reserve(op.generation)
            self._supervisor.check(self.epoch)
        controller.apply(op, launch, self.epoch, self._clock.now())
        self._update_polling(op.job, controller)
        self.flush()

    def in_writer_thread(self, work: Callable[[], None]) -> asyncio.Future[None]:
        """Run disk *work* in a thread of its own, which never waits for scans of processes."""
        return asyncio.get_running_loop().run_in_executor(self._writer, work)

    async def reports(self) -> AsyncIterator[Report]:
        """Yield reports, each at least once; raises LevadaError when the backend has failed."""
        while not (self._broken and self._queue.empty()):
            report = await self._queue.get()
            if report.events or report.notes:
                yield report
        raise LevadaError(self._broken)

    def workers(self, job: str) -> list[WorkerSeen]:
        """The workers of a job, the newest one per place."""
        controller = self.controllers.get(job)
        if controller is None:
            return []
        record = controller.record
        workers = []
        for place in record.places:
            member = covering((*record.newcomers, *record.members), place)
            status = None if member is None else controller.workers.statuses.get(member.name)
            if member is None or status is None:
                continue
            stopping = record.stage is Stage.STOPPING or member in record.leavers
            phase = _PHASES[status.state] if not (stopping and status.alive) else "Stopping"
            if member.name in controller.workers.lost:
                phase = _PHASES[LOST]
            workers.append(
                WorkerSeen(
                    name=member.name,
                    index=place.index if place.group == "worker" else -1 - place.index,
                    node=place.node,
                    devices=place.devices,
                    phase=phase,
                    pid=status.pid,
                    exit_code=exit_code(status),
                )
            )
        return workers

    def logs(
        self,
        job: str,
        *,
        worker: str | None = None,
        tail: int | None = None,
        follow: bool = False,
        previous: bool = False,
    ) -> AsyncIterator[LogLine]:
        """Stream the output of its workers."""
        return LogStream(self, job).lines(worker=worker, tail=tail, follow=follow, previous=previous)

    async def forget(self, job: str) -> None:
        """Delete the folder of a job; raises Refused while it runs."""
        controller = self.controllers.get(job)
        if controller is not None and controller.workers.alive():
            raise Refused(f"{job} still runs: stop it first")
        self.controllers.pop(job, None)
        self.fast_polled.discard(job)
        last = self._last_commands.pop(job, None)
        number = controller.record.number if controller is not None else 0 if last is None else last.number
        for host in self.hosts.values():
            host.do(Forget(job=job, epoch=self.epoch, number=number))

    async def serve_agent(self, socket: Socket) -> None:
        """Serve the connection of an agent until either side closes it."""
        await self.agents.serve(socket)

    # --- observations and reports -----------------------------------------------------------------------------------

    def observe(self, update: StatusUpdate) -> None:
        """Take in a status update of a supervisor."""
        if not self._is_open:
            return  # `open` asks every supervisor for its full status
        for job in self._observe_workers(update):
            self.step(job)
        self._observe_files(update)
        self._flush_progress()
        self.flush()

    def _observe_workers(self, update: StatusUpdate) -> dict[str, None]:
        """Record the status of workers; returns the jobs whose controllers must step, in order."""
        for last in update.last_commands:
            self._last_commands[last.job] = last
        jobs: dict[str, None] = {}
        for status in update.workers:
            # A malformed status of one worker must not hide those of the others.
            if self._guarded(partial(self._observe_worker, status), f"status of {status.job}"):
                jobs[status.job] = None
        return jobs

    def _observe_files(self, update: StatusUpdate) -> None:
        for checkpoint in update.checkpoints:
            self._guarded(partial(self._observe_checkpoint, checkpoint), f"checkpoints of {checkpoint.job}")

    def _observe_worker(self, status: WorkerStatus) -> bool:
        """Record the status of a worker; returns whether its controller must step."""
        controller = self.controllers.get(status.job)
        if controller is None:
            last = self._last_commands.get(status.job)
            if last is None or not status.alive:
                return False
            # An orphaned worker: `running` reports it, and the engine decides.
            controller = self._new_controller(status.job, last.number, last.generation)
        workers = controller.workers
        before = workers.statuses.get(status.name)
        if status.state == RUNS:
            # By this machine's clock: that of another machine may be wrong.
            since = before.since if before is not None and before.state == RUNS else self._clock.now()
            status = msgspec.structs.replace(status, since=since)
        workers.statuses[status.name] = status
        if status.state in (LOST, UNREACHABLE):
            workers.lost.add(status.name)
        if _has_advanced(before, status) and workers.is_member(status.name):
            # A worker that has not entered a generation does not know the steps of the checkpoint yet.
            steps = max(reading.steps for reading in workers.readings() if reading.generation)
            self._progress[controller.record.number] = steps
        return controller.busy or before is None or _is_relevant(before, status)

    def _observe_checkpoint(self, checkpoint: CheckpointStatus) -> None:
        controller = self.controllers.get(checkpoint.job)
        if controller is not None:
            if checkpoint.saved_at:
                controller.reports.checkpoint_written(checkpoint.saved_at / 1e9)
            if checkpoint.epochs is not None:
                self._progress[controller.record.number] = checkpoint.epochs

    def record_of(self, job: str) -> ControllerState | None:
        """The record of a job; None if it is unknown."""
        controller = self.controllers.get(job)
        return None if controller is None else controller.record

    def foreign_on(self, nodes: Sequence[Node]) -> tuple[Foreign, ...]:
        """Foreign use of these nodes as last reported before this process."""
        names = {node.name for node in nodes}
        return tuple(foreign for foreign in self._foreign if foreign.node in names)

    def _observe_machine(self, node: Node, foreign: tuple[Foreign, ...]) -> None:
        """Take in the GPUs of this machine and their foreign use."""
        report_machine(self, self.here, (node,), foreign)

    def step(self, job: str) -> None:
        """Step the controller of a job; an error is logged and the step retried."""
        controller = self.controllers.get(job)
        if controller is None:
            self.fast_polled.discard(job)
        elif self._guarded(lambda: self._step(job, controller), job) is None:
            self.poll_fast(job)

    def _step(self, job: str, controller: JobController) -> bool:
        controller.step(self._clock.now())
        self._update_polling(job, controller)
        return True

    def _guarded(self, action: Callable[[], T], subject: str) -> T | None:
        """Run *action*; log an error once and return None, so that other jobs are not affected.

        Causes: a newer epoch commands, the disk is full, or a bug.
        """
        try:
            outcome = action()
        except Exception as error:
            if self._errors.get(subject) != str(error):
                self._errors[subject] = str(error)
                _log.warning("%s: %s", subject, error, exc_info=not isinstance(error, Refused | OSError))
            return None
        self._errors.pop(subject, None)
        return outcome

    def poll_fast(self, job: str) -> None:
        """Step the controller of a job every 50 ms, since an operation waits for it."""
        self.fast_polled.add(job)
        self._wakeup.set()

    def emit(self, event: Event) -> None:
        """Add an event to the next report."""
        self._events.append(event)

    def note(self, note: Note) -> None:
        """Add a note to the next report."""
        self._notes.append(note)

    def flush(self) -> None:
        """Queue the next report, progress first: the steps of a job must precede its end."""
        if self._events or self._notes:
            self._queue.put_nowait(Report(events=(*self._take_progress(), *self._events), notes=tuple(self._notes)))
            self._events, self._notes = [], []

    def _flush_progress(self) -> None:
        """Add progress to the next report at most every 250 ms: estimators take it as current."""
        now = time.monotonic()
        if self._progress and now - self._progress_sent >= _PROGRESS_S:
            self._progress_sent = now
            self._events[:0] = self._take_progress()

    def report_progress(self, steps: Mapping[int, float]) -> None:
        """Report the steps of jobs by number; replaces progress of theirs that is not sent yet."""
        for number in steps:
            self._progress.pop(number, None)
        self.emit(_progress(steps))

    def _take_progress(self) -> list[Progress]:
        """Return and clear the progress that is not sent yet."""
        steps, self._progress = self._progress, {}
        return [_progress(steps)] if steps else []

    def _new_controller(self, job: str, number: int, generation: int) -> JobController:
        record = ControllerState(
            job=job, number=number, generation=generation, last_world=self._last_world(job, generation)
        )
        controller = self.controllers[job] = JobController(record, MachineActions(self, record))
        if generation:
            # The operation is unknown: the workers run on until the next one.
            record.stage, record.kind = Stage.ORPHANED, OpKind.NONE
        return controller

    def _last_world(self, job: str, generation: int) -> int:
        """The highest generation in any worker name, report or checkpoint: workers of a lower one cannot save."""
        statuses = [status for host in self.hosts.values() for status in host.workers(job).values()]
        entered = [status.reading.generation for status in statuses if status.reading is not None]
        worlds = [self._supervisor.saved_by(job), *(started_in(status.name) for status in statuses), *entered]
        worlds.append(self.agents.newest_world(job))
        # Jobs can write any number into their files.
        return max([generation, *(world for world in worlds if world < _MAX_WORLD)])

    def _update_polling(self, job: str, controller: JobController) -> None:
        """Make supervisors poll a job fast while its controller is busy."""
        if controller.busy != (job in self.fast_polled):
            (self.poll_fast if controller.busy else self.fast_polled.discard)(job)
            for host in self.hosts_of(controller):
                host.do(PollFast(job=job, epoch=self.epoch, on=controller.busy))

    def hosts_of(self, controller: JobController) -> list[MachineLink]:
        """The machines with workers of the current or the last generation of a job."""
        record = controller.record
        nodes = {member.node for member in (*record.members, *record.newcomers, *record.leavers)}
        return [host for host in self.hosts.values() if any(node.name in nodes for node in host.nodes)]

    def host_of(self, node: str) -> MachineLink | None:
        """The machine of a node; None if it has not joined or is lost."""
        hosts = [host for host in self.hosts.values() if not host.lost]
        return next((host for host in hosts if any(other.name == node for other in host.nodes)), None)


_PHASES = {STARTING: "Starting", RUNS: "Running", "ended": "Exited", "lost": "Lost", "unreachable": "Lost"}


def _progress(steps: Mapping[int, float]) -> Progress:
    numbers = np.fromiter(steps.keys(), np.int64, len(steps))
    return Progress(at=0.0, number=numbers, steps=np.fromiter(steps.values(), np.float64, len(steps)))


def _has_advanced(before: WorkerStatus | None, after: WorkerStatus) -> bool:
    """Whether the reported steps have changed."""
    old = None if before is None else before.reading
    new = after.reading
    return new is not None and new.generation > 0 and (old is None or not old.generation or old.steps != new.steps)


def _is_relevant(before: WorkerStatus, after: WorkerStatus) -> bool:
    """Whether more than the reported steps has changed."""
    if before.state != after.state or (before.reading is None) != (after.reading is None):
        return True
    old, new = before.reading, after.reading
    if old is None or new is None:
        return False
    return (old.flags, old.generation, old.saved) != (new.flags, new.generation, new.saved)
