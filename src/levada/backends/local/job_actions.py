"""Side effects of a job controller: commands to supervisors, records, events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from levada.backends.local import environment
from levada.backends.local.job_state import ControllerState
from levada.backends.local.machines import MachineLink
from levada.backends.local.members import ONE_LAUNCHER, Member
from levada.backends.local.supervisor_protocol import (
    STARTING,
    Kill,
    Leave,
    PollFast,
    Publish,
    StartWorker,
    WorkerStatus,
)
from levada.backends.local.worker_files import MemberAddress, WorldFile
from levada.backends.protocol import Note
from levada.core.events import Event

if TYPE_CHECKING:
    from levada.backends.local.backend import LocalBackend


class JobActions(Protocol):
    """The side effects that a job controller needs."""

    def start(self, member: Member, members: Sequence[Member], world: int) -> None:
        """Start a worker that is, or will be, one of *members*."""
        ...

    def publish(self, world: WorldFile) -> None:
        """Send a generation of workers to all machines with workers of the job."""
        ...

    def terminate(self, names: Sequence[str]) -> None:
        """Send SIGTERM, and SIGKILL after the grace period."""
        ...

    def kill(self, names: Sequence[str]) -> None:
        """Send SIGKILL."""
        ...

    def address(self, node: str) -> str:
        """The address at which other machines reach a node."""
        ...

    def port(self, node: str) -> int:
        """Take a free port of a node."""
        ...

    def may_reconnect(self, node: str) -> bool:
        """Whether the machine of a node is disconnected but not lost: its workers are unknown."""
        ...

    def save(self) -> None:
        """Save the record."""
        ...

    async def reserve(self, generation: int, world: int) -> None:
        """Make it durable, in a thread, that no later generation of workers has a number below *world*."""
        ...

    def emit(self, event: Event) -> None:
        """Report an event to the engine."""
        ...

    def report_progress(self, steps: float) -> None:
        """Report the steps of the job to the engine, before any later event."""
        ...

    def note(self, note: Note) -> None:
        """Add a note to the history of the job."""
        ...


class MachineActions:
    """The side effects of one job's controller, carried out by the machines of a backend."""

    def __init__(self, backend: LocalBackend, record: ControllerState) -> None:
        self._backend, self._record = backend, record
        self._durable = (-1, -1)

    def start(self, member: Member, members: Sequence[Member], world: int) -> None:
        """Start a worker; without effect while its machine is disconnected."""
        backend, record = self._backend, self._record
        host = backend.host_of(member.node)
        if host is None or not host.connected:
            return  # it may reconnect before the start limit
        assert record.launch is not None
        context = environment.WorkerContext(
            job=record.job,
            number=record.number,
            world=world,
            members=members,
            master=MemberAddress(members[0].address, record.port),
            launch=record.launch,
            folder=f"{host.home}/jobs/{record.job}",
            batch=record.batch,
            server_url=backend.server_url,
            token=backend.token_for(record.job, record.number, member.name),
            checkpoints=host.checkpoints,
            mps_pipe=host.mps_pipe,
        )
        self._poll_fast(host)
        host.do(
            StartWorker(
                job=record.job,
                epoch=backend.epoch,
                number=record.number,
                generation=record.generation,
                name=member.name,
                spec=environment.spec_of(member, context),
            )
        )
        statuses = backend.controllers[record.job].workers.statuses
        statuses[member.name] = WorkerStatus(job=record.job, name=member.name, state=STARTING)

    def _poll_fast(self, host: MachineLink) -> None:
        self._backend.poll_fast(self._record.job)
        host.do(PollFast(job=self._record.job, epoch=self._backend.epoch, on=True))

    def publish(self, world: WorldFile) -> None:
        """Send a generation of workers to the machines of the job."""
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
        for host in self._backend.hosts_of(self._backend.controllers[record.job]):
            host.do(command)

    def terminate(self, names: Sequence[str]) -> None:
        """Ask workers to leave."""
        for host, present in self._by_host(names):
            host.do(Leave(job=self._record.job, epoch=self._backend.epoch, names=present))

    def kill(self, names: Sequence[str]) -> None:
        """Kill workers."""
        for host, present in self._by_host(names):
            host.do(Kill(job=self._record.job, epoch=self._backend.epoch, names=present))

    def _by_host(self, names: Sequence[str]) -> list[tuple[MachineLink, tuple[str, ...]]]:
        by_host = []
        for host in self._backend.hosts.values():
            workers = host.workers(self._record.job)
            if present := tuple(name for name in names if name in workers):
                by_host.append((host, present))
        return by_host

    def address(self, node: str) -> str:
        """The address of a node; loopback if its machine is not known."""
        host = self._backend.host_of(node)
        return "127.0.0.1" if host is None else host.address

    def port(self, node: str) -> int:
        """Take a free port of a node; 0 if its machine is not known."""
        host = self._backend.host_of(node)
        return 0 if host is None else host.take_port()

    def may_reconnect(self, node: str) -> bool:
        """Whether the machine of a node is disconnected but not lost."""
        host = self._backend.host_of(node)
        return host is not None and not host.connected

    def save(self) -> None:
        """Save the record; wait for the disk only if a generation has changed."""
        record = self._record
        record.note_placed()
        # Later generations must never be lower than these: only they must survive a power failure.
        now = record.generation, record.last_world
        record.save(self._backend.home / "jobs" / record.job, durable=now != self._durable)
        self._durable = now

    async def reserve(self, generation: int, world: int) -> None:
        """Save the record with *world* as its last one; a later `save` of both numbers need not wait for the disk."""
        ahead = msgspec.structs.replace(self._record, last_world=world)
        folder = self._backend.home / "jobs" / ahead.job
        saving = self._backend.in_writer_thread(partial(ahead.save, folder, durable=True))
        try:
            await asyncio.shield(saving)
        except asyncio.CancelledError:
            await saving  # the thread goes on; no other write may overlap with it
            raise
        self._durable = generation, world

    def emit(self, event: Event) -> None:
        """Report an event to the engine."""
        self._backend.emit(event)

    def report_progress(self, steps: float) -> None:
        """Report the steps of the job to the engine."""
        self._backend.report_progress({self._record.number: steps})

    def note(self, note: Note) -> None:
        """Add a note to the history of the job."""
        self._backend.note(note)


def _slots(members: Sequence[Member]) -> dict[str, int]:
    slots: dict[str, int] = {}
    for member in members:
        slots[member.address] = slots.get(member.address, 0) + member.workers
    return slots
