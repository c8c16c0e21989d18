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
from levada.backends.local.devices import pretend_nodes
from levada.cli.main import main
from levada.errors import Refused
from levada.live.live import Live
from levada.live.service import Service
from levada.live.store import Store
from levada.live.store.keys import KeyStore
from levada.sdk import Client
from levada.server.keys import StoredKeys
from tests.patience import WAIT_S
from tests.server.serving import Served, served

#: Two machines of two GPUs each.
NODES = ({"a100": 2}, {"v100": 2})


@contextmanager
def running_server(home: Path) -> Iterator[Served]:
    """A server whose state is below *home*; no job of it is left when the block is."""

    @asynccontextmanager
    async def backing() -> AsyncIterator[tuple[Any, Any]]:
        store = await Store.open(f"sqlite:///{home / 'levada.db'}")
        live = Live(store, LocalBackend(home, pretend_nodes(NODES)))
        await live.open(policy="elastic-fifo")
        work = asyncio.create_task(live.run())
        try:
            yield Service(live), StoredKeys(KeyStore(store.database))
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
                        with suppress(Refused):  # it may end by itself in this moment
                            client.cancel(job["id"])
                        client.wait(job["id"], timeout_s=WAIT_S)


class Shell:
    """Somebody at a terminal: `levada` with these words, in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], up: Served, folder: Path) -> None:
        self._capsys, self.up, self.folder = capsys, up, folder

    def __call__(self, *words: str, code: int = 0) -> str:
        """What it prints; it must end with *code*."""
        got, out, err = self.try_out(*words)
        assert got == code, f"{words}: {got}\n{out}\n{err}"
        return out if code == 0 else out + err

    def try_out(self, *words: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        self._capsys.readouterr()
        code = main(words)
        out, err = self._capsys.readouterr()
        return code, out, err

    def json(self, *words: str) -> Any:
        """What it prints with `-o json`."""
        return json.loads(self(*words, "-o", "json"))

    def file(self, name: str, *documents: dict[str, Any]) -> str:
        """A file of these documents."""
        path = self.folder / name
        path.write_text("\n---\n".join(json.dumps(document) for document in documents))
        return str(path)

    def submit(self, name: str, command: str, **spec: Any) -> str:
        """The id of a new job that runs a line of shell."""
        path = self.file(f"{name}.yaml", job(name, command, **spec))
        return self("submit", "-f", path, "-o", "name").strip()

    def until(self, true: Callable[[], Any]) -> None:
        """Waits for something."""
        end = time.monotonic() + WAIT_S
        while not true():
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.02)


def job(name: str, command: str = "true", **spec: Any) -> dict[str, Any]:
    """A job that runs a line of shell."""
    run = {"command": ["sh", "-c", command]}
    return {"apiVersion": "levada.dev/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"run": run, **spec}}


def environment(up: Served, home: Path) -> dict[str, str]:
    """What a process of somebody who uses this server has."""
    return {**os.environ, "XDG_STATE_HOME": str(home.parent), "XDG_CONFIG_HOME": str(home / "config")}
