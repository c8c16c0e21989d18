"""A real server for the verbs: store, engine and processes of this machine, on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from levada.backends.local.backend import LocalBackend
from levada.backends.local.gpus import pretend_nodes
from levada.cli.main import main
from levada.errors import Refused
from levada.live.live import Live
from levada.live.service import Service
from levada.live.store import Store
from levada.sdk import Client
from levada.server.secrets import StoredKeys
from tests.server.http_server import Served, served
from tests.timeouts import WAIT_S

#: Two machines of two GPUs each.
NODES = ({"a100": 2}, {"v100": 2})


@contextmanager
def running_server(home: Path) -> Iterator[Served]:
    """A server with its state in *home*; leaving the block cancels its jobs."""

    @asynccontextmanager
    async def backing() -> AsyncIterator[tuple[Any, Any]]:
        store = await Store.open(f"sqlite:///{home / 'levada.db'}")
        live = Live(store, LocalBackend(home, pretend_nodes(NODES)))
        await live.open(policy="elastic-fifo")
        work = asyncio.create_task(live.run())
        try:
            yield Service(live), StoredKeys(store.database)
        finally:
            live.stop()
            await work
            await live.close()

    with served(backing) as up:
        (home / "server.json").write_text(json.dumps({"url": up.url, "token": up.tokens["admin"]}))
        try:
            yield up
        finally:
            with Client(up.url, up.tokens["admin"]) as client:
                for job in client.jobs():
                    if job["finished"] is None:
                        with suppress(Refused):  # it may finish at the same time
                            client.cancel(job["id"])
                        client.wait(job["id"], timeout_s=WAIT_S)


class Shell:
    """Run `levada` with these arguments in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], up: Served, folder: Path) -> None:
        self._capsys, self.up, self.folder = capsys, up, folder

    def __call__(self, *words: str, code: int = 0) -> str:
        """Return the output; the exit code must be *code*."""
        got, out, err = self.try_out(*words)
        assert got == code, f"{words}: {got}\n{out}\n{err}"
        return out if code == 0 else out + err

    def try_out(self, *words: str) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr."""
        self._capsys.readouterr()
        code = main(words)
        out, err = self._capsys.readouterr()
        return code, out, err

    def json(self, *words: str) -> Any:
        """Return the parsed output of `-o json`."""
        return json.loads(self(*words, "-o", "json"))

    def file(self, name: str, *documents: dict[str, Any]) -> str:
        """Write these documents to a file and return its path."""
        path = self.folder / name
        path.write_text("\n---\n".join(json.dumps(document) for document in documents))
        return str(path)

    def submit(self, name: str, command: str, **spec: Any) -> str:
        """Submit a job that runs a shell command; return its id."""
        path = self.file(f"{name}.yaml", job(name, command, **spec))
        return self("submit", "-f", path, "-o", "name").strip()

    def until(self, true: Callable[[], Any]) -> None:
        """Wait until *true* returns a true value."""
        end = time.monotonic() + WAIT_S
        while not true():
            assert time.monotonic() < end, "the condition did not become true"
            time.sleep(0.02)


def job(name: str, command: str = "true", **spec: Any) -> dict[str, Any]:
    """A job that runs a shell command."""
    run = {"command": ["sh", "-c", command]}
    return {"apiVersion": "levada.dev/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"run": run, **spec}}


def environment(up: Served, home: Path) -> dict[str, str]:
    """Environment variables of a client of this server."""
    return {**os.environ, "XDG_STATE_HOME": str(home.parent), "XDG_CONFIG_HOME": str(home / "config")}
