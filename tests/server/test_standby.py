"""A server that does not lead yet answers health checks on the socket that it serves from later."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from levada.errors import LevadaError, Refused
from levada.live.store import Store
from levada.server.context import Context
from levada.server.run import CannotListen, Listen, serve, standing_by
from levada.server.secrets import Secrets
from levada.server.state_dir import StateFolder
from tests.server.memory_service import MemoryKeys, MemoryService
from tests.timeouts import WAIT_S


def ask(port: int, path: str) -> tuple[int, str]:
    """Status and text of the answer to a request without a token."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


async def test_a_standby_is_healthy_and_not_ready_until_it_leads() -> None:
    async with standing_by(Listen()) as listener:
        port = listener.getsockname()[1]
        assert (await asyncio.to_thread(ask, port, "/healthz"))[0] == 200
        for path in ("/readyz", "/api/v1/jobs", "/metrics"):
            status, text = await asyncio.to_thread(ask, port, path)
            assert (status, json.loads(text)["detail"]) == (503, "standing by: this server does not lead yet")
    # A connection between both is not refused: it waits in the socket.
    between = asyncio.create_task(asyncio.to_thread(ask, port, "/readyz"))
    started, stop = asyncio.Event(), asyncio.Event()
    context = Context(MemoryService(), MemoryKeys())
    serving = asyncio.create_task(
        serve(context, Listen(), started=lambda _url: started.set(), stop=stop, listener=listener)
    )
    assert (await between)[0] == 200
    assert (await asyncio.to_thread(ask, port, "/api/v1/jobs"))[0] == 401
    stop.set()
    await serving


async def test_a_standby_checks_its_address_first() -> None:
    with pytest.raises(Refused, match="--certfile"):
        async with standing_by(Listen(host="0.0.0.0")):
            pass
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(CannotListen, match="use another --port"):
        async with standing_by(Listen(port=other.getsockname()[1])):
            pass
    with pytest.raises(LevadaError, match="lost"):
        async with standing_by(Listen()) as listener:
            raise LevadaError("lost")
    assert listener.fileno() == -1, "the port is free again"


def test_a_standby_serves_health_and_ends_with_sigterm(tmp_path: Path) -> None:
    url, port = f"sqlite:///{tmp_path}/shared.db", _free_port()

    async def hold() -> None:
        store = await Store.open(url)
        assert await store.acquire("another-machine:1:x", time.time() + 3600, 15.0)
        await store.close()

    asyncio.run(hold())
    command = ["serve", "--wait", "--state-dir", str(tmp_path / "home"), "--store", url, "--port", str(port)]
    with subprocess.Popen([sys.executable, "-m", "levada", *command], stderr=subprocess.PIPE, cwd="/") as process:
        try:
            end = time.monotonic() + WAIT_S
            while True:
                try:
                    health = ask(port, "/healthz")[0]
                    break
                except OSError:
                    assert process.poll() is None
                    assert time.monotonic() < end
                    time.sleep(0.05)
            assert (health, ask(port, "/readyz")[0]) == (200, 503)
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


async def test_a_uid_without_a_name_owns_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr("os.getuid", lambda: 65532)
    home = StateFolder(tmp_path / "home")
    home.make()
    store = await Store.open(f"sqlite:///{tmp_path}/levada.db")
    lease = await store.acquire("h:1:x", time.time(), 15.0)
    assert lease is not None
    secrets = Secrets(home, store)
    await secrets.prepare(lease)
    owner = await secrets.keys.find(secrets.token)
    assert owner is not None
    assert owner.user == "65532"
    assert await store.identity() == await store.identity()
    await store.close()
