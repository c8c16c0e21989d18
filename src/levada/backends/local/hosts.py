"""A machine as the backend sees it: its nodes, and the supervisor that is told what to do there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from levada.backends.local import logs
from levada.backends.local.messages import Command, News, Sighting
from levada.backends.local.ports import Ports
from levada.backends.local.supervisor import Supervisor
from levada.core.cluster import Foreign, Node


class Host(Protocol):
    """One machine."""

    name: str
    #: Where other machines find it.
    address: str
    nodes: tuple[Node, ...]
    #: The jobs' folders there.
    home: str
    #: For the checkpoints of all machines; empty where each has its own.
    checkpoints: str
    #: Its supervisor can be heard.
    connected: bool
    #: It was silent for too long, and has no nodes until it is back.
    lost: bool
    #: Where its daemon for parts of GPUs listens; empty where there is none.
    mps_pipe: str
    #: What others use of its GPUs.
    foreign: tuple[Foreign, ...]

    def do(self, command: Command) -> None:
        """Passes a command on."""
        ...

    def take_port(self) -> int:
        """A port that is free there."""
        ...

    def everything(self) -> News:
        """All that is known of it."""
        ...

    def workers(self, job: str) -> Mapping[str, Sighting]:
        """The workers of a job there, those that have ended too while their output is kept."""
        ...

    async def log_end(self, job: str, name: str, lines: int) -> logs.Cursor:
        """Where the last so many lines of a worker begin."""
        ...

    async def read_log(self, job: str, name: str, cursor: logs.Cursor, *, rest: bool) -> logs.Chunk:
        """Lines of a worker after *cursor*; with *rest* also an end without a line break."""
        ...


class Here:
    """The machine that the backend itself runs on."""

    def __init__(self, supervisor: Supervisor, nodes: tuple[Node, ...], address: str) -> None:
        self.name = ""
        self.address, self.nodes, self.connected = address, nodes, True
        self.home = str(supervisor.home.absolute())
        self.checkpoints, self.mps_pipe, self.lost = supervisor.checkpoints, "", False
        self.foreign: tuple[Foreign, ...] = ()
        self._supervisor, self._ports = supervisor, Ports()

    def do(self, command: Command) -> None:
        """Passes a command on."""
        self._supervisor.do(command)

    def take_port(self) -> int:
        """A port that is free here."""
        return self._ports.take()

    def everything(self) -> News:
        """All that is known."""
        return self._supervisor.everything()

    def workers(self, job: str) -> Mapping[str, Sighting]:
        """The workers of a job here."""
        known = self._supervisor.jobs.get(job)
        return {} if known is None else {name: worker.seen for name, worker in known.workers.items()}

    async def log_end(self, job: str, name: str, lines: int) -> logs.Cursor:
        """Where the last so many lines of a worker begin."""
        return await self._supervisor.log_end(job, name, lines)

    async def read_log(self, job: str, name: str, cursor: logs.Cursor, *, rest: bool) -> logs.Chunk:
        """Lines of a worker after *cursor*."""
        return await self._supervisor.read_log(job, name, cursor, rest=rest)
