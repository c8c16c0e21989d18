"""Test machines: agents, the server they join, and a proxy that can be cut."""

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
#: The token of an operator.
MOST_MESSAGE = 4 * 2**20


class _Socket:
    """A WebSocket with the interface that the backend expects."""

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
async def serve_agents(backend: LocalBackend, address: str, port: int) -> AsyncIterator[None]:
    """Accept agents with the right token for *backend*."""

    async def handle(connection: ServerConnection) -> None:
        await backend.serve_agent(_Socket(connection))

    def check(connection: ServerConnection, request: Request) -> Response | None:
        known = request.headers.get("Authorization") == f"Bearer {TOKEN}"
        return None if known else connection.respond(HTTPStatus.FORBIDDEN, "no")

    async with serve(handle, address, port, process_request=check, max_size=MOST_MESSAGE, close_timeout=1):
        yield


def free_port() -> int:
    """A free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class CuttableProxy:
    """Proxy from *port* to *target* that can be cut silently and slowed down."""

    def __init__(self, target: int) -> None:
        self.port, self._target = free_port(), target
        self.delay_s = 0.0
        self._whole = asyncio.Event()
        self._whole.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> CuttableProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Drop all bytes without closing the connections."""
        self._whole.clear()

    def mend(self) -> None:
        """Forward bytes again, including those that were held back."""
        self._whole.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends = [writer]
        with suppress(OSError, asyncio.CancelledError):
            await self._whole.wait()
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._target)
            ends.append(upstream_writer)
            await asyncio.gather(self._pass(reader, upstream_writer), self._pass(upstream_reader, writer))
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
