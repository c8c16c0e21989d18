"""Slow, invalid and broken clients."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from levada.server.context import ServerTuning
from tests.server.http_server import Served, document, served
from tests.timeouts import WAIT_S


def connect(up: Served) -> socket.socket:
    parts = urlsplit(up.url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=WAIT_S)


def read_all(wire: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    content = b""
    while part := wire.recv(65536):
        content += part
    return content


def head(up: Served, method: str, path: str, *more: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {up.tokens['user']}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def alive(up: Served) -> bool:
    return up.ask("GET", "/healthz").status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\r\n" * 100 + b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    ],
    ids=["tls", "line", "version", "nonsense", "length", "smuggled", "chunk"],
)
def test_invalid_http_is_rejected_and_closed(up: Served, data: bytes) -> None:
    with connect(up) as wire:
        wire.sendall(data)
        answer = read_all(wire)
    assert b" 5" not in answer.split(b"\r\n")[0]
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 401"))
    assert alive(up)


def test_a_silent_client_is_disconnected() -> None:
    with served(tuning=ServerTuning(head_s=0.2)) as up, connect(up) as silent, connect(up) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost")
        assert read_all(silent).startswith(b"HTTP/1.1 408")
        assert read_all(slow).startswith(b"HTTP/1.1 408")
        assert alive(up)


def test_an_idle_connection_stays_open() -> None:
    with served(tuning=ServerTuning(head_s=0.2)) as up, connect(up) as wire:
        for _ in range(2):
            wire.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                answer += wire.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200")
            # Longer than the timeout of a head.
            wire.settimeout(0.4)
            with pytest.raises(TimeoutError):
                wire.recv(1)
            wire.settimeout(WAIT_S)


def test_an_endless_head_is_rejected(up: Served) -> None:
    with connect(up) as wire:
        wire.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        # Socket buffers accept a part of it.
        with pytest.raises(OSError):
            wire.sendall((b"X-Long: " + b"x" * 1000 + b"\r\n") * 100_000)
    assert alive(up)


def test_an_incomplete_body_times_out() -> None:
    with served(tuning=ServerTuning(body_s=0.2)) as up, connect(up) as wire:
        wire.sendall(head(up, "POST", "/api/v1/jobs", "Content-Type: application/json", "Content-Length: 100") + b"{")
        answer = read_all(wire)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"application/problem+json" in answer
        assert b'"code":"too_slow"' in answer
        assert alive(up)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_too_large_body_is_rejected(chunked: bool) -> None:
    with served(tuning=ServerTuning(max_bytes=1000)) as up, connect(up) as wire:
        if chunked:
            wire.sendall(
                head(up, "POST", "/api/v1/jobs", "Content-Type: application/json", "Transfer-Encoding: chunked")
            )
            wire.sendall((b"3e8\r\n" + b" " * 1000 + b"\r\n") * 2)
        else:
            # Rejected before it is sent.
            wire.sendall(head(up, "POST", "/api/v1/jobs", "Content-Type: application/json", "Content-Length: 999999"))
        answer = read_all(wire)
        assert answer.startswith(b"HTTP/1.1 413")
        assert b'"code":"too_large"' in answer
        assert alive(up)


def test_a_body_without_a_token_is_not_read(up: Served) -> None:
    with connect(up) as wire:
        wire.sendall(b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n")
        assert wire.recv(65536).startswith(b"HTTP/1.1 401")


def test_an_unread_watch_is_closed() -> None:
    with served(tuning=ServerTuning(take_s=0.3)) as up, connect(up) as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.sendall(head(up, "GET", "/api/v1/watch"))
        end = time.monotonic() + WAIT_S
        while not up.service.open_watches and time.monotonic() < end:
            time.sleep(0.01)

        def flood() -> None:
            for _ in range(200):
                up.service.add_event("noise", None, "x" * 50_000)

        up.run(flood)
        while up.service.open_watches and time.monotonic() < end:
            time.sleep(0.05)
        assert up.service.open_watches == 0
        assert alive(up)


def test_responses_are_not_delayed(up: Served) -> None:
    # Nagle's algorithm would add 40 ms to each of them.
    took = []
    with connect(up) as wire:
        for _ in range(20):
            began = time.perf_counter()
            wire.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                answer += wire.recv(65536)
            took.append(time.perf_counter() - began)
    assert min(took) < 0.03


def test_a_stream_ends_if_an_announced_body_is_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    with served(tuning=ServerTuning(body_s=0.2)) as up, connect(up) as wire:
        wire.sendall(head(up, "GET", "/api/v1/watch", "Content-Length: 10"))
        answer = b""
        while not answer.endswith(b"0\r\n\r\n"):
            answer += wire.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200")
        assert alive(up)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_many_clients_at_once(up: Served) -> None:
    answers: list[int] = []

    def work(number: int) -> None:
        answers.append(up.ask("POST", "/api/v1/jobs", document(f"job{number}"), role="user").status)
        answers.append(up.ask("GET", f"/api/v1/jobs/job{number}").status)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(answers) == [200] * 40 + [201] * 40


def test_a_client_that_disconnects_during_its_body_has_no_effect(up: Served) -> None:
    body = b'{"apiVersion": "levada.dev/v1"'
    for _ in range(10):
        with connect(up) as wire:
            wire.sendall(
                head(up, "POST", "/api/v1/jobs", "Content-Type: application/json", "Content-Length: 500") + body
            )
    assert alive(up)
    listed: Any = up.ask("GET", "/api/v1/jobs").json()
    assert listed["items"] == []
