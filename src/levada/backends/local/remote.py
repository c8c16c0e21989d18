"""A machine whose agent has joined over a connection of its own, as the backend sees it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from levada.backends.local import claims, wire
from levada.backends.local.logs import Chunk, Cursor
from levada.backends.local.messages import (
    LOST,
    STARTING,
    UNREACHABLE,
    Command,
    Forget,
    Kept,
    Leave,
    News,
    Sighting,
    StartWorker,
)
from levada.backends.local.ports import FIRST, LAST
from levada.backends.protocol import Socket
from levada.core.cluster import Foreign, Node

_log = logging.getLogger(__name__)
#: So long a machine has to answer a question about its logs.
_ANSWER_S = 10.0
#: Of the free ports that an agent tells the newest count.
_PORTS = 64
#: Rejected reports of one agent are logged at most this often.
_COMPLAIN_S = 60.0
#: Of workers and jobs that its agent was not told to run, this many are taken notice of per connection.
_MOST_STRAYS = 10_000


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that has joined once: what is kept of it while the server is away."""

    name: str
    address: str
    home: str
    nodes: tuple[Node, ...]
    checkpoints: str = ""
    mps_pipe: str = ""
    #: Of its folder; agents of older versions told none.
    id: str = ""


class RemoteHost:
    """Another machine. It is *connected* once its agent has told all, and *lost* when it was silent for too long."""

    def __init__(self, known: Known) -> None:
        self.name = known.name
        self.connected = False
        self.lost = False
        self.heard = time.monotonic()
        self.foreign: tuple[Foreign, ...] = ()
        #: Reports that its agent had no right to make.
        self.rejected = 0
        #: The newest generation of workers it has folders of, of jobs that this server has no record of.
        self.stray_worlds: dict[str, int] = {}
        self._sent_away: set[tuple[str, str]] = set()
        self._complained: float | None = None
        self._ports: deque[int] = deque(maxlen=_PORTS)
        self._seen: dict[str, dict[str, Sighting]] = {}
        #: Of all that its agent sees, what it has told so far.
        self._told_so_far: dict[tuple[str, str], Sighting] = {}
        self._kept_so_far: dict[str, Kept] = {}
        self._socket: Socket | None = None
        self._outbox: asyncio.Queue[str] = asyncio.Queue()
        self._untaken: deque[wire.Do] = deque()
        self._number = 0
        self._questions: dict[int, asyncio.Future[Chunk]] = {}
        self.update(known)

    def update(self, known: Known) -> None:
        """Takes over what its agent says of it now."""
        self.known = known
        self.address, self.home, self.nodes = known.address, known.home, known.nodes
        self.checkpoints, self.mps_pipe = known.checkpoints, known.mps_pipe

    # --- the connection ---------------------------------------------------------------------------------------------

    async def attach(self, socket: Socket, ports: tuple[int, ...], welcome: wire.Welcome) -> None:
        """The agent is there, perhaps again: it gets all commands that it may not have."""
        # Where it is the same agent again, it does not listen there any more.
        await self.dismiss(f"another agent named {self.name} took over: give this one another --name")
        self._socket = socket
        self._told_so_far, self._kept_so_far = {}, {}
        self._sent_away.clear()
        self.stray_worlds.clear()
        self._ports.extend(claims.usable_ports(ports))
        self._outbox = asyncio.Queue()
        self._post(welcome)
        for command in self._untaken:
            self._post(command)
        self.heard = time.monotonic()

    async def dismiss(self, why: str) -> None:
        """Ends the connection for good, where there is one."""
        if self._socket is not None:
            with contextlib.suppress(ConnectionError):
                await self._socket.send(wire.encode(wire.Goodbye(why=why)))
                await self._socket.close()

    def detach(self, socket: Socket) -> None:
        """That connection is over; a newer one may have taken its place."""
        if self._socket is socket:
            self._socket, self.connected = None, False
            for question in self._questions.values():
                if not question.done():
                    question.set_exception(ConnectionError("the machine is out of reach"))

    async def send_all(self, socket: Socket) -> None:
        """Sends what is there to be sent, until the connection ends."""
        outbox = self._outbox
        while self._socket is socket:
            await socket.send(await outbox.get())

    def _post(self, message: wire.FromServer) -> None:
        self._outbox.put_nowait(wire.encode(message))

    def beat(self) -> None:
        """Tells the agent that the server is there."""
        if self._socket is not None:
            self._post(wire.Beat())

    def hear(self, message: wire.FromAgent) -> None:
        """What concerns only this machine."""
        self.heard = time.monotonic()
        if isinstance(message, wire.Beat):
            self._ports.extend(claims.usable_ports(message.ports))
        elif isinstance(message, wire.Took):
            if message.number > self._number:
                self.reject(["a command that was never given"])
                return
            while self._untaken and self._untaken[0].number <= message.number:
                self._untaken.popleft()
        elif isinstance(message, wire.LogAnswer):
            question = self._questions.pop(message.question, None)
            if question is None or question.done():
                return  # the answer came too late
            if claims.is_chunk(message.chunk):
                question.set_result(message.chunk)
            else:
                self.reject(["log lines without times"])
                question.set_exception(ConnectionError("the machine sent a log that cannot be read"))

    def reject(self, reasons: Sequence[str]) -> None:
        """Counts reports that its agent may not make, and logs at most one line a minute."""
        self.rejected += len(reasons)
        now = time.monotonic()
        if self._complained is None or now - self._complained >= _COMPLAIN_S:
            self._complained = now
            _log.warning("ignoring reports of agent %s (%d so far): %s", self.name, self.rejected, reasons[0])

    def note_worlds(self, worlds: Mapping[str, int]) -> None:
        """Remembers generations whose names are taken there: a job without a record must not use them again."""
        for job, world in worlds.items():
            if job in self.stray_worlds or len(self.stray_worlds) < _MOST_STRAYS:
                self.stray_worlds[job] = max(self.stray_worlds.get(job, 0), world)

    def send_away(self, strays: Sequence[Sighting], epoch: int) -> None:
        """Tells the agent to stop workers that it was not told to run: once per connection."""
        names: dict[str, list[str]] = {}
        for seen in strays:
            if len(self._sent_away) < _MOST_STRAYS and (seen.job, seen.name) not in self._sent_away:
                self._sent_away.add((seen.job, seen.name))
                names.setdefault(seen.job, []).append(seen.name)
        for job, found in names.items():
            # Not repeated: the agent reports them again after a reconnect, if they are still there.
            self._number += 1
            self._post(wire.Do(number=self._number, command=Leave(job=job, epoch=epoch, names=tuple(found))))

    # --- what it sees -----------------------------------------------------------------------------------------------

    def gather(self, part: News) -> None:
        """Keeps a part of all that its agent sees until it has told the rest."""
        self._told_so_far.update(((seen.job, seen.name), seen) for seen in part.sightings)
        self._kept_so_far.update((kept.job, kept) for kept in part.kept)

    def learn(self, told: wire.Told) -> News:
        """Takes over what its agent sees; what it does not see any more is lost."""
        fresh, kept = list(told.news.sightings), told.news.kept
        if told.all:
            self.gather(told.news)
            fresh, kept = list(self._told_so_far.values()), tuple(self._kept_so_far.values())
            self._told_so_far, self._kept_so_far = {}, {}
            self.connected = True
            commands = [message.command for message in self._untaken]
            there = {(command.job, command.name) for command in commands if isinstance(command, StartWorker)}
            there |= {(seen.job, seen.name) for seen in fresh}
            fresh += [
                msgspec.structs.replace(seen, state=LOST, why="its machine does not know it any more")
                for workers in self._seen.values()
                for seen in workers.values()
                if (seen.job, seen.name) not in there and (seen.alive or seen.state == UNREACHABLE)
            ]
        for seen in fresh:
            self._seen.setdefault(seen.job, {})[seen.name] = seen
        return News(sightings=tuple(fresh), kept=kept)

    def assume(self, seen: Sighting) -> None:
        """While its agent is away, what ran there last is taken to run."""
        self._seen.setdefault(seen.job, {})[seen.name] = seen

    def lose(self) -> News:
        """It was silent for too long: nobody knows what becomes of what runs there."""
        self.lost, self.connected = True, False
        # What it has not heard of starts somewhere else by then: when it is back, it must not start there, too.
        self._untaken = deque(one for one in self._untaken if not isinstance(one.command, StartWorker))
        changed = []
        for workers in self._seen.values():
            for name, seen in workers.items():
                if seen.alive:
                    workers[name] = msgspec.structs.replace(seen, state=UNREACHABLE)
                    changed.append(workers[name])
        return News(sightings=tuple(changed))

    # --- as any host ------------------------------------------------------------------------------------------------

    def do(self, command: Command) -> None:
        """Passes a command on, now or when the agent is back."""
        self._number += 1
        message = wire.Do(number=self._number, command=command)
        self._untaken.append(message)
        if isinstance(command, StartWorker):
            self.assume(Sighting(job=command.job, name=command.name, state=STARTING))
        elif isinstance(command, Forget):
            self._seen.pop(command.job, None)
        if self._socket is not None:
            self._post(message)

    def take_port(self) -> int:
        """A port that was free there lately, or probably is."""
        return self._ports.pop() if self._ports else random.randint(FIRST, LAST)

    def everything(self) -> News:
        """All that is known."""
        return News(sightings=tuple(seen for workers in self._seen.values() for seen in workers.values()))

    def workers(self, job: str) -> Mapping[str, Sighting]:
        """The workers of a job there."""
        return self._seen.get(job, {})

    async def log_end(self, job: str, name: str, lines: int) -> Cursor:
        """Where the last so many lines of a worker begin."""
        return (await self._ask(job, name, Cursor(), tail=lines)).next

    async def read_log(self, job: str, name: str, cursor: Cursor, *, rest: bool) -> Chunk:
        """Lines of a worker after *cursor*; none while the machine is out of reach."""
        return await self._ask(job, name, cursor, rest=rest)

    async def _ask(self, job: str, name: str, cursor: Cursor, *, rest: bool = False, tail: int | None = None) -> Chunk:
        if not self.connected:
            return Chunk((), cursor)
        self._number += 1
        number = self._number
        answer: asyncio.Future[Chunk] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        self._post(wire.AskLog(question=number, job=job, name=name, cursor=cursor, rest=rest, tail=tail))
        try:
            return await asyncio.wait_for(answer, _ANSWER_S)
        except (TimeoutError, ConnectionError):
            return Chunk((), cursor)
        finally:
            self._questions.pop(number, None)
