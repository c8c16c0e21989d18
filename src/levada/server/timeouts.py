"""Timeouts for request heads, and for clients that do not read responses."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from levada.server.context import ServerTuning

_MAX_HEAD_BYTES = 64 * 2**10


def protocol(tuning: ServerTuning) -> type[TimeoutProtocol]:
    """Return the protocol class with these timeouts; uvicorn creates one object per connection."""
    return type("TimeoutProtocol", (TimeoutProtocol,), {"tuning": tuning})


class TimeoutProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with timeouts and a limit for the head of a request."""

    tuning = ServerTuning()
    _head: asyncio.TimerHandle | None = None
    _take: asyncio.TimerHandle | None = None
    _head_bytes = 0

    # uvicorn narrows the type of asyncio here, so a subclass must do the same.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first request."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        self._cancel("_head")
        self._cancel("_take")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read data, unless the head is too long."""
        if self._head is not None:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES and b"\r\n\r\n" not in data:
                self._end(b"431 Request Header Fields Too Large")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Start the timeout of the next request on the connection."""
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        """Cancel the timeout: the head is complete."""
        self._cancel("_head")
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """Start the timeout for a client that does not read."""
        super().pause_writing()
        if self._take is None:
            self._take = self.loop.call_later(self.tuning.take_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the timeout: the client has read."""
        self._cancel("_take")
        super().resume_writing()

    def _await_head(self) -> None:
        self._cancel("_head")
        self._head_bytes = 0
        self._head = self.loop.call_later(self.tuning.head_s, self._end, b"408 Request Timeout")

    def _end(self, status: bytes) -> None:
        self._cancel("_head")
        if not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" % status)
            self.transport.close()

    def _cancel(self, name: str) -> None:
        timer: Any = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)
