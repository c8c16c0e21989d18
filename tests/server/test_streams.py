"""Streams on the wire: events and logs as a browser or curl sees them."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from levada.server.context import Tuning
from tests.patience import WAIT_S
from tests.server.serving import Served, document, served


@contextmanager
def opened(up: Served, path: str, **headers: str) -> Iterator[Any]:
    """The lines of an answer that goes on, from its status line."""
    parts = urlsplit(up.url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=WAIT_S) as wire:
        head = {"Host": parts.netloc, "Authorization": f"Bearer {up.tokens['viewer']}", **headers}
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in head.items())
        wire.sendall(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        with wire.makefile("rb") as answer:
            yield answer


def events(answer: Any, number: int) -> list[dict[str, Any]]:
    """The next events, as their fields; the ends of chunks are passed over."""
    found: list[dict[str, Any]] = []
    fields: dict[str, Any] = {}
    while len(found) < number:
        line = answer.readline().decode().rstrip("\r\n")
        name, colon, value = line.partition(": ")
        if colon and name in ("id", "event", "data"):
            fields[name] = value
        elif not line and "data" in fields:
            found.append(fields)
            fields = {}
    return found


def until(true: Any) -> None:
    end = time.monotonic() + WAIT_S
    while not true():
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
def test_a_watch_goes_on_right_after_an_event(up: Served, how: str) -> None:
    up.ask("POST", "/api/v1/jobs", [document("a"), document("b")])
    path = "/api/v1/watch" + ("?after=2" if how == "query" else "")
    headers = {"Last_Event_ID": "2"} if how == "header" else {}
    with opened(up, path, **headers) as answer:
        assert [each["id"] for each in events(answer, 2)] == ["3", "4"]
        up.ask("POST", "/api/v1/jobs", document("c"))
        assert [each["id"] for each in events(answer, 2)] == ["5", "6"]


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "9" * 30, "١"])
def test_an_id_that_is_none_is_refused(up: Served, last: str) -> None:
    got = up.ask("GET", "/api/v1/watch", headers={"Last-Event-ID": last.encode().decode("latin-1")})
    assert (got.status, got.json()["errors"][0]["path"]) == (422, "Last-Event-ID")


@pytest.mark.parametrize("how", ["Last-Event-ID", "after"])
def test_an_id_that_was_never_given_out_is_refused(up: Served, how: str) -> None:
    up.ask("POST", "/api/v1/jobs", document())
    last = up.service.last_event()
    query, headers = ("?after=99", {}) if how == "after" else ("", {"Last-Event-ID": "99"})
    got = up.ask("GET", f"/api/v1/watch{query}", headers=headers)
    assert (got.status, got.json()["errors"][0]["path"]) == (422, how)
    assert f"the last is {last}" in got.json()["detail"]
    with opened(up, f"/api/v1/watch?after={last}") as answer:
        assert answer.readline() == b"HTTP/1.1 200 OK\r\n"


def test_a_watch_begins_with_a_comment(up: Served) -> None:
    up.ask("POST", "/api/v1/jobs", document())
    last = up.service.last_event()
    with opened(up, "/api/v1/watch") as answer:
        while (said := answer.readline().strip()) != b"":
            pass  # headers
        blocks = [line for _ in range(4) if (line := answer.readline().strip()).startswith((b":", b"id"))]
        assert blocks == [b": after %d" % last], said


def test_a_client_that_goes_is_forgotten(up: Served) -> None:
    with opened(up, "/api/v1/watch"):
        until(lambda: up.service.open_watches == 1)
    until(lambda: up.service.open_watches == 0)


def test_a_quiet_stream_says_that_it_is_there() -> None:
    with served(tuning=Tuning(beat_s=0.05)) as up, opened(up, "/api/v1/watch") as answer:
        seen = b""
        while seen.count(b":\n\n") < 3:
            seen += answer.readline()


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
    up.run(lambda: up.service.say(job, "hello\nworld"))
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
def test_a_stream_ends_with_its_token(ends: str) -> None:
    with served(tuning=Tuning(beat_s=0.05)) as up:
        job = up.ask("POST", "/api/v1/jobs", document()).json()["id"]
        made = up.ask("POST", "/api/v1/tokens", {"user": "zoe", "role": "viewer"}).json()
        zoe = {"Authorization": f"Bearer {made['token']}", "Connection": "close"}
        follow = f"/api/v1/jobs/{job}/logs?follow=1"
        with opened(up, "/api/v1/watch", **zoe) as watch, opened(up, follow, **zoe) as logs:
            until(lambda: up.service.open_watches == 1)
            assert logs.readline() == b"HTTP/1.1 200 OK\r\n"
            with opened(up, "/api/v1/watch") as another:
                if ends == "revoked":
                    assert up.ask("DELETE", f"/api/v1/tokens/{made['id']}").status == 204
                else:
                    up.keys.tokens[made["id"]]["until"] = 1.0
                assert watch.read().endswith(b"0\r\n\r\n")
                assert logs.read().endswith(b"0\r\n\r\n")
                up.ask("POST", "/api/v1/jobs", document("later"))
                assert len(events(another, 2)) == 2
