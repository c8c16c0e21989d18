"""A `levada serve` process with its own state directory, and the processes of its jobs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from levada.backends.local import procfs
from levada.errors import LevadaError
from levada.sdk.client import Client
from tests.timeouts import WAIT_S

#: Short times, so that effects of minutes take seconds.
OPTIONS = {
    "min_run_s": 0.2,
    "cooldown_s": 0.2,
    "rate_limit_s": 0.05,
    "backoff_s": 0.1,
    "backoff_max_s": 0.5,
    "max_failures": 1000,
}
NODES = ("a100=4", "v100=4")
#: The environment without settings of Levada.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("LEVADA_")}
_T = TypeVar("_T")


class RealServer:
    """A state directory, its server process if one runs, and a client."""

    def __init__(
        self, home: Path, nodes: tuple[str, ...] = NODES, arguments: tuple[str, ...] = (), log: Path | None = None
    ) -> None:
        self.home, self.nodes, self.arguments = home, nodes, arguments
        #: Output of servers; not on the disk of the state directory, which may be full.
        self.log = log or home.with_name(home.name + ".log")
        self.options: dict[str, float] = dict(OPTIONS)
        self.process: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None

    # --- the server -------------------------------------------------------------------------------------------------

    def start(self, *arguments: str) -> None:
        """Start the server without waiting for it."""
        assert self.process is None
        command = ["serve", "--state-dir", str(self.home), "--port", "0", *self.arguments, *arguments]
        for node in self.nodes:
            command += ["--node", node]
        for name, value in self.options.items():
            command += ["--set", f"{name}={value}"]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "levada", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env=_ENVIRONMENT,
            )

    def ready(self) -> bool:
        """Whether the server is ready; fail if it has ended."""
        assert self.process is not None
        assert self.process.poll() is None, f"the server ended: {self.log.read_text()[-3000:]}"
        try:
            record = json.loads((self.home / "server.json").read_bytes())
            return bool(record["pid"] == self.process.pid and self.client.ready() == "")
        except (LevadaError, OSError, ValueError):
            return False

    def up(self, *arguments: str) -> RealServer:
        """Start the server and wait until it is ready."""
        self.start(*arguments)
        self.wait_until(self.ready)
        return self

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def stop(self) -> int:
        """Stop the server with SIGTERM; return its exit code."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(WAIT_S)
        self.process = None
        return code

    def down(self) -> int:
        """Send SIGINT like `levada down`, which stops all jobs; return the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(WAIT_S)
        self.process = None
        return code

    @property
    def client(self) -> Client:
        """A client of the current server."""
        if self._client is None:
            self._client = Client(state=str(self.home), timeout_s=30.0, patience_s=WAIT_S)
        return self._client

    # --- jobs -------------------------------------------------------------------------------------------------------

    def submit(self, name: str, command: list[str], **spec: Any) -> str:
        """Submit a job; return its id."""
        (job,) = self.client.submit(document(name, command, **spec))
        return job["id"]

    def phase(self, job: str) -> str:
        """The phase of a job."""
        return str(self.client.get(job)["phase"])

    def wait_until(self, condition: Callable[[], _T], wait_s: float = WAIT_S) -> _T:
        """Wait until *condition* returns a true value, and return it."""
        end = time.monotonic() + wait_s
        while True:
            result = condition()
            if result:
                return result
            assert time.monotonic() < end, f"timeout; output of the server: {self._log_tail()}"
            time.sleep(0.02)

    def wait_phase(self, job: str, *phases: str) -> dict[str, Any]:
        """Wait until the job is in one of these phases; return it."""

        def in_phase() -> dict[str, Any] | None:
            view: dict[str, Any] = dict(self.client.get(job))
            return view if view["phase"] in phases else None

        return self.wait_until(in_phase)

    def _log_tail(self) -> str:
        return self.log.read_text()[-2000:] if self.log.exists() else ""

    # --- processes --------------------------------------------------------------------------------------------------

    def runs(self) -> list[dict[str, Any]]:
        """The run records (`shim`, `worker` and so on) of all workers without an exit record."""
        return runs_in(self.home)

    def job_processes(self) -> list[int]:
        """All processes of jobs."""
        return processes_in(self.home)

    def clear(self) -> None:
        """Kill the server and all processes of its jobs."""
        if self.process is not None:
            self.kill()
        if self._client is not None:
            self._client.close()
        kill_all(self.home)


def runs_in(home: Path) -> list[dict[str, Any]]:
    """`RealServer.runs` for the server or agent in *home*."""
    runs = []
    for path in home.glob("jobs/*/workers/*/run.json"):
        with contextlib.suppress(OSError, ValueError):
            if not (path.parent / "exit.json").exists():
                runs.append({**json.loads(path.read_bytes()), "job": path.parts[-4], "folder": path.parent})
    return runs


def processes_in(home: Path) -> list[int]:
    """All processes of the jobs in *home*."""
    mark = f"{home}/jobs/"
    return [
        process.pid
        for process in procfs.all_processes()
        if not process.is_zombie and procfs.environment(process.pid).get("LEVADA_STATE_DIR", "").startswith(mark)
    ]


def kill_all(home: Path) -> None:
    """Kill all workers in *home* and their shims."""
    for run in runs_in(home):
        _kill_shim(run)
    end = time.monotonic() + WAIT_S
    while left := processes_in(home):
        assert time.monotonic() < end
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _kill_shim(run: dict[str, Any]) -> None:
    """Kill a shim. Its PID is still valid if the worker is its child."""
    worker = procfs.look(run["worker"])
    if worker is not None and worker.parent == run["shim"] and worker.started == run["worker_started"]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(run["shim"], signal.SIGKILL)


def document(name: str, command: list[str], **spec: Any) -> dict[str, Any]:
    """A job document."""
    return {
        "apiVersion": "levada.dev/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"run": {"command": command}, **spec},
    }


@contextmanager
def real_server(home: Path, **fields: Any) -> Iterator[RealServer]:
    """A `RealServer` whose processes are killed at the end."""
    server = RealServer(home, **fields)
    try:
        yield server
    finally:
        server.clear()
