"""The agent of another machine: its GPUs join a server over a connection that it opens itself.

It may be cut off at any time: workers train on, and when it is back the server says what shall become of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import msgspec

from levada.backends.local import folders, wire
from levada.backends.local.devices import Nvml
from levada.backends.local.logs import Chunk
from levada.backends.local.machine import Machine, is_real, start_mps
from levada.backends.local.messages import LOST, News, Sighting, StartWorker
from levada.backends.local.ports import Ports
from levada.backends.local.supervisor import Supervisor
from levada.core.cluster import Foreign, Node
from levada.errors import BadInput, LevadaError, Refused

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_log = logging.getLogger(__name__)
PATH = "/api/v1/agents/connect"
#: In an agent's folder.
_ID = "agent-id"
_BEAT_S = 2.0
#: A server that says nothing for so long is out of reach.
_SILENCE_S = 15.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
#: The server knows so many free ports of this machine, and so many newer ones with each beat.
_PORTS, _FRESH_PORTS = 32, 4
#: WebSocket's code for "you may not".
_POLICY_VIOLATION = 1008


class Agent:
    """This machine's part in the cluster of a server."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        nodes: Sequence[Node],
        state: Path,
        name: str,
        address: str = "",
        checkpoints: Path | None = None,
        silence_s: float = _SILENCE_S,
        nvml: Nvml | None = None,
    ) -> None:
        self._url, self._token = socket_url(url), token
        self._nodes, self._name, self._address = tuple(nodes), name, address
        self._silence_s = silence_s
        self._supervisor = Supervisor(state, self._tell, str(checkpoints.absolute()) if checkpoints else "")
        self._machine = Machine(self._nodes[0], state, self._look_at, nvml) if is_real(nodes) else None
        self._looking: asyncio.Task[None] | None = None
        #: None where nobody has looked.
        self._foreign: tuple[Foreign, ...] | None = None
        self._mps_pipe = start_mps(nodes, state)
        self._is_open = self._is_welcome = False
        self._ports = Ports()
        self._outbox: asyncio.Queue[wire.FromAgent] | None = None
        #: The server whose commands were taken, and the last of them.
        self._session, self._taken = "", 0
        self._questions: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Works until it is cancelled; raises Refused where the server does not want it."""
        pause = _FIRST_PAUSE_S
        try:
            while True:
                self._is_welcome = False
                try:
                    await self._speak()
                except (OSError, TimeoutError) as trouble:
                    _log.warning("the server at %s cannot be reached (%s): trying again", self._url, trouble)
                if self._is_welcome:
                    pause = _FIRST_PAUSE_S
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        finally:
            if self._looking is not None:
                self._looking.cancel()
                await asyncio.gather(self._looking, return_exceptions=True)
            if self._is_open:
                await self._supervisor.close()

    async def _speak(self) -> None:
        """One connection."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import ConnectionClosed, InvalidHandshake

        headers = {"Authorization": f"Bearer {self._token}"}
        joining = connect(self._url, additional_headers=headers, max_size=None, proxy=None, close_timeout=1)
        try:
            async with joining as socket:
                await socket.send(wire.encode(self._register(socket)))
                await self._converse(socket)
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.code == _POLICY_VIOLATION:
                raise Refused(closed.rcvd.reason or "the server does not want this agent") from None
            raise ConnectionError("the connection was cut") from None
        except InvalidHandshake as refused:
            status = getattr(getattr(refused, "response", None), "status_code", None)
            if status in (401, 403):
                raise Refused("the server does not know this token: give one of an operator with --token") from None
            raise ConnectionError(str(refused)) from None
        except (OSError, LevadaError):
            raise
        except Exception:
            _log.exception("the conversation with the server broke off")
            raise ConnectionError("the conversation broke off") from None

    def _register(self, socket: ClientConnection) -> wire.Register:
        return wire.Register(
            version=wire.VERSION,
            name=self._name,
            nodes=self._nodes,
            home=str(self._supervisor.home.absolute()),
            address=self._address or str(socket.local_address[0]),
            server_address=str(socket.remote_address[0]),
            ports=tuple(self._ports.take() for _ in range(_PORTS)),
            checkpoints=self._supervisor.checkpoints,
            mps_pipe=self._mps_pipe,
            id=_id_of(self._supervisor.home),
        )

    async def _converse(self, socket: ClientConnection) -> None:
        """Until the connection ends or the server is silent."""
        first = await self._receive(socket)
        if isinstance(first, wire.Goodbye):
            raise Refused(first.why)
        if not isinstance(first, wire.Welcome):
            raise ConnectionError("the server speaks another language")
        await self._follow(first)
        outbox = self._outbox = asyncio.Queue()
        for message in wire.all_of(self._supervisor.everything()):
            outbox.put_nowait(message)
        if self._foreign is not None:
            outbox.put_nowait(wire.Machine(nodes=self._nodes, foreign=self._foreign))
        try:
            await wire.converse(self._send(socket, outbox), self._listen(socket, outbox), self._supervisor.watches())
        except msgspec.DecodeError:
            raise ConnectionError("the server speaks another language") from None
        finally:
            self._outbox = None

    async def _listen(self, socket: ClientConnection, outbox: asyncio.Queue[wire.FromAgent]) -> None:
        while True:
            self._hear(await self._receive(socket), outbox)

    async def _receive(self, socket: ClientConnection) -> wire.FromServer:
        # Not `wait_for`: it forgets that it was cancelled where a text comes in the same moment, and nobody ends.
        async with asyncio.timeout(self._silence_s):
            return wire.read_from_server(_text(await socket.recv()))

    async def _follow(self, welcome: wire.Welcome) -> None:
        """Takes commands of this server, unless a newer one has commanded here."""
        try:
            self._supervisor.take_epoch(welcome.epoch)
        except Refused as old:
            raise ConnectionError(str(old)) from None
        self._is_welcome = True
        if not self._is_open:
            await self._supervisor.open()
            self._is_open = True
            if self._machine is not None:
                self._looking = asyncio.create_task(self._machine.run())
        if welcome.session != self._session:
            self._session, self._taken = welcome.session, 0

    def _hear(self, message: wire.FromServer, outbox: asyncio.Queue[wire.FromAgent]) -> None:
        if isinstance(message, wire.Do):
            if message.number > self._taken:
                self._taken = message.number
                self._do(message)
            outbox.put_nowait(wire.Took(number=message.number))
        elif isinstance(message, wire.Goodbye):
            raise Refused(message.why)
        elif isinstance(message, wire.AskLog):
            answering = asyncio.create_task(self._answer(message, outbox))
            self._questions.add(answering)
            answering.add_done_callback(self._questions.discard)

    def _do(self, message: wire.Do) -> None:
        try:
            self._supervisor.do(message.command)
        except Exception as trouble:
            # One command that cannot be done must not end those of all other jobs.
            known = isinstance(trouble, LevadaError | OSError)
            _log.warning("%s: %s", message.command.job, trouble, exc_info=not known)
            command = message.command
            if isinstance(command, StartWorker):
                why = f"could not be started: {trouble}"
                self._tell(News(sightings=(Sighting(job=command.job, name=command.name, state=LOST, why=why),)))

    async def _answer(self, question: wire.AskLog, outbox: asyncio.Queue[wire.FromAgent]) -> None:
        supervisor = self._supervisor
        if question.tail is not None:
            chunk = Chunk((), await supervisor.log_end(question.job, question.name, question.tail))
        else:
            chunk = await supervisor.read_log(question.job, question.name, question.cursor, rest=question.rest)
        outbox.put_nowait(wire.LogAnswer(question=question.question, chunk=chunk))

    async def _send(self, socket: ClientConnection, outbox: asyncio.Queue[wire.FromAgent]) -> None:
        """What there is to say, and a beat when there is nothing."""
        while True:
            try:
                async with asyncio.timeout(min(_BEAT_S, self._silence_s / 4)):
                    message = await outbox.get()
            except TimeoutError:
                message = wire.Beat(ports=tuple(self._ports.take() for _ in range(_FRESH_PORTS)))
            await socket.send(wire.encode(message))

    def _look_at(self, node: Node, foreign: tuple[Foreign, ...]) -> None:
        self._nodes, self._foreign = (node,), foreign
        if self._outbox is not None:
            self._outbox.put_nowait(wire.Machine(nodes=self._nodes, foreign=foreign))

    def _tell(self, news: News) -> None:
        if self._outbox is not None:
            self._outbox.put_nowait(wire.Told(news=news))


async def run_agent(
    url: str,
    token: str,
    *,
    nodes: Sequence[Node],
    state: Path,
    name: str,
    address: str = "",
    checkpoints: Path | None = None,
    silence_s: float = _SILENCE_S,
) -> None:
    """Joins the nodes of this machine to the server at *url*, until it is cancelled.

    *address* is where other machines find this one; without it, the one that the server is reached from.
    *checkpoints* is a folder that all machines share. Raises Refused where the server does not want this agent.
    """
    agent = Agent(
        url, token, nodes=nodes, state=state, name=name, address=address, checkpoints=checkpoints, silence_s=silence_s
    )
    with contextlib.suppress(asyncio.CancelledError):
        await agent.run()


def _id_of(home: Path) -> str:
    """Names an agent's folder for good, as no other is."""
    path = home / _ID
    try:
        return folders.read_file(path, 100).decode("ascii", "replace").strip()
    except FileNotFoundError:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = secrets.token_hex(16)
        folders.replace_file(path, fresh.encode())
        return fresh


def socket_url(url: str) -> str:
    """Where the server at *url* takes agents."""
    parts = urlsplit(url)
    schemes = {"http": "ws", "https": "wss"}
    if parts.scheme not in schemes or not parts.netloc:
        raise BadInput.one(f"{url!r} is no server's address: give one like http://host:8000", "--join")
    return urlunsplit((schemes[parts.scheme], parts.netloc, parts.path.rstrip("/") + PATH, "", ""))


def _text(data: str | bytes) -> str:
    return data.decode() if isinstance(data, bytes) else data
