"""Addresses hear of the end of jobs and of warnings, and none of them can do harm."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from levada.core import events as ev
from levada.live.deadlines import Deadlines
from levada.live.notify import host_of, message_of, post
from levada.live.store import HistoryLine
from tests.live.house import House, document, house
from tests.live.rehearsal import Stage
from tests.live.test_warnings import watched


class Hook(ThreadingHTTPServer):
    """Somebody who wants to hear; answers with *status*, the first *failures* times with 503."""

    daemon_threads = True

    def __init__(self, status: int = 200, failures: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), Ear)
        self.status, self.failures = status, failures
        self.heard: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook?key=secret"


class Ear(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        fails = self.server.failures > 0
        self.server.failures -= fails
        self.server.headers.append(dict(self.headers))
        if not fails:
            self.server.heard.append(json.loads(body))
        self.send_response(503 if fails else self.server.status)
        self.send_header("Location", self.server.url)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def hook(**fields: int) -> Iterator[Hook]:
    made = Hook(**fields)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


@contextmanager
def dead() -> Iterator[str]:
    """An address where nobody answers: connections are taken, and that is all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"


async def outcomes(up: House, job: str) -> list[dict[str, Any]]:
    return [line for line in await up.service.history(job=job, after=0, limit=1000) if line["type"] == "notify"]


async def told(up: House, job: str, count: int = 1) -> list[dict[str, Any]]:
    """What became of telling, once it is all there."""
    async with asyncio.timeout(20):
        while len(found := await outcomes(up, job)) < count:
            await asyncio.sleep(0.01)
    return found


async def end(up: House, *addresses: str) -> str:
    """A job that runs and ends."""
    (view,) = await up.service.submit([document(notify=list(addresses))], user="ann", key=None)
    await up.until(lambda: up.phase(view["id"]) == "Running")
    up.backend.finish(view["id"])
    await up.until(lambda: up.phase(view["id"]) == "Succeeded")
    return str(view["id"])


def test_an_address_that_had_not_heard_when_the_server_died_hears_from_the_next(tmp_path: Path) -> None:
    async def story() -> None:
        stage = Stage()
        with hook(failures=1) as ear:
            async with house(f"sqlite:///{tmp_path}/levada.db", stage) as up:
                job = await end(up, ear.url)
                await up.until(lambda: ear.headers)
                await up.kill()
            assert not ear.heard
            async with house(f"sqlite:///{tmp_path}/levada.db", stage) as up:
                await up.until(lambda: ear.heard)
            assert {message["job"] for message in ear.heard} == {job}

    asyncio.run(story())


def test_an_address_hears_of_the_end_and_the_history_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        with hook() as ear:
            async with house(f"sqlite:///{tmp_path}/levada.db") as up:
                job = await end(up, ear.url, ear.url)
                (line,) = await told(up, job)
                (message,) = ear.heard
                assert set(message) == {"job", "phase", "text", "time"}
                assert (message["job"], message["phase"]) == (job, "Succeeded")
                assert message["time"].endswith("Z")
                assert ear.headers[0]["Content-Type"] == "application/json"
                assert line["told"] is True
                assert line["text"] == f"{host_of(ear.url)} was told."
                assert "secret" not in json.dumps(line)

    asyncio.run(story())


def test_an_address_hears_that_a_job_is_stuck(tmp_path: Path) -> None:
    async def story() -> None:
        with hook() as ear:
            async with watched(tmp_path, stuck_after_s=0.2) as up:
                (view,) = await up.service.submit([document(notify=[ear.url])], user="ann", key=None)
                await up.until(lambda: up.phase(view["id"]) == "Running")
                number = up.live.loop.records.by_id[view["id"]].number
                up.backend.report(ev.Progress(at=0.0, number=np.array([number]), steps=np.array([3.0])))
                await told(up, view["id"])
                (message,) = ear.heard
                assert (message["job"], message["warning"]) == (view["id"], "stuck")

    asyncio.run(story())


def test_an_address_hears_once_that_a_deadline_has_passed(tmp_path: Path) -> None:
    async def story() -> None:
        with hook() as ear:
            async with watched(tmp_path) as up:
                late = document(deadline=0.5, notify=[ear.url])
                (view,) = await up.service.submit([late], user="ann", key=None)
                await told(up, view["id"])
                (line,) = await warned(up, view["id"])
                assert "has passed, and it goes on all the same" in line["text"]
                assert (line["warning"], up.phase(view["id"])) == ("deadline", "Running")
                assert [(each["job"], each["warning"]) for each in ear.heard] == [(view["id"], "deadline")]
            async with watched(tmp_path) as up:
                await Deadlines(up.live.loop).look()
                await up.settle()
                assert len(await warned(up, view["id"])) == 1, "a server before this one has told it"

    asyncio.run(story())


async def warned(up: House, job: str) -> list[dict[str, Any]]:
    return [line for line in await up.service.history(job=job, after=0, limit=1000) if line["type"] == "warning"]


def test_who_is_away_for_a_moment_is_told_a_moment_later(tmp_path: Path) -> None:
    async def story() -> None:
        with hook(failures=1) as ear:
            async with house(f"sqlite:///{tmp_path}/levada.db") as up:
                job = await end(up, ear.url)
                (line,) = await told(up, job)
                assert line["told"]
                assert len(ear.heard) == 1
                first, second = (headers["Idempotency-Key"] for headers in ear.headers)
                assert first == second

    asyncio.run(story())


def test_a_dead_address_holds_up_neither_jobs_nor_other_addresses(tmp_path: Path) -> None:
    async def story() -> None:
        with dead() as silent, hook() as ear:
            async with house(f"sqlite:///{tmp_path}/levada.db") as up:
                job = await end(up, silent, ear.url)
                (line,) = await told(up, job)
                assert (line["told"], line["text"]) == (True, f"{host_of(ear.url)} was told.")
                for _ in range(5):
                    await end(up, silent)

    asyncio.run(story())


def test_what_an_address_had_not_heard_before_a_kill_it_hears_after_it(tmp_path: Path) -> None:
    async def story() -> None:
        stage, url = Stage(), f"sqlite:///{tmp_path}/levada.db"
        with hook() as ear:
            async with house(url, stage) as up:
                first = await end(up, ear.url)
                await told(up, first)
                ear.failures = 1
                second = await end(up, ear.url)
                await up.until(lambda: ear.failures == 0)
                await up.kill()
            assert [each["job"] for each in ear.heard] == [first]
            async with house(url, stage) as up:
                await told(up, second)
                assert [each["job"] for each in ear.heard] == [first, second]

    asyncio.run(story())


@pytest.mark.parametrize("status", [301, 302, 307, 404, 500])
def test_an_address_that_answers_otherwise_was_not_told(status: int) -> None:
    with hook(status=status) as ear:
        assert post(ear.url, {}, "1") == f"it answered {status}"
        assert len(ear.heard) == 1, "it is not passed on"


def test_other_schemes_and_closed_ports_are_faults_and_nothing_more() -> None:
    assert post("file:///etc/passwd", {}, "1") == "it is no http or https address"
    assert post("http://[::1", {}, "1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert "refused" in post(f"http://127.0.0.1:{port}/", {}, "1").lower()
    with dead() as silent:
        assert "timed out" in post(silent, {}, "1", 0.1)


def test_only_ends_and_warnings_are_told() -> None:
    def line(kind: str, **data: Any) -> HistoryLine:
        return HistoryLine(id=1, at=0.0, job="j", type=kind, text="t", data=data)

    assert message_of(line("phase", phase="Running")) is None
    assert message_of(line("grant", workers=3)) is None
    assert message_of(line("notify", told=True)) is None
    head = {"job": "j", "text": "t", "time": "1970-01-01T00:00:00.000Z"}
    assert message_of(line("phase", phase="Failed")) == {**head, "phase": "Failed"}
    assert message_of(line("warning", warning="idle")) == {**head, "warning": "idle"}
