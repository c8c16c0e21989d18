"""Answers that go on: items as they come, a sign of life in between, an end when either side goes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from levada.server.context import Context
from levada.server.gate import bearer, until_over
from levada.server.ports import Json

SSE = "text/event-stream"
NDJSON = "application/x-ndjson"
#: How long the beginning of a stream waits for what may be wrong with it.
_TRY_S = 0.25
#: Bytes that are sent at once; who reads slowly keeps more from being made.
_PIECE = 64 * 2**10


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
    """Sends *items* until they, the token or the server end, or the client goes; a beat where nothing comes."""

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
        self._first = first
        self._beat = beat
        self._gathered = _Gathered(items, write)

    async def tried(self) -> Stream:
        """This stream after a short look at its first item: what is wrong is raised before the answer begins."""
        await self._gathered.news(_TRY_S)
        self._gathered.check()
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_all(send))
        ends = [
            sending,
            asyncio.create_task(_gone(receive)),
            asyncio.create_task(self._context.stopping.wait()),
            asyncio.create_task(until_over(self._context, bearer(scope))),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            await self._gathered.close()
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error
        with contextlib.suppress(OSError):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        content = self._first
        while not (self._gathered.over and not content):
            if content:
                await send({"type": "http.response.body", "body": content, "more_body": True})
            came = await self._gathered.news(self._context.tuning.beat_s)
            content = self._gathered.take() if came else self._beat
        self._gathered.check()


class _Gathered:
    """Items as bytes: all that has come since the last look in one piece, for a line of its own each is slow."""

    def __init__(self, items: AsyncIterator[Json], write: Callable[[Json], bytes]) -> None:
        self._items, self._write = items, write
        self._content = bytearray()
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._gathering = asyncio.create_task(self._gather())

    @property
    def over(self) -> bool:
        """Whether nothing more comes, and nothing is left."""
        return self._gathering.done() and not self._content

    async def news(self, wait_s: float) -> bool:
        """Whether something came, or the end, within that time."""
        try:
            async with asyncio.timeout(wait_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def take(self) -> bytes:
        """What has come."""
        content = bytes(self._content)
        self._content.clear()
        self._room.set()
        if not self._gathering.done():
            self._news.clear()
        return content

    def check(self) -> None:
        """Raises what went wrong, once all before it was taken."""
        if self.over and (error := self._gathering.exception()) is not None:
            raise error

    async def close(self) -> None:
        """Ends it."""
        self._gathering.cancel()
        await asyncio.gather(self._gathering, return_exceptions=True)

    async def _gather(self) -> None:
        try:
            async for item in self._items:
                self._content += self._write(item)
                self._news.set()
                if len(self._content) >= _PIECE:
                    self._room.clear()
                    await self._room.wait()
        finally:
            if isinstance(self._items, AsyncGenerator):
                await self._items.aclose()
            self._news.set()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
