"""What the gang of one job does, it does with these: commands to the machines that its workers are on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from levada.backends.local import environment
from levada.backends.local.files import Address, World
from levada.backends.local.hosts import Host
from levada.backends.local.messages import STARTING, Hurry, Kill, Leave, Publish, Sighting, StartWorker
from levada.backends.local.record import Record
from levada.backends.local.roster import ONE_LAUNCHER, Member
from levada.backends.protocol import Note
from levada.core.events import Event

if TYPE_CHECKING:
    from levada.backends.local.backend import LocalBackend


class Hands(Protocol):
    """What a gang can do."""

    def start(self, member: Member, members: Sequence[Member], world: int) -> None:
        """Starts a worker that is, or will be, one of *members*."""
        ...

    def publish(self, world: World) -> None:
        """Makes a world known to all machines with workers of the job."""
        ...

    def leave(self, names: Sequence[str]) -> None:
        """SIGTERM, and SIGKILL after the grace period."""
        ...

    def kill(self, names: Sequence[str]) -> None:
        """SIGKILL."""
        ...

    def address(self, node: str) -> str:
        """Where other machines find a node."""
        ...

    def port(self, node: str) -> int:
        """A free port of a node."""
        ...

    def is_awaited(self, node: str) -> bool:
        """Whether the machine of a node is away and may come back: what runs there is not known."""
        ...

    def save(self) -> None:
        """Keeps the record."""
        ...

    async def reserve(self, generation: int, world: int) -> None:
        """Sees to it, beside the loop, that no later world has a number below this one, whatever happens."""
        ...

    def tell(self, event: Event) -> None:
        """Tells the engine."""
        ...

    def progress(self, steps: float) -> None:
        """Tells the engine how far the job is, before whatever is told next."""
        ...

    def note(self, note: Note) -> None:
        """Tells people."""
        ...


class HandsOf:
    """What the gang of one job does, it does with these."""

    def __init__(self, backend: LocalBackend, record: Record) -> None:
        self._backend, self._record = backend, record
        self._durable = (-1, -1)

    def start(self, member: Member, members: Sequence[Member], world: int) -> None:
        """Starts a worker."""
        backend, record = self._backend, self._record
        host = backend.host_of(member.node)
        if host is None or not host.connected:
            return  # it may come back before the time is up
        assert record.launch is not None
        about = environment.About(
            job=record.job,
            number=record.number,
            world=world,
            members=members,
            master=Address(members[0].address, record.port),
            launch=record.launch,
            folder=f"{host.home}/jobs/{record.job}",
            batch=record.batch,
            server_url=backend.server_url,
            token=backend.token_for(record.job, record.number, member.name),
            checkpoints=host.checkpoints,
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
        self._backend.hurry(self._record.job)
        host.do(Hurry(job=self._record.job, epoch=self._backend.epoch, on=True))

    def publish(self, world: World) -> None:
        """Makes a world known."""
        record = self._record
        members = record.members
        hosts = tuple(f"{address}:{slots}" for address, slots in _slots(members).items())
        launched = record.launch is not None and record.launch.framework in ONE_LAUNCHER
        command = Publish(
            job=record.job,
            epoch=self._backend.epoch,
            number=record.number,
            generation=record.generation,
            world=world,
            hosts=hosts if launched else (),
        )
        for host in self._backend.hosts_of(self._backend.gangs[record.job]):
            host.do(command)

    def leave(self, names: Sequence[str]) -> None:
        """Asks workers to leave."""
        for host, found in self._where(names):
            host.do(Leave(job=self._record.job, epoch=self._backend.epoch, names=found))

    def kill(self, names: Sequence[str]) -> None:
        """Ends workers."""
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
        """Where a node is found."""
        host = self._backend.host_of(node)
        return "127.0.0.1" if host is None else host.address

    def port(self, node: str) -> int:
        """A free port of a node."""
        host = self._backend.host_of(node)
        return 0 if host is None else host.take_port()

    def is_awaited(self, node: str) -> bool:
        """Whether the machine of a node is away and may come back."""
        host = self._backend.host_of(node)
        return host is not None and not host.connected

    def save(self) -> None:
        """Keeps the record."""
        record = self._record
        record.note_placed()
        # Only what a later generation must never fall below waits for the disk.
        now = record.generation, record.last_world
        record.save(self._backend.home / "jobs" / record.job, durable=now != self._durable)
        self._durable = now

    async def reserve(self, generation: int, world: int) -> None:
        """Keeps the record as it is with that world for its last; what `save` keeps of them then need not wait."""
        ahead = msgspec.structs.replace(self._record, last_world=world)
        folder = self._backend.home / "jobs" / ahead.job
        keeping = self._backend.beside(partial(ahead.save, folder, durable=True))
        try:
            await asyncio.shield(keeping)
        except asyncio.CancelledError:
            await keeping  # it goes on all the same, and nobody else must write there meanwhile
            raise
        self._durable = generation, world

    def tell(self, event: Event) -> None:
        """Tells the engine."""
        self._backend.tell(event)

    def progress(self, steps: float) -> None:
        """Tells the engine how far the job is."""
        self._backend.tell_progress({self._record.number: steps})

    def note(self, note: Note) -> None:
        """Tells people."""
        self._backend.note(note)


def _slots(members: Sequence[Member]) -> dict[str, int]:
    slots: dict[str, int] = {}
    for member in members:
        slots[member.address] = slots.get(member.address, 0) + member.workers
    return slots
