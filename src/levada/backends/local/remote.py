"""Remote machine: the server's end of the connection with an agent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from levada.backends.local import agent_protocol, agent_validation
from levada.backends.local.logs import Chunk, Cursor
from levada.backends.local.ports import FIRST, LAST
from levada.backends.local.supervisor_protocol import (
    LOST,
    STARTING,
    UNREACHABLE,
    CheckpointStatus,
    Command,
    Forget,
    Leave,
    StartWorker,
    StatusUpdate,
    WorkerStatus,
)
from levada.backends.protocol import Socket
from levada.core.cluster import Foreign, Node

_log = logging.getLogger(__name__)
#: Time limit for an answer about logs.
_ANSWER_S = 10.0
#: Number of free ports remembered per machine, newest first.
_PORTS = 64
#: Least time between two log lines about rejected reports of one agent.
_COMPLAIN_S = 60.0
#: Workers and jobs that an agent was not told to run: at most this many are remembered per connection.
_MAX_STRAYS = 10_000


class AgentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that has joined, as stored for the next server."""

    name: str
    address: str
    home: str
    nodes: tuple[Node, ...]
    checkpoints: str = ""
    mps_pipe: str = ""
    #: Identifies its state directory; empty for agents of older versions.
    id: str = ""


class RemoteHost:
    """A remote machine.

    It is *connected* once its agent has sent its full status, and *lost* when it was silent for too long.
    """

    def __init__(self, known: AgentRecord) -> None:
        self.name = known.name
        self.connected = False
        self.lost = False
        self.last_message = time.monotonic()
        self.foreign: tuple[Foreign, ...] = ()
        #: Number of rejected reports.
        self.rejected = 0
        #: For jobs without a record here: the newest generation of workers for which it has folders.
        self.stray_worlds: dict[str, int] = {}
        self._stopped_strays: set[tuple[str, str]] = set()
        self._last_complaint: float | None = None
        self._ports: deque[int] = deque(maxlen=_PORTS)
        self._statuses: dict[str, dict[str, WorkerStatus]] = {}
        #: The parts of a full status received so far.
        self._partial_workers: dict[tuple[str, str], WorkerStatus] = {}
        self._partial_checkpoints: dict[str, CheckpointStatus] = {}
        self._socket: Socket | None = None
        self._outbox: asyncio.Queue[str] = asyncio.Queue()
        self._unacked: deque[agent_protocol.Execute] = deque()
        self._number = 0
        self._questions: dict[int, asyncio.Future[Chunk]] = {}
        self.update(known)

    def update(self, known: AgentRecord) -> None:
        """Update the machine from a registration of its agent."""
        self.known = known
        self.address, self.home, self.nodes = known.address, known.home, known.nodes
        self.checkpoints, self.mps_pipe = known.checkpoints, known.mps_pipe

    # --- connection -------------------------------------------------------------------------------------------------

    async def attach(self, socket: Socket, ports: tuple[int, ...], registered: agent_protocol.AgentRegistered) -> None:
        """Take over a new connection of the agent; all unacknowledged commands are sent again."""
        # If the same agent reconnects, it no longer listens on its old connection.
        await self.send_rejection(f"another agent named {self.name} took over: give this one another --name")
        self._socket = socket
        self._partial_workers, self._partial_checkpoints = {}, {}
        self._stopped_strays.clear()
        self.stray_worlds.clear()
        self._ports.extend(agent_validation.usable_ports(ports))
        self._outbox = asyncio.Queue()
        self._post(registered)
        for command in self._unacked:
            self._post(command)
        self.last_message = time.monotonic()

    async def send_rejection(self, why: str) -> None:
        """Close the connection, if any, and tell the agent not to reconnect."""
        if self._socket is not None:
            with contextlib.suppress(ConnectionError):
                await self._socket.send(agent_protocol.encode(agent_protocol.AgentRejected(why=why)))
                await self._socket.close()

    def detach(self, socket: Socket) -> None:
        """Forget a closed connection, unless a newer one has replaced it."""
        if self._socket is socket:
            self._socket, self.connected = None, False
            for question in self._questions.values():
                if not question.done():
                    question.set_exception(ConnectionError("the machine is unreachable"))

    async def send_all(self, socket: Socket) -> None:
        """Send queued messages until the connection ends."""
        outbox = self._outbox
        while self._socket is socket:
            await socket.send(await outbox.get())

    def _post(self, message: agent_protocol.FromServer) -> None:
        self._outbox.put_nowait(agent_protocol.encode(message))

    def send_heartbeat(self) -> None:
        """Send a heartbeat, if connected."""
        if self._socket is not None:
            self._post(agent_protocol.Heartbeat())

    def receive(self, message: agent_protocol.FromAgent) -> None:
        """Take in a message of the agent: heartbeats, acknowledgements and logs are handled here."""
        self.last_message = time.monotonic()
        if isinstance(message, agent_protocol.Heartbeat):
            self._ports.extend(agent_validation.usable_ports(message.ports))
        elif isinstance(message, agent_protocol.Ack):
            if message.number > self._number:
                self.reject(["acknowledgement of a command that was never sent"])
                return
            while self._unacked and self._unacked[0].number <= message.number:
                self._unacked.popleft()
        elif isinstance(message, agent_protocol.LogAnswer):
            question = self._questions.pop(message.question, None)
            if question is None or question.done():
                return  # too late
            if agent_validation.is_chunk(message.chunk):
                question.set_result(message.chunk)
            else:
                self.reject(["log lines without times"])
                question.set_exception(ConnectionError("the machine sent an invalid log"))

    def reject(self, reasons: Sequence[str]) -> None:
        """Count reports that the agent may not make; logs at most one line per minute."""
        self.rejected += len(reasons)
        now = time.monotonic()
        if self._last_complaint is None or now - self._last_complaint >= _COMPLAIN_S:
            self._last_complaint = now
            _log.warning("ignoring reports of agent %s (%d so far): %s", self.name, self.rejected, reasons[0])

    def note_worlds(self, worlds: Mapping[str, int]) -> None:
        """Remember generations with folders on this machine: a job without a record must not reuse them."""
        for job, world in worlds.items():
            if job in self.stray_worlds or len(self.stray_worlds) < _MAX_STRAYS:
                self.stray_worlds[job] = max(self.stray_worlds.get(job, 0), world)

    def stop_strays(self, strays: Sequence[WorkerStatus], epoch: int) -> None:
        """Tells the agent to stop workers that it was not told to run: once per connection."""
        names: dict[str, list[str]] = {}
        for status in strays:
            if len(self._stopped_strays) < _MAX_STRAYS and (status.job, status.name) not in self._stopped_strays:
                self._stopped_strays.add((status.job, status.name))
                names.setdefault(status.job, []).append(status.name)
        for job, strays_of_job in names.items():
            # Not repeated: the agent reports them again after a reconnect, if they are still there.
            self._number += 1
            self._post(
                agent_protocol.Execute(
                    number=self._number, command=Leave(job=job, epoch=epoch, names=tuple(strays_of_job))
                )
            )

    # --- status -----------------------------------------------------------------------------------------------------

    def add_part(self, part: StatusUpdate) -> None:
        """Store a part of a full status until the rest has arrived."""
        self._partial_workers.update(((status.job, status.name), status) for status in part.workers)
        self._partial_checkpoints.update((checkpoint.job, checkpoint) for checkpoint in part.checkpoints)

    def apply(self, message: agent_protocol.StatusMessage) -> StatusUpdate:
        """Apply a status message; workers missing from a full status are lost. Returns what has changed."""
        fresh, checkpoints = list(message.news.workers), message.news.checkpoints
        if message.all:
            self.add_part(message.news)
            fresh, checkpoints = list(self._partial_workers.values()), tuple(self._partial_checkpoints.values())
            self._partial_workers, self._partial_checkpoints = {}, {}
            self.connected = True
            commands = [execute.command for execute in self._unacked]
            known = {(command.job, command.name) for command in commands if isinstance(command, StartWorker)}
            known |= {(status.job, status.name) for status in fresh}
            fresh += [
                msgspec.structs.replace(status, state=LOST, why="is no longer known to its machine")
                for workers in self._statuses.values()
                for status in workers.values()
                if (status.job, status.name) not in known and (status.alive or status.state == UNREACHABLE)
            ]
        for status in fresh:
            self._statuses.setdefault(status.job, {})[status.name] = status
        return StatusUpdate(workers=tuple(fresh), checkpoints=checkpoints)

    def assume(self, status: WorkerStatus) -> None:
        """Record the presumed status of a worker until the agent reports it."""
        self._statuses.setdefault(status.job, {})[status.name] = status

    def mark_lost(self) -> StatusUpdate:
        """Mark a silent machine as lost and its live workers as unreachable; returns what has changed."""
        self.lost, self.connected = True, False
        # Unacknowledged workers will start on other machines: this one must not start them when it reconnects.
        self._unacked = deque(execute for execute in self._unacked if not isinstance(execute.command, StartWorker))
        changed = []
        for workers in self._statuses.values():
            for name, status in workers.items():
                if status.alive:
                    workers[name] = msgspec.structs.replace(status, state=UNREACHABLE)
                    changed.append(workers[name])
        return StatusUpdate(workers=tuple(changed))

    # --- machine link -----------------------------------------------------------------------------------------------

    def do(self, command: Command) -> None:
        """Send a command, now or when the agent reconnects."""
        self._number += 1
        message = agent_protocol.Execute(number=self._number, command=command)
        self._unacked.append(message)
        if isinstance(command, StartWorker):
            self.assume(WorkerStatus(job=command.job, name=command.name, state=STARTING))
        elif isinstance(command, Forget):
            self._statuses.pop(command.job, None)
        if self._socket is not None:
            self._post(message)

    def take_port(self) -> int:
        """Take a port that its agent reported as free, or a random one."""
        return self._ports.pop() if self._ports else random.randint(FIRST, LAST)

    def full_status(self) -> StatusUpdate:
        """The last known status of all workers."""
        return StatusUpdate(workers=tuple(status for workers in self._statuses.values() for status in workers.values()))

    def workers(self, job: str) -> Mapping[str, WorkerStatus]:
        """The workers of a job there."""
        return self._statuses.get(job, {})

    async def log_end(self, job: str, name: str, lines: int) -> Cursor:
        """The position of the last *lines* lines of a worker's log."""
        return (await self._ask(job, name, Cursor(), tail=lines)).next

    async def read_log(self, job: str, name: str, cursor: Cursor, *, rest: bool) -> Chunk:
        """Log lines of a worker after *cursor*; none while the machine is disconnected."""
        return await self._ask(job, name, cursor, rest=rest)

    async def _ask(self, job: str, name: str, cursor: Cursor, *, rest: bool = False, tail: int | None = None) -> Chunk:
        if not self.connected:
            return Chunk((), cursor)
        self._number += 1
        number = self._number
        answer: asyncio.Future[Chunk] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        self._post(agent_protocol.AskLog(question=number, job=job, name=name, cursor=cursor, rest=rest, tail=tail))
        try:
            return await asyncio.wait_for(answer, _ANSWER_S)
        except (TimeoutError, ConnectionError):
            return Chunk((), cursor)
        finally:
            self._questions.pop(number, None)
