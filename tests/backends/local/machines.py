"""Other machines for tests: agents, the server that they join, and a wire between them that can be cut."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import Request, Response, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from levada.backends.local.backend import LocalBackend

TOKEN = "of-an-operator"
#: As the server has it.
MOST_MESSAGE = 4 * 2**20


class _Socket:
    """A WebSocket as the backend sees it."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def receive(self) -> str | None:
        try:
            return str(await self._connection.recv(decode=True))
        except ConnectionClosed:
            return None

    async def send(self, text: str) -> None:
        try:
            await self._connection.send(text)
        except ConnectionClosed:
            raise ConnectionError from None

    async def close(self, why: str = "") -> None:
        await self._connection.close(reason=why[:100])


@asynccontextmanager
async def served(backend: LocalBackend, address: str, port: int) -> AsyncIterator[None]:
    """Agents with the right token may join *backend*."""

    async def handle(connection: ServerConnection) -> None:
        await backend.serve_agent(_Socket(connection))

    def check(connection: ServerConnection, request: Request) -> Response | None:
        known = request.headers.get("Authorization") == f"Bearer {TOKEN}"
        return None if known else connection.respond(HTTPStatus.FORBIDDEN, "no")

    async with serve(handle, address, port, process_request=check, max_size=MOST_MESSAGE, close_timeout=1):
        yield


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Wire:
    """Passes bytes on from *port* to *target*; can be cut, so that nobody hears anything, and slowed down."""

    def __init__(self, target: int) -> None:
        self.port, self._target = free_port(), target
        self.delay_s = 0.0
        self._whole = asyncio.Event()
        self._whole.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Nothing passes any more, and nobody is told."""
        self._whole.clear()

    def mend(self) -> None:
        """All passes again; what was sent meanwhile, too."""
        self._whole.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends = [writer]
        with suppress(OSError, asyncio.CancelledError):
            await self._whole.wait()
            there, away = await asyncio.open_connection("127.0.0.1", self._target)
            ends.append(away)
            await asyncio.gather(self._pass(reader, away), self._pass(there, writer))
        for end in ends:
            end.close()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(1 << 16):
                await asyncio.sleep(self.delay_s)
                await self._whole.wait()
                target.write(data)
                await target.drain()
        target.close()
