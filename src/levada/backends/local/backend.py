"""Jobs as processes of this machine, and of others whose agents have joined."""

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
from levada.backends.local.agents import Agents, tell_machine
from levada.backends.local.crew import IN_PROCESS
from levada.backends.local.devices import Nvml
from levada.backends.local.gang import Gang
from levada.backends.local.hands import HandsOf
from levada.backends.local.hosts import Here, Host
from levada.backends.local.machine import Machine, is_real, start_mps
from levada.backends.local.messages import (
    LOST,
    RUNS,
    STARTING,
    UNREACHABLE,
    Forget,
    Hurry,
    Kept,
    News,
    Sighting,
    Stood,
)
from levada.backends.local.output import Output
from levada.backends.local.record import Record, Stage, load
from levada.backends.local.roster import covering, started_in
from levada.backends.local.supervisor import Supervisor
from levada.backends.protocol import Capabilities, Launch, LogLine, Note, Observation, Report, Seen, Socket, WorkerSeen
from levada.core.cluster import Cluster, Foreign, Node
from levada.core.events import Event, Progress
from levada.core.plan import Op, OpKind
from levada.errors import LevadaError, Refused

T = TypeVar("T")
_log = logging.getLogger(__name__)
#: How often gangs in the middle of something look around, and the least time between two tellings of progress.
_STEP_S, _PROGRESS_S = 0.05, 0.25
#: No job has had so many generations of workers.
_MOST_WORLDS = 1 << 40


class LocalBackend:
    """Runs jobs below *home* on *nodes* of this machine. `token_for(job, number, worker)` makes a worker's token."""

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
        #: Of all time limits: somebody who sets the machine's clock must not end them.
        self._clock = MachineClock()
        self._supervisor = Supervisor(home, self.hear, str(checkpoints.absolute()) if checkpoints else "")
        self.here = Here(self._supervisor, tuple(nodes), address)
        self.hosts: dict[str, Host] = {self.here.name: self.here}
        self.gangs: dict[str, Gang] = {}
        self.agents = Agents(self, silence_s)
        self._stood: dict[str, Stood] = {}
        self.hurried: set[str] = set()
        self._troubles: dict[str, str] = {}
        self._woken = asyncio.Event()
        self._progress: dict[int, float] = {}
        self._told_progress = 0.0
        self._events: list[Event] = []
        self._notes: list[Note] = []
        self._queue: asyncio.Queue[Report] = asyncio.Queue()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._tasks: list[asyncio.Task[None]] = []
        #: Why nothing more can be heard; empty while all is well.
        self._broken = ""
        self._is_open = self._is_closed = False
        self._nvml = nvml
        #: What was told of others' use before this process.
        self._foreign: Sequence[Foreign] = ()
        self.capabilities = Capabilities(in_place_with_runtime=IN_PROCESS, fractions=True)

    # --- life -------------------------------------------------------------------------------------------------------

    async def open(self, epoch: int, foreign: Sequence[Foreign] = ()) -> Observation:
        """Finds what runs, goes on with what was under way, and tells what ended while nobody watched."""
        self.epoch, self._foreign = epoch, foreign
        self.here.foreign = self.foreign_on(self.here.nodes)
        self._supervisor.take_epoch(epoch)
        await self._supervisor.open()
        records = await asyncio.to_thread(self._records)
        self.here.mps_pipe = await asyncio.to_thread(start_mps, self.here.nodes, self.home)
        # From here on nothing is awaited: the observation is of one moment. No job controller exists before it and
        # none steps before it has seen the workers of every machine: it would start workers that run already.
        self._is_open = True
        for record in records:
            record.since = min(record.since, self._clock.now())  # the clock was perhaps set back
            self.gangs[record.job] = Gang(record, HandsOf(self, record))
        self.agents.load()
        for gang in self.gangs.values():
            # Before anything is observed: an end or a loss that is found now is told once.
            gang.tell_end_again()
            gang.tell_losses_again(lambda node: self.host_of(node) is None)
        observed = [host.everything() for host in list(self.hosts.values())]
        for news in observed:
            self._observe_workers(news)
        for job in list(self.gangs):
            self.step(job)
        for news in observed:
            self._observe_files(news)
        self.flush()
        told = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        self._depend_on(asyncio.create_task(self._supervisor.watches()))
        self._depend_on(asyncio.create_task(self._run()))
        if is_real(self.here.nodes):
            machine = Machine(self.here.nodes[0], self.home, self._look_at, self._nvml)
            self._depend_on(asyncio.create_task(machine.run()))
        return Observation(
            report=Report(
                events=tuple(event for report in told for event in report.events),
                notes=tuple(note for report in told for note in report.notes),
            ),
            running=self._running(),
            cluster=self._cluster(),
        )

    def _depend_on(self, task: asyncio.Task[None]) -> None:
        """Without this one the backend is deaf: whoever listens shall know."""
        self._tasks.append(task)
        task.add_done_callback(self._break)

    def _break(self, task: asyncio.Task[None]) -> None:
        if self._is_closed or self._broken:
            return
        trouble = None if task.cancelled() else task.exception()
        why = str(trouble) if isinstance(trouble, LevadaError) else f"the backend stopped ({trouble!r})"
        self._broken = f"{why}; jobs go on without it: start the server again"
        self._queue.put_nowait(Report())

    async def close(self) -> None:
        """Stops watching; what runs goes on."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._supervisor.close()
        self._writer.shutdown(wait=False)

    async def stop_all(self) -> None:
        """Returns when all workers have saved and left; their jobs start again when somebody says so."""
        while running := [job for job, gang in self.gangs.items() if gang.alive() or gang.starts()]:
            for job in running:
                self.gangs[job].quit(self._clock.now())
                self._after(job, self.gangs[job])
            await asyncio.sleep(_STEP_S)

    def _records(self) -> list[Record]:
        folders = self.home / "jobs"
        found = [load(folder) for folder in sorted(folders.iterdir())] if folders.exists() else []
        return [record for record in found if record is not None]

    async def _run(self) -> None:
        """Lets time pass for gangs in the middle of something, and tells progress."""
        while True:
            for job in list(self.hurried):
                self.step(job)
            for duty in (self._tell_progress, self.agents.look_after, self.flush):
                self._bear(duty, duty.__name__)
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STEP_S if self.hurried else min(_PROGRESS_S, self.agents.beat_s)):
                    await self._woken.wait()

    # --- what users of the seam ask ---------------------------------------------------------------------------------

    async def cluster(self) -> Cluster:
        """The machines as they are now."""
        return self._cluster()

    def _cluster(self) -> Cluster:
        return Cluster(nodes=tuple(node for host in self.hosts.values() if not host.lost for node in host.nodes))

    async def running(self) -> Mapping[str, Seen]:
        """All that runs, by job id."""
        return self._running()

    def _running(self) -> dict[str, Seen]:
        found = {}
        for job, gang in self.gangs.items():
            if any(seen.alive for seen in gang.seen.values()):
                record = gang.record
                found[job] = Seen(number=record.number, generation=record.generation, running=gang.running)
        return found

    async def apply(self, op: Op, launch: Launch | None) -> None:
        """Takes an operation down; idempotent on (job, generation)."""
        gang = self.gangs.get(op.job)
        if gang is None:
            gang = self._new_gang(op.job, op.number, 0)
        self._supervisor.check(self.epoch)
        if op.kind == OpKind.START and gang.record.stage is Stage.IDLE and op.generation > gang.record.generation:
            await gang.reserve(op.generation)
            self._supervisor.check(self.epoch)
        gang.apply(op, launch, self.epoch, self._clock.now())
        self._after(op.job, gang)
        self.flush()

    def beside(self, work: Callable[[], None]) -> asyncio.Future[None]:
        """*work* on disk beside the loop, in a thread that never waits for those that look for processes."""
        return asyncio.get_running_loop().run_in_executor(self._writer, work)

    async def reports(self) -> AsyncIterator[Report]:
        """What happens, at least once; raises LevadaError once nothing more can be heard."""
        while not (self._broken and self._queue.empty()):
            report = await self._queue.get()
            if report.events or report.notes:
                yield report
        raise LevadaError(self._broken)

    def workers(self, job: str) -> list[WorkerSeen]:
        """The workers of a job, the newest of each index."""
        gang = self.gangs.get(job)
        if gang is None:
            return []
        record = gang.record
        found = []
        for place in record.places:
            member = covering((*record.newcomers, *record.members), place)
            seen = None if member is None else gang.seen.get(member.name)
            if member is None or seen is None:
                continue
            stopping = record.stage is Stage.STOPPING or member in record.leavers
            phase = _PHASES[seen.state] if not (stopping and seen.alive) else "Stopping"
            if member.name in gang.forsaken:
                phase = _PHASES[LOST]
            found.append(
                WorkerSeen(
                    name=member.name,
                    index=place.index if place.group == "worker" else -1 - place.index,
                    node=place.node,
                    devices=place.devices,
                    phase=phase,
                    pid=seen.pid,
                    exit_code=seen.code if seen.code is None or seen.code >= 0 else 128 - seen.code,
                )
            )
        return found

    def logs(
        self,
        job: str,
        *,
        worker: str | None = None,
        tail: int | None = None,
        follow: bool = False,
        previous: bool = False,
    ) -> AsyncIterator[LogLine]:
        """What its workers say."""
        return Output(self, job).lines(worker=worker, tail=tail, follow=follow, previous=previous)

    async def forget(self, job: str) -> None:
        """The job's folder goes, unless something of it runs."""
        gang = self.gangs.get(job)
        if gang is not None and any(seen.alive for seen in gang.seen.values()):
            raise Refused(f"{job} still runs: stop it first")
        self.gangs.pop(job, None)
        self.hurried.discard(job)
        stood = self._stood.pop(job, None)
        number = gang.record.number if gang is not None else 0 if stood is None else stood.number
        for host in self.hosts.values():
            host.do(Forget(job=job, epoch=self.epoch, number=number))

    async def serve_agent(self, socket: Socket) -> None:
        """Speaks with the agent of another machine until one of both goes."""
        await self.agents.serve(socket)

    # --- hearing and telling ----------------------------------------------------------------------------------------

    def hear(self, news: News) -> None:
        """What a supervisor sees."""
        if not self._is_open:
            return  # `open` asks every supervisor for everything
        for job in self._observe_workers(news):
            self.step(job)
        self._observe_files(news)
        self._tell_progress()
        self.flush()

    def _observe_workers(self, news: News) -> dict[str, None]:
        """Records the status of workers; the jobs whose controller has something to do, in their order."""
        for stood in news.stood:
            self._stood[stood.job] = stood
        touched: dict[str, None] = {}
        for seen in news.sightings:
            # A malformed status of one worker must not hide those of the others.
            if self._bear(partial(self._see, seen), f"news of {seen.job}"):
                touched[seen.job] = None
        return touched

    def _observe_files(self, news: News) -> None:
        for kept in news.kept:
            self._bear(partial(self._hear_kept, kept), f"files of {kept.job}")

    def _see(self, seen: Sighting) -> bool:
        """Takes a sighting in; whether its gang should look."""
        gang = self.gangs.get(seen.job)
        if gang is None:
            known = self._stood.get(seen.job)
            if known is None or not seen.alive:
                return False
            # Nobody here knows of it, and yet it runs: whoever asks what runs will hear of it.
            gang = self._new_gang(seen.job, known.number, known.generation)
        before = gang.seen.get(seen.name)
        if seen.state == RUNS:
            # By this machine's clock: that of another one may be wrong.
            since = before.since if before is not None and before.state == RUNS else self._clock.now()
            seen = msgspec.structs.replace(seen, since=since)
        gang.seen[seen.name] = seen
        if seen.state in (LOST, UNREACHABLE):
            gang.forsaken.add(seen.name)
        if _has_advanced(before, seen) and gang.has(seen.name):
            # One that has not begun does not know yet how far the checkpoint is.
            self._progress[gang.record.number] = max(one.steps for one in gang.readings() if one.generation)
        return gang.busy or before is None or _matters(before, seen)

    def _hear_kept(self, kept: Kept) -> None:
        gang = self.gangs.get(kept.job)
        if gang is not None:
            if kept.saved_at:
                gang.saved(kept.saved_at / 1e9)
            if kept.epochs is not None:
                self._progress[gang.record.number] = kept.epochs

    def foreign_on(self, nodes: Sequence[Node]) -> tuple[Foreign, ...]:
        """What others used of these nodes when that was last told, before this process."""
        names = {node.name for node in nodes}
        return tuple(each for each in self._foreign if each.node in names)

    def _look_at(self, node: Node, foreign: tuple[Foreign, ...]) -> None:
        """This machine has changed."""
        tell_machine(self, self.here, (node,), foreign)

    def step(self, job: str) -> None:
        """Lets a gang do what is next."""
        gang = self.gangs.get(job)
        if gang is None:
            self.hurried.discard(job)
        elif self._bear(lambda: self._step(job, gang), job) is None:
            self.hurry(job)

    def _step(self, job: str, gang: Gang) -> bool:
        gang.step(self._clock.now())
        self._after(job, gang)
        return True

    def _bear(self, act: Callable[[], T], whose: str) -> T | None:
        """Does it, or says once why not: nobody else shall suffer, and it is tried again.

        Somebody newer commands, the disk is full, or Levada is wrong.
        """
        try:
            done = act()
        except Exception as trouble:
            if self._troubles.get(whose) != str(trouble):
                self._troubles[whose] = str(trouble)
                _log.warning("%s: %s", whose, trouble, exc_info=not isinstance(trouble, Refused | OSError))
            return None
        self._troubles.pop(whose, None)
        return done

    def hurry(self, job: str) -> None:
        """Something waits for this job: it is looked after every moment."""
        self.hurried.add(job)
        self._woken.set()

    def tell(self, event: Event) -> None:
        """Tells the engine, with the next report."""
        self._events.append(event)

    def note(self, note: Note) -> None:
        """Tells people, with the next report."""
        self._notes.append(note)

    def flush(self) -> None:
        """Sends out what there is to tell, progress first: the steps before an end must not come after it."""
        if self._events or self._notes:
            self._queue.put_nowait(Report(events=(*self._progressed(), *self._events), notes=tuple(self._notes)))
            self._events, self._notes = [], []

    def _tell_progress(self) -> None:
        """As soon as it is heard, if that is not too often: who learns from it takes it for how things are now."""
        now = time.monotonic()
        if self._progress and now - self._told_progress >= _PROGRESS_S:
            self._told_progress = now
            self._events[:0] = self._progressed()

    def tell_progress(self, steps: Mapping[int, float]) -> None:
        """How far these jobs are, by number; it replaces what was heard of them and is not told yet."""
        for number in steps:
            self._progress.pop(number, None)
        self.tell(_progress(steps))

    def _progressed(self) -> list[Progress]:
        """How far jobs are, where that was not told."""
        told, self._progress = self._progress, {}
        return [_progress(told)] if told else []

    def _new_gang(self, job: str, number: int, generation: int) -> Gang:
        record = Record(job=job, number=number, generation=generation, last_world=self._last_world(job, generation))
        gang = self.gangs[job] = Gang(record, HandsOf(self, record))
        if generation:
            # Of an unknown operation: it stays as it is until somebody says what it shall be.
            record.stage, record.kind = Stage.ADRIFT, OpKind.NONE
        return gang

    def _last_world(self, job: str, generation: int) -> int:
        """The highest that any worker or checkpoint tells of, where no record does: a lower one could save nothing."""
        seen = [one for host in self.hosts.values() for one in host.workers(job).values()]
        entered = [one.reading.generation for one in seen if one.reading is not None]
        told = [self._supervisor.saved_by(job), *(started_in(one.name) for one in seen), *entered]
        told.append(self.agents.newest_world(job))
        # What jobs can write may be anything.
        return max([generation, *(world for world in told if world < _MOST_WORLDS)])

    def _after(self, job: str, gang: Gang) -> None:
        """Supervisors look more often while something waits for them."""
        if gang.busy != (job in self.hurried):
            (self.hurry if gang.busy else self.hurried.discard)(job)
            for host in self.hosts_of(gang):
                host.do(Hurry(job=job, epoch=self.epoch, on=gang.busy))

    def hosts_of(self, gang: Gang) -> list[Host]:
        """The machines that have, or had, workers of a gang."""
        record = gang.record
        nodes = {member.node for member in (*record.members, *record.newcomers, *record.leavers)}
        return [host for host in self.hosts.values() if any(node.name in nodes for node in host.nodes)]

    def host_of(self, node: str) -> Host | None:
        """The machine that a node is on; None where it has not joined."""
        hosts = [host for host in self.hosts.values() if not host.lost]
        return next((host for host in hosts if any(other.name == node for other in host.nodes)), None)


_PHASES = {STARTING: "Starting", RUNS: "Running", "ended": "Exited", "lost": "Lost", "unreachable": "Lost"}


def _progress(steps: Mapping[int, float]) -> Progress:
    numbers = np.fromiter(steps.keys(), np.int64, len(steps))
    return Progress(at=0.0, number=numbers, steps=np.fromiter(steps.values(), np.float64, len(steps)))


def _has_advanced(before: Sighting | None, after: Sighting) -> bool:
    """Whether it tells of other steps than before."""
    old = None if before is None else before.reading
    new = after.reading
    return new is not None and new.generation > 0 and (old is None or not old.generation or old.steps != new.steps)


def _matters(before: Sighting, after: Sighting) -> bool:
    """Whether more has changed than how far it is."""
    if before.state != after.state or (before.reading is None) != (after.reading is None):
        return True
    old, new = before.reading, after.reading
    if old is None or new is None:
        return False
    return (old.flags, old.generation, old.saved) != (new.flags, new.generation, new.saved)
