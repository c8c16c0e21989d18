"""Streams of events and of log lines."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from levada.errors import NoServer
from levada.sdk.transport import Lost, OpenResponse, Transport

if TYPE_CHECKING:
    from levada.api.types import EventView, LogLineView

#: A stream without data for this time is broken: the server sends a heartbeat every 15 s.
_SILENCE_S = 45.0
#: Prefix of the first line of a watch, before the event id at which it starts.
_START = ": after "

T = TypeVar("T")
S = TypeVar("S", bound="Stream[Any]")


class Stream(ABC, Generic[T]):
    """A stream of items; use it in `with`, or close it."""

    _answer: OpenResponse | None = None
    _closed = False

    def __iter__(self) -> Iterator[T]:
        return self

    @abstractmethod
    def __next__(self) -> T:
        """Wait for the next item."""

    def __enter__(self: S) -> S:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the stream; a thread that waits for the next item gets StopIteration."""
        self._closed = True
        self._drop()

    def __del__(self) -> None:
        self._drop()

    def _drop(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()


class Watch(Stream["EventView"]):
    """A stream of events; reconnects after the last event, so none is missed.

    The constructor connects: the stream contains all later events. It ends at *until* on the monotonic clock.
    """

    def __init__(self, transport: Transport, *, job: str | None, after: int | None, until: float | None) -> None:
        self._transport = transport
        self._job = job
        self._last = None if after is None else str(after)
        self._until = until
        self._connect()

    def __next__(self) -> EventView:
        data: list[str] = []
        while not self._is_over():
            answer = self._answer
            if answer is None:
                data = []  # the server repeats an incomplete event
                self._connect()
                continue
            try:
                line = answer.line()
            except Lost:
                line = ""
            if not line:
                self._drop()
                continue
            field, _, value = line.rstrip("\r\n").partition(":")
            value = value.removeprefix(" ")
            if field == "data":
                data.append(value)
            elif field == "id":
                self._last = value
            elif line in ("\n", "\r\n") and data:
                event: EventView = json.loads("\n".join(data))
                return event
        self.close()
        raise StopIteration

    def _is_over(self) -> bool:
        return self._closed or (self._until is not None and time.monotonic() >= self._until)

    def _connect(self) -> None:
        """Connect after the last event; raises NoServer when all retries have failed."""
        pauses = self._transport.pauses()
        while not self._is_over():
            headers = {"Accept": "text/event-stream"}
            if self._last is not None:
                headers["Last-Event-ID"] = self._last
            left = _SILENCE_S if self._until is None else self._until - time.monotonic()
            try:
                self._answer = self._transport.stream(
                    "/api/v1/watch",
                    query={"job": self._job},
                    headers=headers,
                    silence_s=max(0.01, min(_SILENCE_S, left)),
                )
                # The first line is a comment with the event id at which the watch starts.
                first = self._answer.line()
                if first.startswith(_START):
                    self._last = first.removeprefix(_START).strip()
                return
            except Lost as error:
                self._drop()
                if not self._is_over():
                    self._transport.wait_out(error, pauses)


class Logs(Stream["LogLineView"]):
    """A stream of output lines."""

    def __init__(self, transport: Transport, path: str, query: Mapping[str, Any]) -> None:
        self._url = transport.address.url
        try:
            self._answer = transport.stream(
                path, query=query, headers={"Accept": "application/x-ndjson"}, silence_s=_SILENCE_S
            )
        except Lost as error:
            raise self._broken(error) from None

    def __next__(self) -> LogLineView:
        while self._answer is not None:
            try:
                line = self._answer.line()
            except Lost as error:
                if self._closed:
                    break
                self.close()
                raise self._broken(error) from None
            if not line:
                break
            if line.strip():
                log_line: LogLineView = json.loads(line)
                return log_line
        self.close()
        raise StopIteration

    def _broken(self, error: Exception) -> NoServer:
        return NoServer(f"the connection to {self._url} broke ({error}); request the logs again")
