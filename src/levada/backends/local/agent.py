"""Agent: joins the GPUs of this machine to a server over an outgoing connection.

While it is disconnected its workers continue; after a reconnect the server decides about them.
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

from levada.backends.local import agent_protocol, safe_fs
from levada.backends.local.gpu_monitor import GpuMonitor, is_real, start_mps
from levada.backends.local.logs import Chunk
from levada.backends.local.ports import Ports
from levada.backends.local.supervisor import Supervisor
from levada.backends.local.supervisor_protocol import LOST, StartWorker, StatusUpdate, WorkerStatus
from levada.core.cluster import Foreign, Node
from levada.errors import BadInput, LevadaError, Refused

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_log = logging.getLogger(__name__)
PATH = "/api/v1/agents/connect"
#: File in the state directory of an agent.
_ID = "agent-id"
_HEARTBEAT_S = 2.0
#: A server that is silent for this time is unreachable.
_SILENCE_S = 15.0
_MIN_BACKOFF_S, _MAX_BACKOFF_S = 0.2, 5.0
#: Free ports sent with the registration, and with each heartbeat.
_PORTS, _FRESH_PORTS = 32, 4
#: WebSocket close code for policy violations.
_POLICY_VIOLATION = 1008


class Agent:
    """Connects the supervisor of this machine to a server."""

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
    ) -> None:
        self._url, self._token = socket_url(url), token
        self._nodes, self._name, self._address = tuple(nodes), name, address
        self._silence_s = silence_s
        self._supervisor = Supervisor(state, self._report, str(checkpoints.absolute()) if checkpoints else "")
        self._monitor = GpuMonitor(self._nodes[0], state, self._report_machine) if is_real(nodes) else None
        self._monitoring: asyncio.Task[None] | None = None
        #: None before the first look at the GPUs.
        self._foreign: tuple[Foreign, ...] | None = None
        self._mps_pipe = start_mps(nodes, state)
        self._is_open = self._accepted = False
        self._ports = Ports()
        self._outbox: asyncio.Queue[agent_protocol.FromAgent] | None = None
        #: The session of the server, and the number of the last command executed for it.
        self._session, self._last_command = "", 0
        self._questions: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Run until cancelled, with reconnects; raises Refused if the server rejects the agent."""
        backoff = _MIN_BACKOFF_S
        try:
            while True:
                self._accepted = False
                try:
                    await self._connect()
                except (OSError, TimeoutError) as error:
                    _log.warning("retrying connection to %s: %s", self._url, error)
                if self._accepted:
                    backoff = _MIN_BACKOFF_S
                await asyncio.sleep(backoff * random.uniform(0.5, 1.0))
                backoff = min(2 * backoff, _MAX_BACKOFF_S)
        finally:
            if self._monitoring is not None:
                self._monitoring.cancel()
                await asyncio.gather(self._monitoring, return_exceptions=True)
            if self._is_open:
                await self._supervisor.close()

    async def _connect(self) -> None:
        """Open one connection and serve it until it ends."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import ConnectionClosed, InvalidHandshake

        headers = {"Authorization": f"Bearer {self._token}"}
        connection = connect(self._url, additional_headers=headers, max_size=None, proxy=None, close_timeout=1)
        try:
            async with connection as socket:
                await socket.send(agent_protocol.encode(self._register(socket)))
                await self._run_session(socket)
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.code == _POLICY_VIOLATION:
                raise Refused(closed.rcvd.reason or "the server rejected this agent") from None
            raise ConnectionError("the connection was closed") from None
        except InvalidHandshake as refused:
            status = getattr(getattr(refused, "response", None), "status_code", None)
            if status in (401, 403):
                raise Refused("the server rejected the token: use one of an operator with --token") from None
            raise ConnectionError(str(refused)) from None
        except (OSError, LevadaError):
            raise
        except Exception:
            _log.exception("closing connection to the server after an error")
            raise ConnectionError("the session failed") from None

    def _register(self, socket: ClientConnection) -> agent_protocol.Register:
        return agent_protocol.Register(
            version=agent_protocol.VERSION,
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

    async def _run_session(self, socket: ClientConnection) -> None:
        """Exchange messages until the connection ends or the server is silent."""
        first = await self._receive(socket)
        if isinstance(first, agent_protocol.AgentRejected):
            raise Refused(first.why)
        if not isinstance(first, agent_protocol.AgentRegistered):
            raise ConnectionError("incompatible agent protocol; upgrade the agent or the server")
        await self._accept(first)
        outbox = self._outbox = asyncio.Queue()
        for message in agent_protocol.full_status(self._supervisor.full_status()):
            outbox.put_nowait(message)
        if self._foreign is not None:
            outbox.put_nowait(agent_protocol.MachineReport(nodes=self._nodes, foreign=self._foreign))
        try:
            await agent_protocol.run_until_first(
                self._send(socket, outbox), self._listen(socket, outbox), self._supervisor.watches()
            )
        except msgspec.DecodeError:
            raise ConnectionError("incompatible agent protocol; upgrade the agent or the server") from None
        finally:
            self._outbox = None

    async def _listen(self, socket: ClientConnection, outbox: asyncio.Queue[agent_protocol.FromAgent]) -> None:
        while True:
            self._handle(await self._receive(socket), outbox)

    async def _receive(self, socket: ClientConnection) -> agent_protocol.FromServer:
        # Not `wait_for`: it swallows a cancellation if a message arrives at the same moment.
        async with asyncio.timeout(self._silence_s):
            return agent_protocol.read_from_server(_decode(await socket.recv()))

    async def _accept(self, registered: agent_protocol.AgentRegistered) -> None:
        """Accept commands of this server; raises ConnectionError if a newer epoch has commanded this machine."""
        try:
            self._supervisor.take_epoch(registered.epoch)
        except Refused as refused:
            raise ConnectionError(str(refused)) from None
        self._accepted = True
        if not self._is_open:
            await self._supervisor.open()
            self._is_open = True
            if self._monitor is not None:
                self._monitoring = asyncio.create_task(self._monitor.run())
        if registered.session != self._session:
            self._session, self._last_command = registered.session, 0

    def _handle(self, message: agent_protocol.FromServer, outbox: asyncio.Queue[agent_protocol.FromAgent]) -> None:
        if isinstance(message, agent_protocol.Execute):
            if message.number > self._last_command:
                self._last_command = message.number
                self._do(message)
            outbox.put_nowait(agent_protocol.Ack(number=message.number))
        elif isinstance(message, agent_protocol.AgentRejected):
            raise Refused(message.why)
        elif isinstance(message, agent_protocol.AskLog):
            answering = asyncio.create_task(self._answer(message, outbox))
            self._questions.add(answering)
            answering.add_done_callback(self._questions.discard)

    def _do(self, message: agent_protocol.Execute) -> None:
        try:
            self._supervisor.do(message.command)
        except Exception as error:
            # A failed command must not affect other jobs.
            command, expected = message.command, isinstance(error, LevadaError | OSError)
            _log.warning(
                "executing %s of %s failed: %s", type(command).__name__, command.job, error, exc_info=not expected
            )
            if isinstance(command, StartWorker):
                why = f"could not be started: {error}"
                self._report(
                    StatusUpdate(workers=(WorkerStatus(job=command.job, name=command.name, state=LOST, why=why),))
                )

    async def _answer(self, question: agent_protocol.AskLog, outbox: asyncio.Queue[agent_protocol.FromAgent]) -> None:
        supervisor = self._supervisor
        if question.tail is not None:
            chunk = Chunk((), await supervisor.log_end(question.job, question.name, question.tail))
        else:
            chunk = await supervisor.read_log(question.job, question.name, question.cursor, rest=question.rest)
        outbox.put_nowait(agent_protocol.LogAnswer(question=question.question, chunk=chunk))

    async def _send(self, socket: ClientConnection, outbox: asyncio.Queue[agent_protocol.FromAgent]) -> None:
        """Send queued messages, and a heartbeat every 2 s without one."""
        while True:
            try:
                async with asyncio.timeout(min(_HEARTBEAT_S, self._silence_s / 4)):
                    message = await outbox.get()
            except TimeoutError:
                message = agent_protocol.Heartbeat(ports=tuple(self._ports.take() for _ in range(_FRESH_PORTS)))
            await socket.send(agent_protocol.encode(message))

    def _report_machine(self, node: Node, foreign: tuple[Foreign, ...]) -> None:
        self._nodes, self._foreign = (node,), foreign
        if self._outbox is not None:
            self._outbox.put_nowait(agent_protocol.MachineReport(nodes=self._nodes, foreign=foreign))

    def _report(self, news: StatusUpdate) -> None:
        if self._outbox is not None:
            self._outbox.put_nowait(agent_protocol.StatusMessage(news=news))


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
    """Join the nodes of this machine to the server at *url* until cancelled.

    *address* is where other machines reach this one; default: the local address of the connection to the server.
    *checkpoints* is a folder that all machines share. Raises Refused if the server rejects the agent.
    """
    agent = Agent(
        url, token, nodes=nodes, state=state, name=name, address=address, checkpoints=checkpoints, silence_s=silence_s
    )
    with contextlib.suppress(asyncio.CancelledError):
        await agent.run()


def _id_of(home: Path) -> str:
    """The unique id of an agent's state directory, created on first use."""
    path = home / _ID
    try:
        return safe_fs.read_file(path, 100).decode("ascii", "replace").strip()
    except FileNotFoundError:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = secrets.token_hex(16)
        safe_fs.replace_file(path, fresh.encode())
        return fresh


def socket_url(url: str) -> str:
    """The WebSocket URL for agents of the server at *url*."""
    parts = urlsplit(url)
    schemes = {"http": "ws", "https": "wss"}
    if parts.scheme not in schemes or not parts.netloc:
        raise BadInput.one(f"{url!r} is not a server URL: use one like https://server:7373", "--join")
    return urlunsplit((schemes[parts.scheme], parts.netloc, parts.path.rstrip("/") + PATH, "", ""))


def _decode(data: str | bytes) -> str:
    return data.decode() if isinstance(data, bytes) else data
