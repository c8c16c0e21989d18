"""The system under test: a server with its store, an agent, and the processes of the jobs; and a stop button for each."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from levada.backends.local import procfs
from levada.errors import LevadaError
from levada.sdk.client import Client
from levada.sdk.place import owners
from tests.faults.site import Site, kill_all, processes_in, runs_in
from tests.live.postgres import Postgres
from tests.patience import WAIT_S

_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("LEVADA_")}
_WORKING = ("Starting", "Running", "Stopping")


class Target(NamedTuple):
    """A process of the system, which its start time tells from others of that number."""

    what: str
    pid: int
    started: int
    #: Job and name of the worker that it belongs to.
    job: str = ""
    worker: str = ""

    def signal(self, number: int) -> bool:
        """Whether it was there to be signalled."""
        if not procfs.is_same(self.pid, self.started):
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False


class World:
    """All of it, below one folder. *database* is the PostgreSQL of the store; without one it is SQLite."""

    def __init__(self, folder: Path, database: Postgres | None) -> None:
        self.folder, self.database = folder, database
        self.ledger = folder / "ledger"
        self.ledger.mkdir(parents=True)
        (folder / "home").mkdir()
        words = ["--port", str(_free_port()), "--checkpoints", str(folder / "saves")]
        if database is not None:
            words += ["--store", database.url]
        self.site = Site(folder / "home", nodes=("a100=4",), words=tuple(words), log=folder / "server.log")
        self._agent: subprocess.Popen[bytes] | None = None
        self._agent_home = folder / "agent"
        #: The store is up, and since when.
        self.store_up, self.store_up_since = True, 0.0
        #: Servers and agents that ended though nobody asked them to.
        self.unexpected_exits: list[str] = []
        self._server_since = 0.0

    # --- server, agent, store -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Returns when the server answers and the agent has joined."""
        self._server_since = time.monotonic()
        self.site.up()
        self.start_agent()
        self.site.until(lambda: len(self.site.client.nodes()) == 2)

    def start_server(self) -> None:
        """Starts the server, without waiting for it; it must not be up."""
        self.site.start()
        self._server_since = time.monotonic()

    def kill_server(self) -> None:
        """SIGKILL, whatever state it is in."""
        if self.site.server is not None:
            self.site.kill()

    def start_agent(self) -> None:
        """Lets the agent join; it must not be there."""
        address = self.site.client.address
        words = ["agent", "--join", address.url, "--token", address.token, "--name", "far", "--node", "v100=4"]
        words += ["--state", str(self._agent_home), "--checkpoints", str(self.folder / "saves")]
        with open(self.folder / "agent.log", "ab") as log:
            self._agent = subprocess.Popen(
                [sys.executable, "-m", "levada", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env=_ENVIRONMENT,
            )

    def kill_agent(self) -> None:
        """SIGKILL."""
        if self._agent is not None:
            self._agent.kill()
            self._agent.wait()
            self._agent = None

    def stop_store(self) -> None:
        """PostgreSQL goes away."""
        assert self.database is not None
        self.store_up = False
        self.database.stop()

    def start_store(self) -> None:
        """PostgreSQL is back."""
        assert self.database is not None
        self.database.start()
        self.store_up, self.store_up_since = True, time.monotonic()

    def mend(self) -> None:
        """Starts a server or an agent that has ended by itself; a server may do so only where its store was away."""
        server = self.site.server
        if server is not None and server.poll() is not None:
            if self.store_up and self._server_since > self.store_up_since:
                self.unexpected_exits.append(
                    f"the server ended by itself with {server.returncode}: {_end(self.site.log)}"
                )
            self.site.server = None
        if self.site.server is None and self.store_up:
            self.start_server()
        if self._agent is not None and self._agent.poll() is not None:
            self.unexpected_exits.append(
                f"the agent ended by itself with {self._agent.returncode}: {_end(self.folder / 'agent.log')}"
            )
            self._agent = None
        if self._agent is None:
            self.start_agent()

    def wait_until_up(self) -> None:
        """Returns when the server answers and the agent has joined it; both are started again until they do."""
        end = time.monotonic() + WAIT_S
        while True:
            self.mend()
            with contextlib.suppress(LevadaError):
                nodes = self.client.nodes() if self.answers() else []
                if sum(node["phase"] != "Lost" for node in nodes) == 2:
                    return
            assert time.monotonic() < end, f"the server did not come up: {_end(self.site.log)}"
            time.sleep(0.1)

    def answers(self) -> bool:
        """Whether the server says at once that it can act; one that is frozen, or starts, does not."""
        here = owners(str(self.site.home))
        if here is None or self.site.server is None or self.site.server.poll() is not None:
            return False
        try:
            with urllib.request.urlopen(f"{here.url}/readyz", timeout=1.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    @property
    def client(self) -> Client:
        """Talks to whatever server is up."""
        return self.site.client

    # --- processes ------------------------------------------------------------------------------------------------

    def targets(self, what: str) -> list[Target]:
        """Its processes of a kind: server, agent, shim, guard or worker."""
        if what in ("server", "agent"):
            process = self.site.server if what == "server" else self._agent
            found = None if process is None else procfs.look(process.pid)
            return [] if found is None or found.is_zombie else [Target(what, found.pid, found.started)]
        return [target for run in self.runs() for target in _targets(run) if target.what == what]

    def runs(self) -> list[dict[str, Any]]:
        """As `Site.runs`, of both machines, in a fixed order."""
        runs = [*runs_in(self.site.home), *runs_in(self._agent_home)]
        return sorted(runs, key=lambda run: (run["job"], run["folder"].name))

    def differences(self) -> list[str]:
        """Where the list of jobs and the processes that there are tell different things now."""
        told: Counter[tuple[str, str]] = Counter()
        for job in self.client.jobs():
            told.update((job["id"], one["node"]) for one in job["workers"] if one["phase"] in _WORKING)
        there: dict[str, tuple[str, str]] = {}
        for pid in [*processes_in(self.site.home), *processes_in(self._agent_home)]:
            env = procfs.environment(pid)
            if "LEVADA_JOB" in env and "LEVADA_NODE" in env:
                there[env["LEVADA_STATE_DIR"]] = env["LEVADA_JOB"], env["LEVADA_NODE"]
        found = Counter(there.values())
        return [
            f"{job} on {node}: {told[job, node]} in the list, {found[job, node]} processes"
            for job, node in sorted({*told, *found})
            if told[job, node] != found[job, node]
        ]

    def left(self) -> list[str]:
        """Processes of jobs, shims and guards that are there."""
        pids = [*processes_in(self.site.home), *processes_in(self._agent_home)]
        folders = f"{self.site.home}/jobs/", f"{self._agent_home}/jobs/"
        for process in procfs.all_processes():
            words = [] if process.is_zombie else procfs.words(process.pid)
            if words and words[-1].startswith(folders):
                pids.append(process.pid)
        return [f"{pid} {' '.join(procfs.words(pid))}" for pid in sorted(set(pids))]

    def clear(self) -> None:
        """Nothing of it is left."""
        self.kill_agent()
        self.site.clear()
        kill_all(self._agent_home)


def _targets(run: dict[str, Any]) -> Iterator[Target]:
    """The worker of a run, its shim and its guard, as far as they are what they were."""
    worker = procfs.look(run["worker"])
    if worker is None or worker.is_zombie or worker.started != run["worker_started"]:
        return
    of = {"job": run["job"], "worker": run["folder"].name}
    yield Target("worker", worker.pid, worker.started, **of)
    shim = procfs.look(run["shim"])
    if shim is None or shim.is_zombie or worker.parent != shim.pid:
        return
    yield Target("shim", shim.pid, shim.started, **of)
    guard = procfs.look(run.get("keeper", 0)) if run.get("keeper") else None
    if guard is not None and guard.started == run["keeper_started"] and shim.parent == guard.pid:
        yield Target("guard", guard.pid, guard.started, **of)


def _free_port() -> int:
    """Of one that an agent finds again after each start of the server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-1500:] if log.exists() else ""


def resume_all(targets: list[Target]) -> None:
    """SIGCONT to all that are there still."""
    for target in targets:
        target.signal(signal.SIGCONT)
