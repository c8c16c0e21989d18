"""HTTP client on the standard library: persistent connections and retries.

Errors are those of `levada.errors`. A request that may have been lost is repeated only if that is safe: reads, and
submissions with an Idempotency-Key. A server that was never reached is an error at once. Modules that only requests
need are imported late, so that the import of the package is fast.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from levada.errors import BadInput, Fault, LevadaError, NoServer, NotFound, Refused, Unresolved
from levada.sdk.discovery import Address

if TYPE_CHECKING:
    import socket
    from http.client import HTTPConnection, HTTPResponse

#: Maximum idle time of a connection, below the 65 s after which the server closes it; and idle connections.
_MAX_IDLE_S = 50.0
_MAX_IDLE = 8


class Reply(NamedTuple):
    """A successful response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Parse the body; None if it is empty."""
        return json.loads(self.body) if self.body else None


class Lost(Exception):
    """The connection broke before the response was complete."""


class Silent(Lost):
    """The connection is open, but no response arrives."""


class Unanswered(NoServer):
    """The server may have received the request; its outcome is unknown."""


def segment(name: str) -> str:
    """Quote a name as one segment of a path; BadInput if it is empty."""
    from urllib.parse import quote

    if not name:
        raise BadInput.one("a name must not be empty")
    return quote(name, safe="")


class Transport:
    """Connections to one server; safe to share between threads."""

    def __init__(
        self,
        find: Callable[[], Address],
        *,
        timeout_s: float = 60.0,
        patience_s: float = 10.0,
        waiting: Callable[[str], AbstractContextManager[object]] | None = None,
    ) -> None:
        """*waiting*: returns a context that is entered during each request to a URL."""
        self._find = find
        self._waiting = waiting or contextlib.nullcontext
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._idle: list[tuple[float, HTTPConnection]] = []
        self._reached = False
        self._address = find()

    @property
    def address(self) -> Address:
        """Return URL and token of the server."""
        return self._address

    def close(self) -> None:
        """Close idle connections."""
        while self._idle:
            self._idle.pop()[1].close()

    def __del__(self) -> None:
        # Avoids open sockets of a client that was not closed.
        self.close()

    # ------------------------------------------------------------------------------------------------------ requests
    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = False,
    ) -> Reply:
        """Send a request and return the response; raises errors of `levada.errors`, NoServer without a response."""
        target = _target(path, query)
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        with self._waiting(self._address.url):
            return self._retried(method, target, content, headers, repeatable or method == "GET")

    def _retried(
        self, method: str, target: str, content: bytes | None, headers: Mapping[str, str] | None, repeatable: bool
    ) -> Reply:
        pauses = Pauses(self._patience_s)
        sent = False
        while True:
            try:
                connection = self._connection()
            except OSError as error:
                # A server that was reached before may be restarting.
                if not (self._reached and pauses.pause()):
                    absent = self._no_server(error)
                    raise (Unanswered(str(absent)) if sent else absent) from None
                self._relocate()
                continue
            sent = True
            try:
                return self._exchange(connection, method, target, content, headers)
            except Unresolved:
                # Repeated with its key, the request gets the outcome once the server knows it.
                if not (repeatable and pauses.pause()):
                    raise
            except Lost as error:
                connection.close()
                # No retry after a timeout: it was long enough.
                if isinstance(error, Silent) or not (repeatable and pauses.pause()):
                    raise self._unanswered(error, repeatable) from None

    def _exchange(
        self,
        connection: HTTPConnection,
        method: str,
        target: str,
        content: bytes | None,
        headers: Mapping[str, str] | None,
    ) -> Reply:
        response = self._send(connection, method, target, content, headers)
        try:
            body = response.read()
        except (OSError, _http().HTTPException) as error:
            raise _lost(error) from None
        if response.will_close:
            connection.close()
        elif len(self._idle) < _MAX_IDLE:
            self._idle.append((time.monotonic(), connection))
        else:
            connection.close()
        if response.status >= 400:
            raise error_of(response.status, body)
        return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, body)

    def stream(
        self,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        silence_s: float | None = None,
    ) -> OpenResponse:
        """Open a streaming response on its own connection; raises like `request`, and Lost.

        Reading raises Silent if no data arrives for *silence_s*.
        """
        try:
            connection = self._new(silence_s)
        except OSError as error:
            raise _lost(error) from None
        sock = connection.sock
        try:
            response = self._send(connection, "GET", _target(path, query), None, headers)
            if response.status >= 400:
                raise error_of(response.status, response.read())
        except BaseException:
            connection.close()
            raise
        return OpenResponse(connection, sock, response)

    def _send(
        self,
        connection: HTTPConnection,
        method: str,
        target: str,
        content: bytes | None,
        headers: Mapping[str, str] | None,
    ) -> HTTPResponse:
        """Send a request and return the head of the response; raises Lost."""
        from urllib.parse import urlsplit

        # A proxy may serve the API below a path.
        target = urlsplit(self._address.url).path + target
        all_headers = {"Authorization": f"Bearer {self._address.token}"} if self._address.token else {}
        if content is not None:
            all_headers["Content-Type"] = "application/json"
        all_headers |= headers or {}
        try:
            connection.request(method, target, body=content, headers=all_headers)
        except OSError as error:
            # A server that rejects a body may respond before it has read all of it.
            if not isinstance(error, BrokenPipeError | ConnectionResetError):
                raise _lost(error) from None
        try:
            return connection.getresponse()
        except (OSError, _http().HTTPException) as error:
            raise _lost(error) from None

    # --------------------------------------------------------------------------------------------------- connections
    def _connection(self) -> HTTPConnection:
        """Return an idle connection that is still open, or a new one; raises OSError."""
        while True:
            try:
                since, connection = self._idle.pop()
            except IndexError:
                return self._new(self._timeout_s)
            if time.monotonic() - since < _MAX_IDLE_S and not _readable(connection):
                return connection
            connection.close()

    def _new(self, timeout_s: float | None) -> HTTPConnection:
        from urllib.parse import urlsplit

        parts = urlsplit(self._address.url)
        kind = _http().HTTPSConnection if parts.scheme == "https" else _http().HTTPConnection
        try:
            connection = kind(parts.hostname or "localhost", parts.port, timeout=timeout_s)
        except ValueError as error:
            raise BadInput.one(f"{self._address.url} is not a server address: {error}") from None
        connection.connect()
        self._reached = True
        return connection

    def _relocate(self) -> None:
        """Find the server again: after a restart it may have another port."""
        with contextlib.suppress(NoServer):
            self._address = self._find()

    def _no_server(self, error: Exception) -> NoServer:
        return NoServer(f"no server answers at {self._address.url} ({_why(error)}); start one with `levada up`")

    def _unanswered(self, error: Lost, repeatable: bool) -> NoServer:
        url = self._address.url
        if isinstance(error, Silent) and repeatable:
            silent = f"the server at {url} has not answered for {self._timeout_s:g} s"
            return Unanswered(f"{silent}; try again, or see its server.log and restart it")
        return Unanswered(f"the connection to {url} broke ({error}); check whether the request was executed")

    def wait_out(self, error: Lost, pauses: Pauses) -> None:
        """Pause before a retry; raises NoServer if no retries remain."""
        if not (self._reached and pauses.pause()):
            raise self._no_server(error)
        self._relocate()

    def pauses(self) -> Pauses:
        """Return the pauses of a new series of retries."""
        return Pauses(self._patience_s)


class OpenResponse:
    """A streaming response, read line by line."""

    def __init__(self, connection: HTTPConnection, sock: socket.socket, response: HTTPResponse) -> None:
        self._connection = connection
        self._sock = sock
        self._response = response

    def line(self) -> str:
        """Return the next line with its line break; "" at the end. Raises Lost."""
        try:
            return self._response.readline().decode("utf-8", "replace")
        except (OSError, ValueError, AttributeError, _http().HTTPException) as error:
            # ValueError, AttributeError: another thread has closed it.
            raise _lost(error) from None

    def close(self) -> None:
        """Close the response and wake a thread that reads from it."""
        import socket

        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._response.close()
        self._connection.close()


class Pauses:
    """Exponential backoff with jitter, for at most *patience_s*."""

    def __init__(self, patience_s: float) -> None:
        self._until = time.monotonic() + patience_s
        self._next_s = 0.05

    def pause(self) -> bool:
        """Sleep and return True; return False when the time is over."""
        left = self._until - time.monotonic()
        if left <= 0:
            return False
        from random import random

        time.sleep(min(left, self._next_s * (0.5 + random())))
        self._next_s = min(2 * self._next_s, 2.0)
        return True


def error_of(status: int, body: bytes) -> LevadaError:
    """Return the error of an error response."""
    more = 0
    try:
        problem = json.loads(body)
        if status == 503 and problem.get("code") == "unresolved":
            return Unresolved(str(problem.get("detail")))
        more = int(problem.get("more") or 0)
        detail = str(problem.get("detail") or problem.get("title") or "")
        faults = [Fault(str(fault["path"]), str(fault["text"])) for fault in problem.get("errors") or ()]
        code = str(problem.get("code") or "")
    except (ValueError, AttributeError, KeyError, TypeError):
        detail, faults, code = body.decode("utf-8", "replace").strip(), [], ""
    detail = detail or f"the server answered {status}"
    if status in (400, 413, 415, 422):
        return BadInput(faults or [Fault("", detail)], more)
    if status == 404:
        return NotFound(detail)
    if status in (401, 403, 409, 412, 428):
        return Refused(detail, code)
    return LevadaError(detail)


def _http() -> Any:
    """Import http.client, which takes longer than the rest of the package."""
    import http.client

    return http.client


def _readable(connection: HTTPConnection) -> bool:
    """Whether an idle connection has data, which can only be its end."""
    import select

    if connection.sock is None:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _target(path: str, query: Mapping[str, Any] | None) -> str:
    from urllib.parse import urlencode

    parameters = {key: _plain(value) for key, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(parameters, doseq=True)}" if parameters else path


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value


def _lost(error: Exception) -> Lost:
    return (Silent if isinstance(error, TimeoutError) else Lost)(_why(error))


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
