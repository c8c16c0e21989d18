"""Answers that go on: events as they come, and lines of logs."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, TypeVar

from levada.errors import NoServer
from levada.sdk.models import Event, LogLine
from levada.sdk.transport import Lost, OpenAnswer, Transport

#: The server says something at least every 15 s, be it only that it is there.
_SILENCE_S = 45.0
#: How a watch begins, before the id of the event after which it does.
_BEGINS = ": after "

T = TypeVar("T")
S = TypeVar("S", bound="Stream[Any]")


class Stream(ABC, Generic[T]):
    """Items as they come; close it, or use it in a `with`, when you have enough."""

    _answer: OpenAnswer | None = None
    _closed = False

    def __iter__(self) -> Iterator[T]:
        return self

    @abstractmethod
    def __next__(self) -> T:
        """The next item; waits for it."""

    def __enter__(self: S) -> S:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends it; another thread that waits for the next item gets StopIteration."""
        self._closed = True
        self._drop()

    def __del__(self) -> None:
        self._drop()

    def _drop(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()


class Watch(Stream[Event]):
    """Events as they come, none missed: a connection that breaks is made anew where it ended.

    It is connected when it has been made: what happens afterwards is in it. *until*, on the monotonic clock, ends it.
    """

    def __init__(self, transport: Transport, *, job: str | None, after: int | None, until: float | None) -> None:
        self._transport = transport
        self._job = job
        self._last = None if after is None else str(after)
        self._until = until
        self._connect()

    def __next__(self) -> Event:
        data: list[str] = []
        while not self._over():
            answer = self._answer
            if answer is None:
                data = []  # what had come of an event is said again
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
                event: Event = json.loads("\n".join(data))
                return event
        self.close()
        raise StopIteration

    def _over(self) -> bool:
        return self._closed or (self._until is not None and time.monotonic() >= self._until)

    def _connect(self) -> None:
        """Goes on after the last event; raises NoServer when patience is over."""
        pauses = self._transport.pauses()
        while not self._over():
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
                # The first line comes at once: a comment with the id after which this begins.
                first = self._answer.line()
                if first.startswith(_BEGINS):
                    self._last = first.removeprefix(_BEGINS).strip()
                return
            except Lost as error:
                self._drop()
                if not self._over():
                    self._transport.wait_out(error, pauses)


class Logs(Stream[LogLine]):
    """Lines of output, to the end of what there is, or of the job."""

    def __init__(self, transport: Transport, path: str, query: Mapping[str, Any]) -> None:
        self._url = transport.address.url
        try:
            self._answer = transport.stream(
                path, query=query, headers={"Accept": "application/x-ndjson"}, silence_s=_SILENCE_S
            )
        except Lost as error:
            raise self._broke(error) from None

    def __next__(self) -> LogLine:
        while self._answer is not None:
            try:
                line = self._answer.line()
            except Lost as error:
                if self._closed:
                    break
                self.close()
                raise self._broke(error) from None
            if not line:
                break
            if line.strip():
                said: LogLine = json.loads(line)
                return said
        self.close()
        raise StopIteration

    def _broke(self, error: Exception) -> NoServer:
        return NoServer(f"the connection to {self._url} broke ({error}); ask for the logs again")
