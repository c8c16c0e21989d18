"""How long a client may take: to say what it wants, and to take what it asked for."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from levada.server.context import Tuning

_MOST_HEAD = 64 * 2**10


def patience(tuning: Tuning) -> type[Patience]:
    """The protocol with these times; uvicorn makes one object of it per connection."""
    return type("Patience", (Patience,), {"tuning": tuning})


class Patience(HttpToolsProtocol):
    """HTTP as uvicorn speaks it, to clients that neither dawdle nor send heads without end."""

    tuning = Tuning()
    _head: asyncio.TimerHandle | None = None
    _take: asyncio.TimerHandle | None = None
    _head_bytes = 0

    # uvicorn narrows what asyncio gives here, and so must who stands between.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Gives the first request its time."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the timers."""
        self._cancel("_head")
        self._cancel("_take")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Reads on, unless the head is too long."""
        if self._head is not None:
            self._head_bytes += len(data)
            if self._head_bytes > _MOST_HEAD and b"\r\n\r\n" not in data:
                self._end(b"431 Request Header Fields Too Large")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Gives each request on a kept connection its time."""
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._cancel("_head")
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """What was sent is not taken: from now on time runs."""
        super().pause_writing()
        if self._take is None:
            self._take = self.loop.call_later(self.tuning.take_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It was taken."""
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
