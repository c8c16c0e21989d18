"""Event and log streams as bytes."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from levada.server.context import ServerTuning
from tests.server.http_server import Served, document, served
from tests.timeouts import WAIT_S


@contextmanager
def opened(up: Served, path: str, **headers: str) -> Iterator[Any]:
    """Open a stream; yields a file that starts at the status line."""
    parts = urlsplit(up.url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=WAIT_S) as wire:
        head = {"Host": parts.netloc, "Authorization": f"Bearer {up.tokens['viewer']}", **headers}
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in head.items())
        wire.sendall(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        with wire.makefile("rb") as answer:
            yield answer


def events(answer: Any, number: int) -> list[dict[str, Any]]:
    """Return the fields of the next events; skips the ends of chunks."""
    received: list[dict[str, Any]] = []
    fields: dict[str, Any] = {}
    while len(received) < number:
        line = answer.readline().decode().rstrip("\r\n")
        name, colon, value = line.partition(": ")
        if colon and name in ("id", "event", "data"):
            fields[name] = value
        elif not line and "data" in fields:
            received.append(fields)
            fields = {}
    return received


def until(condition: Any) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_events_have_ids_types_and_jobs(up: Served) -> None:
    with opened(up, "/api/v1/watch") as answer:
        assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
        until(lambda: up.service.open_watches)
        job = up.ask("POST", "/api/v1/jobs", document()).json()["id"]
        first, second = events(answer, 2)
        assert (first["id"], first["event"], json.loads(first["data"])["job"]) == ("1", "submitted", job)
        assert (second["id"], second["event"]) == ("2", "phase")


@pytest.mark.parametrize("how", ["header", "query"])
def test_a_watch_continues_after_an_event(up: Served, how: str) -> None:
    up.ask("POST", "/api/v1/jobs", [document("a"), document("b")])
    path = "/api/v1/watch" + ("?after=2" if how == "query" else "")
    headers = {"Last_Event_ID": "2"} if how == "header" else {}
    with opened(up, path, **headers) as answer:
        assert [event["id"] for event in events(answer, 2)] == ["3", "4"]
        up.ask("POST", "/api/v1/jobs", document("c"))
        assert [event["id"] for event in events(answer, 2)] == ["5", "6"]


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "9" * 30, "١"])
def test_an_invalid_event_id_is_rejected(up: Served, last: str) -> None:
    response = up.ask("GET", "/api/v1/watch", headers={"Last-Event-ID": last.encode().decode("latin-1")})
    assert (response.status, response.json()["errors"][0]["path"]) == (422, "Last-Event-ID")


@pytest.mark.parametrize("how", ["Last-Event-ID", "after"])
def test_a_future_event_id_is_rejected(up: Served, how: str) -> None:
    up.ask("POST", "/api/v1/jobs", document())
    last = up.service.history.last_event()
    query, headers = ("?after=99", {}) if how == "after" else ("", {"Last-Event-ID": "99"})
    response = up.ask("GET", f"/api/v1/watch{query}", headers=headers)
    assert (response.status, response.json()["errors"][0]["path"]) == (422, how)
    assert f"the last is {last}" in response.json()["detail"]
    with opened(up, f"/api/v1/watch?after={last}") as answer:
        assert answer.readline() == b"HTTP/1.1 200 OK\r\n"


def test_a_watch_starts_with_a_comment(up: Served) -> None:
    up.ask("POST", "/api/v1/jobs", document())
    last = up.service.history.last_event()
    with opened(up, "/api/v1/watch") as answer:
        while (header := answer.readline().strip()) != b"":
            pass  # headers
        blocks = [line for _ in range(4) if (line := answer.readline().strip()).startswith((b":", b"id"))]
        assert blocks == [b": after %d" % last], header


def test_a_disconnect_closes_the_watch(up: Served) -> None:
    with opened(up, "/api/v1/watch"):
        until(lambda: up.service.open_watches == 1)
    until(lambda: up.service.open_watches == 0)
    assert up.service.open_watches == 0


def test_an_idle_stream_sends_heartbeats() -> None:
    with served(tuning=ServerTuning(beat_s=0.05)) as up, opened(up, "/api/v1/watch") as answer:
        seen = b""
        while seen.count(b":\n\n") < 3:
            line = answer.readline()
            assert line, "the stream ended"
            seen += line


def test_streams_end_when_the_server_stops() -> None:
    with served() as up:
        job = up.ask("POST", "/api/v1/jobs", document()).json()["id"]
        with opened(up, "/api/v1/watch") as watch, opened(up, f"/api/v1/jobs/{job}/logs?follow=true") as logs:
            until(lambda: up.service.open_watches == 1)
            assert logs.readline() == b"HTTP/1.1 200 OK\r\n"
            began = time.monotonic()
            up.stop()
            assert watch.read().endswith(b"0\r\n\r\n")
            assert logs.read().endswith(b"0\r\n\r\n")
            assert time.monotonic() - began < 4


def test_logs_are_lines_of_json_or_events(up: Served) -> None:
    job = up.ask("POST", "/api/v1/jobs", document()).json()["id"]
    up.run(lambda: up.service.add_output(job, "hello\nworld"))
    plain = up.ask("GET", f"/api/v1/jobs/{job}/logs")
    assert plain.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line)["text"] for line in plain.text.splitlines()] == ["hello\nworld"]
    sent = up.ask("GET", f"/api/v1/jobs/{job}/logs", headers={"Accept": "text/event-stream"})
    assert sent.headers["content-type"] == "text/event-stream"
    assert json.loads(sent.text.removeprefix("data: "))["text"] == "hello\nworld"
    assert up.ask("GET", f"/api/v1/jobs/{job}/logs?worker=9").status == 404
    assert up.ask("GET", f"/api/v1/jobs/{job}/logs?tail=-1").status == 422
    assert up.ask("GET", f"/api/v1/jobs/{job}/logs?since=nan").status == 422


@pytest.mark.parametrize("ends", ["revoked", "over"])
def test_a_stream_ends_when_its_token_expires(ends: str) -> None:
    with served(tuning=ServerTuning(beat_s=0.05)) as up:
        job = up.ask("POST", "/api/v1/jobs", document()).json()["id"]
        created = up.ask("POST", "/api/v1/tokens", {"user": "zoe", "role": "viewer"}).json()
        zoe = {"Authorization": f"Bearer {created['token']}", "Connection": "close"}
        follow = f"/api/v1/jobs/{job}/logs?follow=1"
        with opened(up, "/api/v1/watch", **zoe) as watch, opened(up, follow, **zoe) as logs:
            until(lambda: up.service.open_watches == 1)
            assert logs.readline() == b"HTTP/1.1 200 OK\r\n"
            with opened(up, "/api/v1/watch") as another:
                if ends == "revoked":
                    assert up.ask("DELETE", f"/api/v1/tokens/{created['id']}").status == 204
                else:
                    up.keys.tokens[created["id"]]["until"] = 1.0
                assert watch.read().endswith(b"0\r\n\r\n")
                assert logs.read().endswith(b"0\r\n\r\n")
                up.ask("POST", "/api/v1/jobs", document("later"))
                assert len(events(another, 2)) == 2
