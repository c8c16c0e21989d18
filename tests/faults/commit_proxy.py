"""A proxy to PostgreSQL that breaks the connection at one commit, before or after its execution."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal
from urllib.parse import urlsplit

from tests.timeouts import WAIT_S


class CommitProxy:
    """Forwards bytes both ways. After the cut no connection is possible until `restore`."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "", parts.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}").geturl()
        #: Text in the transaction to be cut, and when the connection breaks.
        self._mark = b""
        self._when: Literal["before", "after"] = "before"
        self.was_cut = threading.Event()
        #: The database has confirmed the commit; the server never receives that.
        self._answered = threading.Event()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._start(self._accept)

    def arm(self, mark: str, when: Literal["before", "after"]) -> None:
        """Cut the commit of the transaction that contains *mark*."""
        self._mark, self._when = mark.encode(), when

    def restore(self) -> None:
        """Accept connections again."""
        self._mark = b""
        self.was_cut.clear()

    def close(self) -> None:
        self._listener.close()
        self._cut()

    def _start(self, target: object, *args: object) -> None:
        threading.Thread(target=target, args=args, daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.was_cut.is_set():
                near.close()
                continue
            far = socket.create_connection(self._upstream)
            self._pairs.append((near, far))
            self._start(self._requests, near, far)
            self._start(self._answers, far, near)

    def _requests(self, near: socket.socket, far: socket.socket) -> None:
        sent = b""
        with contextlib.suppress(OSError):
            while data := near.recv(1 << 16):
                sent += data
                if b"COMMIT" in data:
                    if self._mark and self._mark in sent and not self.was_cut.is_set():
                        self.was_cut.set()
                        if self._when == "after":
                            far.sendall(data)
                            assert self._answered.wait(WAIT_S)
                        self._cut()
                        return
                    sent = b""
                far.sendall(data)
        _shut(near, far)

    def _answers(self, far: socket.socket, near: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(1 << 16):
                if self.was_cut.is_set():
                    if b"COMMIT" in data:
                        self._answered.set()
                    continue
                near.sendall(data)
        _shut(near, far)

    def _cut(self) -> None:
        for pair in self._pairs:
            _shut(*pair)
        self._pairs.clear()


def _shut(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


@contextmanager
def commit_proxy(upstream: str) -> Iterator[CommitProxy]:
    cutter = CommitProxy(upstream)
    try:
        yield cutter
    finally:
        cutter.close()
