"""Streaming responses: items as they arrive, heartbeats in between."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Generic, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from levada.api.types import EventView, LogLineView
from levada.server.auth import bearer, until_revoked
from levada.server.context import Context

T = TypeVar("T")
SSE = "text/event-stream"
NDJSON = "application/x-ndjson"
#: Time to wait for an error of the first item before the response begins.
_PROBE_S = 0.25
#: Buffered bytes; reading pauses while a slow client has this many to receive.
_MAX_BUFFER = 64 * 2**10


def event(item: EventView) -> bytes:
    """Encode an event as a server-sent event."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (item["id"], str(item["type"]).encode(), msgspec.json.encode(item))


def event_line(item: LogLineView) -> bytes:
    """Encode a line of output as a server-sent event."""
    return b"data: %s\n\n" % msgspec.json.encode(item)


def line(item: LogLineView) -> bytes:
    """Encode a line of output as a line of JSON."""
    return msgspec.json.encode(item) + b"\n"


class ResponseStream(Response, Generic[T]):
    """Sends *items* until they end, the token expires, the server stops or the client disconnects; *beat* when idle."""

    def __init__(
        self,
        context: Context,
        items: AsyncIterator[T],
        *,
        write: Callable[[T], bytes],
        media_type: str,
        first: bytes = b"",
        beat: bytes,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(None, 200, {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})})
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        self.raw_headers.append((b"content-type", media_type.encode()))
        self._context = context
        self._first = first
        self._beat = beat
        self._buffer = _Buffer(items, write)

    async def probed(self) -> ResponseStream[T]:
        """Return this stream after waiting for its first item: an early error becomes an error response."""
        await self._buffer.wait(_PROBE_S)
        self._buffer.check()
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_all(send))
        ends = [
            sending,
            asyncio.create_task(_disconnected(receive)),
            asyncio.create_task(self._context.stopping.wait()),
            asyncio.create_task(until_revoked(self._context, bearer(scope))),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            await self._buffer.close()
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error
        with contextlib.suppress(OSError):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        content = self._first
        while not (self._buffer.over and not content):
            if content:
                await send({"type": "http.response.body", "body": content, "more_body": True})
            has_items = await self._buffer.wait(self._context.tuning.beat_s)
            content = self._buffer.take() if has_items else self._beat
        self._buffer.check()


class _Buffer(Generic[T]):
    """Encoded items, collected between two sends: one send per item would be slow."""

    def __init__(self, items: AsyncIterator[T], write: Callable[[T], bytes]) -> None:
        self._items, self._write = items, write
        self._content = bytearray()
        self._changed, self._has_room = asyncio.Event(), asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    @property
    def over(self) -> bool:
        """Whether all items are taken and no more will arrive."""
        return self._reader.done() and not self._content

    async def wait(self, timeout_s: float) -> bool:
        """Wait for an item or the end; return False after *timeout_s*."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def take(self) -> bytes:
        """Remove and return the collected bytes."""
        content = bytes(self._content)
        self._content.clear()
        self._has_room.set()
        if not self._reader.done():
            self._changed.clear()
        return content

    def check(self) -> None:
        """Raise the error of the source, once all items before it are taken."""
        if self.over and (error := self._reader.exception()) is not None:
            raise error

    async def close(self) -> None:
        """Stop reading."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        try:
            async for item in self._items:
                self._content += self._write(item)
                self._changed.set()
                if len(self._content) >= _MAX_BUFFER:
                    self._has_room.clear()
                    await self._has_room.wait()
        finally:
            if isinstance(self._items, AsyncGenerator):
                await self._items.aclose()
            self._changed.set()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
