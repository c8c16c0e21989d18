"""The system under test: server, store, agent and the processes of jobs, with ways to stop each."""

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
from levada.sdk.discovery import owners
from tests.faults.real_server import RealServer, kill_all, processes_in, runs_in
from tests.live.postgres import Postgres
from tests.timeouts import WAIT_S

_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("LEVADA_")}
_WORKING = ("Starting", "Running", "Stopping")


class Target(NamedTuple):
    """A process of the system, identified by PID and start time."""

    what: str
    pid: int
    started: int
    #: Job and name of the worker that it belongs to.
    job: str = ""
    worker: str = ""

    def signal(self, number: int) -> bool:
        """Send a signal; return whether the process existed."""
        if not procfs.is_same(self.pid, self.started):
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False


class System:
    """The whole system in one folder. The store is SQLite, or PostgreSQL if *database* is set."""

    def __init__(self, folder: Path, database: Postgres | None) -> None:
        self.folder, self.database = folder, database
        self.ledger = folder / "ledger"
        self.ledger.mkdir(parents=True)
        (folder / "home").mkdir()
        arguments = ["--port", str(_free_port()), "--checkpoints", str(folder / "saves")]
        if database is not None:
            arguments += ["--store", database.url]
        self.server = RealServer(
            folder / "home", nodes=("a100=4",), arguments=tuple(arguments), log=folder / "server.log"
        )
        self._agent: subprocess.Popen[bytes] | None = None
        self._agent_home = folder / "agent"
        #: Whether the store is up, and since when.
        self.store_up, self.store_up_since = True, 0.0
        #: Servers and agents that ended without a fault.
        self.unexpected_exits: list[str] = []
        self._server_since = 0.0

    # --- server, agent, store -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start server and agent; return when the agent has joined."""
        self._server_since = time.monotonic()
        self.server.up()
        self.start_agent()
        self.server.wait_until(lambda: len(self.server.client.nodes()) == 2)

    def start_server(self) -> None:
        """Start the server without waiting for it; none may be running."""
        self.server.start()
        self._server_since = time.monotonic()

    def kill_server(self) -> None:
        """Kill the server, also while it starts."""
        if self.server.process is not None:
            self.server.kill()

    def start_agent(self) -> None:
        """Start the agent; none may be running."""
        address = self.server.client.address
        arguments = ["agent", "--join", address.url, "--token", address.token, "--name", "far", "--node", "v100=4"]
        arguments += ["--state-dir", str(self._agent_home), "--checkpoints", str(self.folder / "saves")]
        with open(self.folder / "agent.log", "ab") as log:
            self._agent = subprocess.Popen(
                [sys.executable, "-m", "levada", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env=_ENVIRONMENT,
            )

    def kill_agent(self) -> None:
        """Kill the agent."""
        if self._agent is not None:
            self._agent.kill()
            self._agent.wait()
            self._agent = None

    def stop_store(self) -> None:
        """Stop PostgreSQL."""
        assert self.database is not None
        self.store_up = False
        self.database.stop()

    def start_store(self) -> None:
        """Start PostgreSQL."""
        assert self.database is not None
        self.database.start()
        self.store_up, self.store_up_since = True, time.monotonic()

    def restart_ended(self) -> None:
        """Restart a server or agent that ended; a server may end only because its store was down."""
        server = self.server.process
        if server is not None and server.poll() is not None:
            if self.store_up and self._server_since > self.store_up_since:
                self.unexpected_exits.append(
                    f"the server ended unexpectedly with {server.returncode}: {_log_tail(self.server.log)}"
                )
            self.server.process = None
        if self.server.process is None and self.store_up:
            self.start_server()
        if self._agent is not None and self._agent.poll() is not None:
            self.unexpected_exits.append(
                f"the agent ended unexpectedly with {self._agent.returncode}: {_log_tail(self.folder / 'agent.log')}"
            )
            self._agent = None
        if self._agent is None:
            self.start_agent()

    def wait_until_up(self) -> None:
        """Wait until the server is ready and the agent has joined; restart both if they end."""
        end = time.monotonic() + WAIT_S
        while True:
            self.restart_ended()
            with contextlib.suppress(LevadaError):
                nodes = self.client.nodes() if self.is_ready() else []
                if sum(node["phase"] != "Lost" for node in nodes) == 2:
                    return
            assert time.monotonic() < end, f"the server did not come up: {_log_tail(self.server.log)}"
            time.sleep(0.1)

    def is_ready(self) -> bool:
        """Whether the server reports readiness within 1 s; a frozen or starting one does not."""
        owner = owners(str(self.server.home))
        if owner is None or self.server.process is None or self.server.process.poll() is not None:
            return False
        try:
            with urllib.request.urlopen(f"{owner.url}/readyz", timeout=1.0) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    @property
    def client(self) -> Client:
        """A client of the current server."""
        return self.server.client

    # --- processes ------------------------------------------------------------------------------------------------

    def targets(self, what: str) -> list[Target]:
        """The processes of a kind: server, agent, shim, reaper or worker."""
        if what in ("server", "agent"):
            process = self.server.process if what == "server" else self._agent
            status = None if process is None else procfs.look(process.pid)
            return [] if status is None or status.is_zombie else [Target(what, status.pid, status.started)]
        return [target for run in self.runs() for target in _targets(run) if target.what == what]

    def runs(self) -> list[dict[str, Any]]:
        """`RealServer.runs` of both machines, in a fixed order."""
        runs = [*runs_in(self.server.home), *runs_in(self._agent_home)]
        return sorted(runs, key=lambda run: (run["job"], run["folder"].name))

    def differences(self) -> list[str]:
        """Current differences between the job list and the running processes."""
        listed: Counter[tuple[str, str]] = Counter()
        for job in self.client.jobs():
            listed.update((job["id"], worker["node"]) for worker in job["workers"] if worker["phase"] in _WORKING)
        by_folder: dict[str, tuple[str, str]] = {}
        for pid in [*processes_in(self.server.home), *processes_in(self._agent_home)]:
            env = procfs.environment(pid)
            if "LEVADA_JOB" in env and "LEVADA_NODE" in env:
                by_folder[env["LEVADA_STATE_DIR"]] = env["LEVADA_JOB"], env["LEVADA_NODE"]
        running = Counter(by_folder.values())
        return [
            f"{job} on {node}: {listed[job, node]} in the list, {running[job, node]} processes"
            for job, node in sorted({*listed, *running})
            if listed[job, node] != running[job, node]
        ]

    def leftover_processes(self) -> list[str]:
        """Running processes of jobs, shims and reapers."""
        pids = [*processes_in(self.server.home), *processes_in(self._agent_home)]
        folders = f"{self.server.home}/jobs/", f"{self._agent_home}/jobs/"
        for process in procfs.all_processes():
            arguments = [] if process.is_zombie else procfs.words(process.pid)
            if arguments and arguments[-1].startswith(folders):
                pids.append(process.pid)
        return [f"{pid} {' '.join(procfs.words(pid))}" for pid in sorted(set(pids))]

    def clear(self) -> None:
        """Kill all processes."""
        self.kill_agent()
        self.server.clear()
        kill_all(self._agent_home)


def _targets(run: dict[str, Any]) -> Iterator[Target]:
    """The worker of a run, its shim and its reaper, if their PIDs still belong to them."""
    worker = procfs.look(run["worker"])
    if worker is None or worker.is_zombie or worker.started != run["worker_started"]:
        return
    of = {"job": run["job"], "worker": run["folder"].name}
    yield Target("worker", worker.pid, worker.started, **of)
    shim = procfs.look(run["shim"])
    if shim is None or shim.is_zombie or worker.parent != shim.pid:
        return
    yield Target("shim", shim.pid, shim.started, **of)
    reaper = procfs.look(run.get("keeper", 0)) if run.get("keeper") else None
    if reaper is not None and reaper.started == run["keeper_started"] and shim.parent == reaper.pid:
        yield Target("reaper", reaper.pid, reaper.started, **of)


def _free_port() -> int:
    """A port at which an agent finds the server after each restart."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _log_tail(log: Path) -> str:
    return log.read_text(errors="replace")[-1500:] if log.exists() else ""


def resume_all(targets: list[Target]) -> None:
    """Send SIGCONT to all targets that still run."""
    for target in targets:
        target.signal(signal.SIGCONT)
