"""Webhooks: delivery of job ends and warnings, and hostile addresses."""

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
from levada.live.warnings import WarningOptions
from tests.live.fake_backend import FakeMachines
from tests.live.live_server import LiveServer, document, live_server
from tests.live.test_warnings import watched


class Webhook(ThreadingHTTPServer):
    """A webhook; responds with *status*, the first *failures* times with 503."""

    daemon_threads = True

    def __init__(self, status: int = 200, failures: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), WebhookHandler)
        self.status, self.failures = status, failures
        self.messages: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook?key=secret"


class WebhookHandler(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        fails = self.server.failures > 0
        self.server.failures -= fails
        self.server.headers.append(dict(self.headers))
        if not fails:
            self.server.messages.append(json.loads(body))
        self.send_response(503 if fails else self.server.status)
        self.send_header("Location", self.server.url)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def hook(**fields: int) -> Iterator[Webhook]:
    webhook = Webhook(**fields)
    thread = threading.Thread(target=webhook.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield webhook
    finally:
        webhook.shutdown()
        thread.join()
        webhook.server_close()


@contextmanager
def dead() -> Iterator[str]:
    """An address that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"


async def outcomes(up: LiveServer, job: str) -> list[dict[str, Any]]:
    return [line for line in await up.service.history.events(job=job, after=0, limit=1000) if line["type"] == "notify"]


async def wait_outcomes(up: LiveServer, job: str, count: int = 1) -> list[dict[str, Any]]:
    """Wait for *count* delivery outcomes of a job; return them."""
    async with asyncio.timeout(20):
        while len(delivered := await outcomes(up, job)) < count:
            await asyncio.sleep(0.01)
    return delivered


async def end(up: LiveServer, *addresses: str) -> str:
    """Run a job to its end."""
    (view,) = await up.service.submissions.submit([document(notify=list(addresses))], user="ann", key=None)
    await up.until(lambda: up.phase(view["id"]) == "Running")
    up.backend.finish(view["id"])
    await up.until(lambda: up.phase(view["id"]) == "Succeeded")
    return str(view["id"])


async def test_an_unsent_notification_is_sent_by_the_next_server(tmp_path: Path) -> None:
    machines = FakeMachines()
    with hook(failures=1) as webhook:
        async with live_server(f"sqlite:///{tmp_path}/levada.db", machines) as up:
            job = await end(up, webhook.url)
            await up.until(lambda: webhook.headers)
            await up.kill()
        assert not webhook.messages
        async with live_server(f"sqlite:///{tmp_path}/levada.db", machines) as up:
            await up.until(lambda: webhook.messages)
        assert {message["job"] for message in webhook.messages} == {job}


async def test_a_job_end_is_notified_and_recorded_in_the_history(tmp_path: Path) -> None:
    with hook() as webhook:
        async with live_server(f"sqlite:///{tmp_path}/levada.db") as up:
            job = await end(up, webhook.url, webhook.url)
            (line,) = await wait_outcomes(up, job)
            (message,) = webhook.messages
            assert set(message) == {"job", "phase", "text", "time"}
            assert (message["job"], message["phase"]) == (job, "Succeeded")
            assert message["time"].endswith("Z")
            assert webhook.headers[0]["Content-Type"] == "application/json"
            assert line["told"] is True
            assert line["text"] == f"Notified {host_of(webhook.url)}."
            assert "secret" not in json.dumps(line)


async def test_a_stuck_job_is_notified(tmp_path: Path) -> None:
    with hook() as webhook:
        async with watched(tmp_path, WarningOptions(0.2)) as up:
            (view,) = await up.service.submissions.submit([document(notify=[webhook.url])], user="ann", key=None)
            await up.until(lambda: up.phase(view["id"]) == "Running")
            number = up.live.loop.records.by_id[view["id"]].number
            up.backend.report(ev.Progress(at=0.0, number=np.array([number]), steps=np.array([3.0])))
            await wait_outcomes(up, view["id"])
            (message,) = webhook.messages
            assert (message["job"], message["warning"]) == (view["id"], "stuck")


async def test_a_missed_deadline_is_notified_once(tmp_path: Path) -> None:
    with hook() as webhook:
        async with watched(tmp_path) as up:
            late = document(deadline=0.5, notify=[webhook.url])
            (view,) = await up.service.submissions.submit([late], user="ann", key=None)
            await wait_outcomes(up, view["id"])
            (line,) = await warned(up, view["id"])
            assert "it keeps running" in line["text"]
            assert (line["warning"], up.phase(view["id"])) == ("deadline", "Running")
            assert [(message["job"], message["warning"]) for message in webhook.messages] == [(view["id"], "deadline")]
        async with watched(tmp_path) as up:
            await Deadlines(up.live.loop).check()
            await up.settle()
            assert len(await warned(up, view["id"])) == 1, "an earlier server has sent the warning"


async def warned(up: LiveServer, job: str) -> list[dict[str, Any]]:
    return [line for line in await up.service.history.events(job=job, after=0, limit=1000) if line["type"] == "warning"]


async def test_a_failed_notification_is_retried(tmp_path: Path) -> None:
    with hook(failures=1) as webhook:
        async with live_server(f"sqlite:///{tmp_path}/levada.db") as up:
            job = await end(up, webhook.url)
            (line,) = await wait_outcomes(up, job)
            assert line["told"]
            assert len(webhook.messages) == 1
            first, second = (headers["Idempotency-Key"] for headers in webhook.headers)
            assert first == second


async def test_a_dead_address_delays_neither_jobs_nor_other_addresses(tmp_path: Path) -> None:
    with dead() as silent, hook() as webhook:
        async with live_server(f"sqlite:///{tmp_path}/levada.db") as up:
            job = await end(up, silent, webhook.url)
            (line,) = await wait_outcomes(up, job)
            assert (line["told"], line["text"]) == (True, f"Notified {host_of(webhook.url)}.")
            for _ in range(5):
                await end(up, silent)


async def test_a_job_that_ends_while_the_notifier_starts_is_reported(tmp_path: Path) -> None:
    with hook() as webhook:
        async with live_server(f"sqlite:///{tmp_path}/levada.db") as up:
            store, ended = up.live.store, asyncio.Event()
            read = store.setting

            async def slow_read(name: str) -> str | None:
                if name == "notified":
                    await ended.wait()
                return await read(name)

            store.setting = slow_read  # type: ignore[method-assign]
            job = await end(up, webhook.url)
            ended.set()
            await wait_outcomes(up, job)
            assert [message["job"] for message in webhook.messages] == [job]


async def test_notifications_pending_at_a_kill_are_sent_after_it(tmp_path: Path) -> None:
    machines, url = FakeMachines(), f"sqlite:///{tmp_path}/levada.db"
    with hook() as webhook:
        async with live_server(url, machines) as up:
            first = await end(up, webhook.url)
            await wait_outcomes(up, first)
            webhook.failures = 1
            second = await end(up, webhook.url)
            await up.until(lambda: webhook.failures == 0)
            await up.kill()
        assert [message["job"] for message in webhook.messages] == [first]
        async with live_server(url, machines) as up:
            await wait_outcomes(up, second)
            assert [message["job"] for message in webhook.messages] == [first, second]


@pytest.mark.parametrize("status", [301, 302, 307, 404, 500])
def test_a_response_other_than_2xx_is_a_failed_delivery(status: int) -> None:
    with hook(status=status) as webhook:
        assert post(webhook.url, {}, "1") == f"it answered {status}"
        assert len(webhook.messages) == 1, "it is not passed on"


def test_other_schemes_and_closed_ports_are_failed_deliveries() -> None:
    assert post("file:///etc/passwd", {}, "1") == "not an http or https address"
    assert post("http://[::1", {}, "1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert "refused" in post(f"http://127.0.0.1:{port}/", {}, "1").lower()
    with dead() as silent:
        assert "timed out" in post(silent, {}, "1", 0.1)


def test_only_job_ends_and_warnings_are_notified() -> None:
    def line(kind: str, **data: Any) -> HistoryLine:
        return HistoryLine(id=1, at=0.0, job="j", type=kind, text="t", data=data)

    assert message_of(line("phase", phase="Running")) is None
    assert message_of(line("grant", workers=3)) is None
    assert message_of(line("notify", told=True)) is None
    head = {"job": "j", "text": "t", "time": "1970-01-01T00:00:00.000Z"}
    assert message_of(line("phase", phase="Failed")) == {**head, "phase": "Failed"}
    assert message_of(line("warning", warning="idle")) == {**head, "warning": "idle"}
