"""Jobs as processes of this machine, and of others whose agents have joined."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from levada.backends.local import environment
from levada.backends.local.files import Address, World
from levada.backends.local.gang import Gang
from levada.backends.local.hosts import Here, Host
from levada.backends.local.messages import (
    RUNS,
    STARTING,
    Forget,
    Hurry,
    Kill,
    Leave,
    News,
    Publish,
    Sighting,
    StartWorker,
    Stood,
)
from levada.backends.local.output import Output
from levada.backends.local.record import Record, Stage, load
from levada.backends.local.roster import Member, covering
from levada.backends.local.supervisor import Supervisor
from levada.backends.protocol import Capabilities, Launch, LogLine, Note, Report, Seen, WorkerSeen
from levada.core.cluster import Cluster, Node
from levada.core.events import Event, Progress
from levada.core.plan import Op, OpKind
from levada.errors import Refused

_log = logging.getLogger(__name__)
#: How often gangs in the middle of something look around, and how often progress is told.
_STEP_S, _PROGRESS_S = 0.05, 1.0


class LocalBackend:
    """Runs jobs below *home* on *nodes* of this machine. `token_for(job, generation)` makes the tokens of workers."""

    def __init__(
        self,
        home: Path,
        nodes: Sequence[Node],
        *,
        server_url: str = "",
        token_for: Callable[[str, int], str] = lambda _job, _generation: "",
        address: str = "127.0.0.1",
    ) -> None:
        self.home = home
        self.server_url, self.token_for = server_url, token_for
        self.epoch = 0
        self._supervisor = Supervisor(home, self.hear)
        self.here = Here(self._supervisor, tuple(nodes), address)
        self.hosts: dict[str, Host] = {self.here.name: self.here}
        self.gangs: dict[str, Gang] = {}
        self._stood: dict[str, Stood] = {}
        self._hurried: set[str] = set()
        self._progress: dict[int, float] = {}
        self._events: list[Event] = []
        self._notes: list[Note] = []
        self._queue: asyncio.Queue[Report] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self.capabilities = Capabilities(live_resize=True, fractions=True)

    # --- life -------------------------------------------------------------------------------------------------------

    async def open(self, epoch: int) -> None:
        """Finds what runs and goes on with what was under way; commands of a lower *epoch* are refused from now on."""
        self.epoch = epoch
        await self._supervisor.open(epoch)
        for job in await asyncio.to_thread(self._records):
            self.gangs[job.job] = Gang(job, _Hands(self, job))
        self.hear(self.here.everything())
        for gang in self.gangs.values():
            gang.tell_end_again()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stops watching; what runs goes on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._supervisor.close()

    def _records(self) -> list[Record]:
        folders = self.home / "jobs"
        found = [load(folder) for folder in sorted(folders.iterdir())] if folders.exists() else []
        return [record for record in found if record is not None]

    async def _run(self) -> None:
        """Lets time pass for gangs in the middle of something, and tells progress."""
        told = time.monotonic()
        while True:
            for job in [job for job, gang in self.gangs.items() if gang.busy]:
                self.step(job)
            if time.monotonic() - told >= _PROGRESS_S:
                told = time.monotonic()
                self._tell_progress()
            self.flush()
            await asyncio.sleep(_STEP_S)

    # --- what users of the seam ask ---------------------------------------------------------------------------------

    async def cluster(self) -> Cluster:
        """The machines as they are now."""
        return Cluster(nodes=tuple(node for host in self.hosts.values() for node in host.nodes))

    async def running(self) -> Mapping[str, Seen]:
        """All that runs, by job id."""
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
        gang.apply(op, launch, self.epoch, time.time())
        self._after(op.job, gang)
        self.flush()

    async def reports(self) -> AsyncIterator[Report]:
        """What happens, at least once."""
        while True:
            yield await self._queue.get()

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
            found.append(
                WorkerSeen(
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
        self._hurried.discard(job)
        for host in self.hosts.values():
            host.do(Forget(job=job, epoch=self.epoch))
        await asyncio.to_thread(shutil.rmtree, self.home / "jobs" / job, True)

    # --- hearing and telling ----------------------------------------------------------------------------------------

    def hear(self, news: News) -> None:
        """What a supervisor sees."""
        for stood in news.stood:
            self._stood[stood.job] = stood
        touched: dict[str, None] = {}
        for seen in news.sightings:
            gang = self.gangs.get(seen.job)
            if gang is None:
                known = self._stood.get(seen.job)
                if known is None or not seen.alive:
                    continue
                # Nobody here knows of it, and yet it runs: whoever asks what runs will hear of it.
                gang = self._new_gang(seen.job, known.number, known.generation)
            before = gang.seen.get(seen.name)
            gang.seen[seen.name] = seen
            if seen.reading is not None:
                self._progress[gang.record.number] = max(reading.steps for reading in [*gang.readings(), seen.reading])
            if gang.busy or before is None or _matters(before, seen):
                touched[seen.job] = None
        for job in touched:
            self.step(job)
        for kept in news.kept:
            gang = self.gangs.get(kept.job)
            if gang is not None:
                if kept.saved_at:
                    gang.saved(kept.saved_at / 1e9)
                if kept.epochs is not None:
                    self._progress[gang.record.number] = kept.epochs
        self.flush()

    def step(self, job: str) -> None:
        """Lets a gang do what is next."""
        gang = self.gangs[job]
        try:
            gang.step(time.time())
            self._after(job, gang)
        except Refused as refused:
            # Somebody newer commands: this one only watches.
            _log.warning("%s", refused)

    def tell(self, event: Event) -> None:
        """Tells the engine, with the next report."""
        self._events.append(event)

    def note(self, note: Note) -> None:
        """Tells people, with the next report."""
        self._notes.append(note)

    def flush(self) -> None:
        """Sends out what there is to tell."""
        if self._events or self._notes:
            self._queue.put_nowait(Report(events=tuple(self._events), notes=tuple(self._notes)))
            self._events, self._notes = [], []

    def _tell_progress(self) -> None:
        if self._progress:
            numbers = np.fromiter(self._progress.keys(), np.int64, len(self._progress))
            steps = np.fromiter(self._progress.values(), np.float64, len(self._progress))
            self._progress = {}
            self.tell(Progress(at=0.0, number=numbers, steps=steps))

    def _new_gang(self, job: str, number: int, generation: int) -> Gang:
        record = Record(job=job, number=number, generation=generation, last_world=generation)
        gang = self.gangs[job] = Gang(record, _Hands(self, record))
        if generation:
            # Of an unknown operation: it stays as it is until somebody says what it shall be.
            record.stage, record.kind = Stage.ADRIFT, OpKind.NONE
        return gang

    def _after(self, job: str, gang: Gang) -> None:
        """Supervisors look more often while something waits for them."""
        if gang.busy != (job in self._hurried):
            (self._hurried.add if gang.busy else self._hurried.discard)(job)
            for host in self._hosts_of(gang):
                host.do(Hurry(job=job, epoch=self.epoch, on=gang.busy))

    def _hosts_of(self, gang: Gang) -> list[Host]:
        record = gang.record
        nodes = {member.node for member in (*record.members, *record.newcomers, *record.leavers)}
        return [host for host in self.hosts.values() if any(node.name in nodes for node in host.nodes)]

    def host_of(self, node: str) -> Host | None:
        """The machine that a node is on; None where it has not joined."""
        return next((host for host in self.hosts.values() if any(other.name == node for other in host.nodes)), None)


class _Hands:
    """What the gang of one job does, it does with these."""

    def __init__(self, backend: LocalBackend, record: Record) -> None:
        self._backend, self._record = backend, record

    def start(self, member: Member, members: Sequence[Member], world: int) -> None:
        backend, record = self._backend, self._record
        host = backend.host_of(member.node)
        if host is None or not host.connected:
            return  # it may come back before the time is up
        assert record.launch is not None
        about = environment.About(
            job=record.job,
            world=world,
            members=members,
            master=Address(members[0].address, record.port),
            launch=record.launch,
            folder=f"{host.home}/jobs/{record.job}",
            batch=record.batch,
            server_url=backend.server_url,
            token=backend.token_for(record.job, record.generation),
            mps_pipe=host.mps_pipe,
        )
        self._hurry(host)
        host.do(
            StartWorker(
                job=record.job,
                epoch=backend.epoch,
                number=record.number,
                generation=record.generation,
                name=member.name,
                spec=environment.spec_of(member, about),
            )
        )
        gang = backend.gangs[record.job]
        gang.seen[member.name] = Sighting(job=record.job, name=member.name, state=STARTING)

    def _hurry(self, host: Host) -> None:
        self._backend._hurried.add(self._record.job)
        host.do(Hurry(job=self._record.job, epoch=self._backend.epoch, on=True))

    def publish(self, world: World) -> None:
        record = self._record
        members = record.members
        hosts = tuple(f"{address}:{slots}" for address, slots in _slots(members).items())
        horovod = record.launch is not None and record.launch.framework == "horovod"
        command = Publish(
            job=record.job,
            epoch=self._backend.epoch,
            number=record.number,
            generation=record.generation,
            world=world,
            hosts=hosts if horovod else (),
        )
        for host in self._backend._hosts_of(self._backend.gangs[record.job]):
            host.do(command)

    def leave(self, names: Sequence[str]) -> None:
        for host, found in self._where(names):
            host.do(Leave(job=self._record.job, epoch=self._backend.epoch, names=found))

    def kill(self, names: Sequence[str]) -> None:
        for host, found in self._where(names):
            host.do(Kill(job=self._record.job, epoch=self._backend.epoch, names=found))

    def _where(self, names: Sequence[str]) -> list[tuple[Host, tuple[str, ...]]]:
        found = []
        for host in self._backend.hosts.values():
            there = host.workers(self._record.job)
            if mine := tuple(name for name in names if name in there):
                found.append((host, mine))
        return found

    def address(self, node: str) -> str:
        host = self._backend.host_of(node)
        return "127.0.0.1" if host is None else host.address

    def port(self, node: str) -> int:
        host = self._backend.host_of(node)
        return 0 if host is None else host.take_port()

    def save(self) -> None:
        self._record.save(self._backend.home / "jobs" / self._record.job)

    def tell(self, event: Event) -> None:
        self._backend.tell(event)

    def note(self, note: Note) -> None:
        self._backend.note(note)


_PHASES = {STARTING: "Starting", RUNS: "Running", "ended": "Exited", "lost": "Lost", "unreachable": "Lost"}


def _matters(before: Sighting, after: Sighting) -> bool:
    """Whether more has changed than how far it is."""
    if before.state != after.state or (before.reading is None) != (after.reading is None):
        return True
    old, new = before.reading, after.reading
    if old is None or new is None:
        return False
    return (old.flags, old.generation, old.saved) != (new.flags, new.generation, new.saved)


def _slots(members: Sequence[Member]) -> dict[str, int]:
    slots: dict[str, int] = {}
    for member in members:
        slots[member.address] = slots.get(member.address, 0) + member.workers
    return slots
