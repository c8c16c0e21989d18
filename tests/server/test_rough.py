"""Clients that are slow, rude or broken."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from levada.server.context import Tuning
from tests.patience import WAIT_S
from tests.server.serving import Served, document, served


def connect(up: Served) -> socket.socket:
    parts = urlsplit(up.url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=WAIT_S)


def all_of(wire: socket.socket) -> bytes:
    """What comes until the other side closes."""
    content = b""
    while data := wire.recv(65536):
        content += data
    return content


def head(up: Served, method: str, path: str, *more: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {up.tokens['user']}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def alive(up: Served) -> bool:
    return up.ask("GET", "/healthz").status == 200


@pytest.mark.parametrize(
    "said",
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
def test_what_is_no_http_is_refused_and_closed(up: Served, said: bytes) -> None:
    with connect(up) as wire:
        wire.sendall(said)
        answer = all_of(wire)
    assert b" 5" not in answer.split(b"\r\n")[0]
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 401"))
    assert alive(up)


def test_a_client_that_says_nothing_is_sent_away() -> None:
    with served(tuning=Tuning(head_s=0.2)) as up, connect(up) as silent, connect(up) as dawdler:
        dawdler.sendall(b"GET /healthz HTTP/1.1\r\nHost")
        assert all_of(silent).startswith(b"HTTP/1.1 408")
        assert all_of(dawdler).startswith(b"HTTP/1.1 408")
        assert alive(up)


def test_a_connection_that_is_kept_may_rest() -> None:
    with served(tuning=Tuning(head_s=0.2)) as up, connect(up) as wire:
        for _ in range(2):
            wire.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                answer += wire.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200")
            # Longer than a head may take.
            wire.settimeout(0.4)
            with pytest.raises(TimeoutError):
                wire.recv(1)
            wire.settimeout(WAIT_S)


def test_a_head_without_end_is_refused(up: Served) -> None:
    with connect(up) as wire:
        wire.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        # Buffers on the way take some of it, however soon the server has seen enough.
        with pytest.raises(OSError):
            wire.sendall((b"X-Long: " + b"x" * 1000 + b"\r\n") * 100_000)
    assert alive(up)


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    with served(tuning=Tuning(body_s=0.2)) as up, connect(up) as wire:
        wire.sendall(head(up, "POST", "/api/v1/jobs", "Content-Type: application/json", "Content-Length: 100") + b"{")
        answer = all_of(wire)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"application/problem+json" in answer
        assert b'"code":"too_slow"' in answer
        assert alive(up)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_refused(chunked: bool) -> None:
    with served(tuning=Tuning(most_bytes=1000)) as up, connect(up) as wire:
        if chunked:
            wire.sendall(
                head(up, "POST", "/api/v1/jobs", "Content-Type: application/json", "Transfer-Encoding: chunked")
            )
            wire.sendall((b"3e8\r\n" + b" " * 1000 + b"\r\n") * 2)
        else:
            # Before it is sent.
            wire.sendall(head(up, "POST", "/api/v1/jobs", "Content-Type: application/json", "Content-Length: 999999"))
        answer = all_of(wire)
        assert answer.startswith(b"HTTP/1.1 413")
        assert b'"code":"too_large"' in answer
        assert alive(up)


def test_nobody_without_a_token_gets_a_body_read(up: Served) -> None:
    with connect(up) as wire:
        wire.sendall(b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n")
        assert wire.recv(65536).startswith(b"HTTP/1.1 401")


def test_a_watch_that_nobody_reads_ends() -> None:
    with served(tuning=Tuning(take_s=0.3)) as up, connect(up) as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.sendall(head(up, "GET", "/api/v1/watch"))
        end = time.monotonic() + WAIT_S
        while not up.service.open_watches and time.monotonic() < end:
            time.sleep(0.01)

        def flood() -> None:
            for _ in range(200):
                up.service.tell("noise", None, "x" * 50_000)

        up.run(flood)
        while up.service.open_watches and time.monotonic() < end:
            time.sleep(0.05)
        assert up.service.open_watches == 0
        assert alive(up)


def test_answers_are_not_held_back(up: Served) -> None:
    # Nagle's algorithm would add 40 ms to every one of them.
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


def test_a_stream_ends_for_who_announces_a_body_and_sends_none(caplog: pytest.LogCaptureFixture) -> None:
    with served(tuning=Tuning(body_s=0.2)) as up, connect(up) as wire:
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


def test_a_client_that_hangs_up_halfway_harms_nobody(up: Served) -> None:
    body = b'{"apiVersion": "levada.dev/v1"'
    for _ in range(10):
        with connect(up) as wire:
            wire.sendall(
                head(up, "POST", "/api/v1/jobs", "Content-Type: application/json", "Content-Length: 500") + body
            )
    assert alive(up)
    listed: Any = up.ask("GET", "/api/v1/jobs").json()
    assert listed["items"] == []
