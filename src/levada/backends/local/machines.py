"""Machines as the backend uses them: nodes, and commands to their supervisor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from levada.backends.local import logs
from levada.backends.local.ports import Ports
from levada.backends.local.supervisor import Supervisor
from levada.backends.local.supervisor_protocol import Command, StatusUpdate, WorkerStatus
from levada.core.cluster import Foreign, Node


class MachineLink(Protocol):
    """A machine, local or remote."""

    name: str
    #: At which other machines reach it.
    address: str
    nodes: tuple[Node, ...]
    #: The state directory there; jobs are below it.
    home: str
    #: Checkpoint directory shared by all machines; empty if each has its own.
    checkpoints: str
    #: Its supervisor is connected and has sent its full status.
    connected: bool
    #: It was silent for too long; it has no nodes until it reconnects.
    lost: bool
    #: Pipe folder of its MPS daemon, for fractions of GPUs; empty if there is none.
    mps_pipe: str
    #: Use of its GPUs by processes that are not Levada's.
    foreign: tuple[Foreign, ...]

    def do(self, command: Command) -> None:
        """Send a command to its supervisor."""
        ...

    def take_port(self) -> int:
        """Take a port that is free there."""
        ...

    def full_status(self) -> StatusUpdate:
        """The last known status of all its workers and checkpoints."""
        ...

    def workers(self, job: str) -> Mapping[str, WorkerStatus]:
        """The workers of a job there, including ended ones whose logs are still stored."""
        ...

    async def log_end(self, job: str, name: str, lines: int) -> logs.Cursor:
        """The position of the last *lines* lines of a worker's log."""
        ...

    async def read_log(self, job: str, name: str, cursor: logs.Cursor, *, rest: bool) -> logs.Chunk:
        """Log lines of a worker after *cursor*; with *rest* also a last line without a line break."""
        ...


class LocalMachine:
    """The machine that the backend runs on."""

    def __init__(self, supervisor: Supervisor, nodes: tuple[Node, ...], address: str) -> None:
        self.name = ""
        self.address, self.nodes, self.connected = address, nodes, True
        self.home = str(supervisor.home.absolute())
        self.checkpoints, self.mps_pipe, self.lost = supervisor.checkpoints, "", False
        self.foreign: tuple[Foreign, ...] = ()
        self._supervisor, self._ports = supervisor, Ports()

    def do(self, command: Command) -> None:
        """Send a command to the supervisor."""
        self._supervisor.do(command)

    def take_port(self) -> int:
        """Take a port that is free here."""
        return self._ports.take()

    def full_status(self) -> StatusUpdate:
        """The current status of all workers and checkpoints."""
        return self._supervisor.full_status()

    def workers(self, job: str) -> Mapping[str, WorkerStatus]:
        """The workers of a job here."""
        local = self._supervisor.jobs.get(job)
        return {} if local is None else {name: worker.status for name, worker in local.workers.items()}

    async def log_end(self, job: str, name: str, lines: int) -> logs.Cursor:
        """The position of the last *lines* lines of a worker's log."""
        return await self._supervisor.log_end(job, name, lines)

    async def read_log(self, job: str, name: str, cursor: logs.Cursor, *, rest: bool) -> logs.Chunk:
        """Log lines of a worker after *cursor*."""
        return await self._supervisor.read_log(job, name, cursor, rest=rest)
