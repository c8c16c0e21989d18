"""HTTP to one server over the standard library: connections that are kept, errors as Levada's own, and patience.

A request that the server may not have seen is sent again only where that does no harm: reads, and submissions with an
Idempotency-Key. Whoever cannot reach a server at all is told at once.
What only a request needs is imported by it: the import of this package stays cheap.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from levada.errors import BadInput, Fault, LevadaError, NoServer, NotFound, Refused, Unresolved
from levada.sdk.place import Address

if TYPE_CHECKING:
    import socket
    from http.client import HTTPConnection, HTTPResponse

#: A connection that was idle for longer may have been closed by the server, which keeps them for a minute.
_KEPT_S = 50.0
_MOST_IDLE = 8


class Reply(NamedTuple):
    """An answer that is no error."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as plain values; None where it is empty."""
        return json.loads(self.body) if self.body else None


class Lost(Exception):
    """The connection broke before the answer was complete."""


class Silent(Lost):
    """The connection is there, and no answer comes."""


class Unanswered(NoServer):
    """The server got the request, or may have got it, and what became of it is not known."""


def segment(name: str) -> str:
    """A name as one part of a path; raises BadInput where there is none."""
    from urllib.parse import quote

    if not name:
        raise BadInput.one("a name must not be empty")
    return quote(name, safe="")


class Transport:
    """The connections to one server. Threads may share it."""

    def __init__(
        self,
        find: Callable[[], Address],
        *,
        timeout_s: float = 60.0,
        patience_s: float = 10.0,
        waiting: Callable[[str], AbstractContextManager[object]] | None = None,
    ) -> None:
        """*waiting* makes what is entered while the server at an address is asked."""
        self._find = find
        self._waiting = waiting or contextlib.nullcontext
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._idle: list[tuple[float, HTTPConnection]] = []
        self._reached = False
        self._address = find()

    @property
    def address(self) -> Address:
        """The server in use."""
        return self._address

    def close(self) -> None:
        """Closes what is idle."""
        while self._idle:
            self._idle.pop()[1].close()

    def __del__(self) -> None:
        # Whoever forgets to close a client leaves no open socket behind.
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
        """The answer; raises an error of `levada.errors` for one that says no, NoServer where none comes."""
        target = _target(path, query)
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        with self._waiting(self._address.url):
            return self._asked(method, target, content, headers, repeatable or method == "GET")

    def _asked(
        self, method: str, target: str, content: bytes | None, headers: Mapping[str, str] | None, repeatable: bool
    ) -> Reply:
        pauses = Pauses(self._patience_s)
        sent = False
        while True:
            try:
                connection = self._connected()
            except OSError as error:
                # A server that was there may be starting anew; one that never was is not there.
                if not (self._reached and pauses.pause()):
                    absent = self._no_server(error)
                    raise (Unanswered(str(absent)) if sent else absent) from None
                self._relocate()
                continue
            sent = True
            try:
                return self._exchange(connection, method, target, content, headers)
            except Unresolved:
                # Asked again with its key, the server tells once it knows.
                if not (repeatable and pauses.pause()):
                    raise
            except Lost as error:
                connection.close()
                # Who was silent for that long was waited for long enough.
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
        response = self._sent(connection, method, target, content, headers)
        try:
            answer = response.read()
        except (OSError, _http().HTTPException) as error:
            raise _lost(error) from None
        if response.will_close:
            connection.close()
        elif len(self._idle) < _MOST_IDLE:
            self._idle.append((time.monotonic(), connection))
        else:
            connection.close()
        if response.status >= 400:
            raise error_of(response.status, answer)
        return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, answer)

    def stream(
        self,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        silence_s: float | None = None,
    ) -> OpenAnswer:
        """An answer whose end nobody waits for, on a connection of its own; raises as `request`, and Lost.

        Where nothing comes for *silence_s*, reading it raises TimeoutError.
        """
        try:
            connection = self._new(silence_s)
        except OSError as error:
            raise _lost(error) from None
        sock = connection.sock
        try:
            response = self._sent(connection, "GET", _target(path, query), None, headers)
            if response.status >= 400:
                raise error_of(response.status, response.read())
        except BaseException:
            connection.close()
            raise
        return OpenAnswer(connection, sock, response)

    def _sent(
        self,
        connection: HTTPConnection,
        method: str,
        target: str,
        content: bytes | None,
        headers: Mapping[str, str] | None,
    ) -> HTTPResponse:
        """The head of the answer; raises Lost."""
        from urllib.parse import urlsplit

        # Behind a proxy a server may live below a path.
        target = urlsplit(self._address.url).path + target
        sent = {"Authorization": f"Bearer {self._address.token}"} if self._address.token else {}
        if content is not None:
            sent["Content-Type"] = "application/json"
        sent |= headers or {}
        try:
            connection.request(method, target, body=content, headers=sent)
        except OSError as error:
            # A server that refuses a body may answer before it has read all of it.
            if not isinstance(error, BrokenPipeError | ConnectionResetError):
                raise _lost(error) from None
        try:
            return connection.getresponse()
        except (OSError, _http().HTTPException) as error:
            raise _lost(error) from None

    # --------------------------------------------------------------------------------------------------- connections
    def _connected(self) -> HTTPConnection:
        """A connection that is kept and still good, or a new one; raises OSError."""
        while True:
            try:
                since, connection = self._idle.pop()
            except IndexError:
                return self._new(self._timeout_s)
            if time.monotonic() - since < _KEPT_S and not _readable(connection):
                return connection
            connection.close()

    def _new(self, timeout_s: float | None) -> HTTPConnection:
        from urllib.parse import urlsplit

        parts = urlsplit(self._address.url)
        kind = _http().HTTPSConnection if parts.scheme == "https" else _http().HTTPConnection
        try:
            connection = kind(parts.hostname or "localhost", parts.port, timeout=timeout_s)
        except ValueError as error:
            raise BadInput.one(f"{self._address.url} is no address of a server: {error}") from None
        connection.connect()
        self._reached = True
        return connection

    def _relocate(self) -> None:
        """Looks where the server is now: one that started anew may have taken another port."""
        with contextlib.suppress(NoServer):
            self._address = self._find()

    def _no_server(self, error: Exception) -> NoServer:
        return NoServer(f"no server answers at {self._address.url} ({_why(error)}); start one with `levada up`")

    def _unanswered(self, error: Lost, repeatable: bool) -> NoServer:
        url = self._address.url
        if isinstance(error, Silent) and repeatable:
            silent = f"the server at {url} has not answered for {self._timeout_s:g} s"
            return Unanswered(
                f"{silent}; try again, and where that does not help, see its server.log and start it anew"
            )
        return Unanswered(f"the connection to {url} broke ({error}); look at what became of it, then try again")

    def wait_out(self, error: Lost, pauses: Pauses) -> None:
        """Waits a little before the next try; raises NoServer when patience is over."""
        if not (self._reached and pauses.pause()):
            raise self._no_server(error)
        self._relocate()

    def pauses(self) -> Pauses:
        """Fresh patience."""
        return Pauses(self._patience_s)


class OpenAnswer:
    """An answer that goes on, line by line."""

    def __init__(self, connection: HTTPConnection, sock: socket.socket, response: HTTPResponse) -> None:
        self._connection = connection
        self._sock = sock
        self._response = response

    def line(self) -> str:
        """The next line with its end; empty at the end of the answer. Raises Lost where it breaks off."""
        try:
            return self._response.readline().decode("utf-8", "replace")
        except (OSError, ValueError, AttributeError, _http().HTTPException) as error:
            # The two in the middle: another thread has closed it.
            raise _lost(error) from None

    def close(self) -> None:
        """Ends it, and wakes a thread that reads from it."""
        import socket

        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._response.close()
        self._connection.close()


class Pauses:
    """Growing pauses with chance in them, until patience is over."""

    def __init__(self, patience_s: float) -> None:
        self._until = time.monotonic() + patience_s
        self._next_s = 0.05

    def pause(self) -> bool:
        """Sleeps a little and says so; or says that it is no use any more."""
        left = self._until - time.monotonic()
        if left <= 0:
            return False
        from random import random

        time.sleep(min(left, self._next_s * (0.5 + random())))
        self._next_s = min(2 * self._next_s, 2.0)
        return True


def error_of(status: int, body: bytes) -> LevadaError:
    """The error that an answer tells of."""
    more = 0
    try:
        problem = json.loads(body)
        if status == 503 and problem.get("code") == "unresolved":
            return Unresolved(str(problem.get("detail")))
        more = int(problem.get("more") or 0)
        detail = str(problem.get("detail") or problem.get("title") or "")
        faults = [Fault(str(each["path"]), str(each["text"])) for each in problem.get("errors") or ()]
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
    """http.client, which takes longer to import than all the rest."""
    import http.client

    return http.client


def _readable(connection: HTTPConnection) -> bool:
    """Whether something came on an idle connection, which can only be its end."""
    import select

    if connection.sock is None:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _target(path: str, query: Mapping[str, Any] | None) -> str:
    from urllib.parse import urlencode

    given = {key: _plain(value) for key, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value


def _lost(error: Exception) -> Lost:
    return (Silent if isinstance(error, TimeoutError) else Lost)(_why(error))


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
