"""Answers that go on: items as they come, a sign of life in between, an end when either side goes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from levada.server.context import Context
from levada.server.ports import Json

SSE = "text/event-stream"
NDJSON = "application/x-ndjson"
#: How long the beginning of a stream waits for what may be wrong with it.
_TRY_S = 0.25


def event(item: Json) -> bytes:
    """An event of the watch."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (item["id"], str(item["type"]).encode(), msgspec.json.encode(item))


def event_line(item: Json) -> bytes:
    """Something without an id as a server-sent event."""
    return b"data: %s\n\n" % msgspec.json.encode(item)


def line(item: Json) -> bytes:
    """One line of JSON."""
    return msgspec.json.encode(item) + b"\n"


class Stream(Response):
    """Sends *items* until they end, the client goes or the server stops; a beat where nothing comes for a while."""

    def __init__(
        self,
        context: Context,
        items: AsyncIterator[Json],
        *,
        write: Callable[[Json], bytes],
        media_type: str,
        first: bytes = b"",
        beat: bytes,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(None, 200, {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})})
        # A stream has no length.
        self.raw_headers = [each for each in self.raw_headers if each[0] != b"content-length"]
        self.raw_headers.append((b"content-type", media_type.encode()))
        self._context = context
        self._items = items
        self._write = write
        self._first = first
        self._beat = beat
        self._coming: asyncio.Task[Json | None] | None = None

    async def tried(self) -> Stream:
        """This stream after a short look at its first item: what is wrong is raised before the answer begins."""
        self._coming = asyncio.create_task(_next(self._items))
        done, _ = await asyncio.wait([self._coming], timeout=_TRY_S)
        if done and (error := self._coming.exception()) is not None:
            raise error
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_all(send))
        ends = [
            sending,
            asyncio.create_task(_gone(receive)),
            asyncio.create_task(self._context.stopping.wait()),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error
        with contextlib.suppress(OSError):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if self._first:
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
        try:
            while True:
                coming = self._coming = self._coming or asyncio.create_task(_next(self._items))
                done, _ = await asyncio.wait([coming], timeout=self._context.tuning.beat_s)
                if done:
                    item = coming.result()
                    self._coming = None
                    if item is None:
                        return
                    content = self._write(item)
                else:
                    content = self._beat
                await send({"type": "http.response.body", "body": content, "more_body": True})
        finally:
            if self._coming is not None:
                self._coming.cancel()
                await asyncio.gather(self._coming, return_exceptions=True)
            close = getattr(self._items, "aclose", None)
            if close is not None:
                await close()


async def _next(items: AsyncIterator[Json]) -> Json | None:
    """The next item; None at the end."""
    return await anext(items, None)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
