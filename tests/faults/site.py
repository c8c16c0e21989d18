"""A real server in a folder of its own, started, killed and asked by tests, and the processes of its jobs."""

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
from tests.patience import WAIT_S

#: Short times, so that tests see in seconds what users see in minutes.
OPTIONS = {
    "min_run_s": 0.2,
    "cooldown_s": 0.2,
    "rate_limit_s": 0.05,
    "backoff_s": 0.1,
    "backoff_max_s": 0.5,
    "max_failures": 1000,
}
NODES = ("a100=4", "v100=4")
#: A server leaves what it is not told to run.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("LEVADA_")}
_T = TypeVar("_T")


class Site:
    """The folder, the server while there is one, and a client."""

    def __init__(
        self, home: Path, nodes: tuple[str, ...] = NODES, words: tuple[str, ...] = (), log: Path | None = None
    ) -> None:
        self.home, self.nodes, self.words = home, nodes, words
        #: What servers say; not on the disk of the folder, which may be full.
        self.log = log or home.with_name(home.name + ".log")
        self.options: dict[str, float] = dict(OPTIONS)
        self.server: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None

    # --- the server -------------------------------------------------------------------------------------------------

    def start(self, *words: str) -> None:
        """Starts a server, without waiting for it."""
        assert self.server is None
        told = ["serve", "--state", str(self.home), "--port", "0", *self.words, *words]
        for node in self.nodes:
            told += ["--node", node]
        for name, value in self.options.items():
            told += ["--set", f"{name}={value}"]
        with open(self.log, "ab") as log:
            self.server = subprocess.Popen(
                [sys.executable, "-m", "levada", *told],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env=_ENVIRONMENT,
            )

    def ready(self) -> bool:
        """Whether the server answers; raises where it has ended."""
        assert self.server is not None
        assert self.server.poll() is None, f"the server ended: {self.log.read_text()[-3000:]}"
        try:
            told = json.loads((self.home / "server.json").read_bytes())
            return bool(told["pid"] == self.server.pid and self.client.ready() == "")
        except (LevadaError, OSError, ValueError):
            return False

    def up(self, *words: str) -> Site:
        """A server that answers."""
        self.start(*words)
        self.until(self.ready)
        return self

    def kill(self) -> None:
        """SIGKILL: the server has no time for anything."""
        assert self.server is not None
        self.server.kill()
        self.server.wait()
        self.server = None

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.server is not None
        self.server.terminate()
        code = self.server.wait(WAIT_S)
        self.server = None
        return code

    def down(self) -> int:
        """SIGINT, as `levada down` sends it: jobs save and leave; the exit code."""
        assert self.server is not None
        self.server.send_signal(signal.SIGINT)
        code = self.server.wait(WAIT_S)
        self.server = None
        return code

    @property
    def client(self) -> Client:
        """Talks to whatever server is up."""
        if self._client is None:
            self._client = Client(state=str(self.home), timeout_s=30.0, patience_s=WAIT_S)
        return self._client

    # --- jobs -------------------------------------------------------------------------------------------------------

    def submit(self, name: str, command: list[str], **spec: Any) -> str:
        """The id of a new job."""
        (job,) = self.client.submit(document(name, command, **spec))
        return job["id"]

    def phase(self, job: str) -> str:
        """Where it stands."""
        return str(self.client.get(job)["phase"])

    def until(self, true: Callable[[], _T], wait_s: float = WAIT_S) -> _T:
        """Waits for something that the server does, and gives it back."""
        end = time.monotonic() + wait_s
        while True:
            found = true()
            if found:
                return found
            assert time.monotonic() < end, f"it did not come; the server said: {self._last_words()}"
            time.sleep(0.02)

    def until_phase(self, job: str, *phases: str) -> dict[str, Any]:
        """The job when it is in one of these phases."""

        def seen() -> dict[str, Any] | None:
            view: dict[str, Any] = dict(self.client.get(job))
            return view if view["phase"] in phases else None

        return self.until(seen)

    def _last_words(self) -> str:
        return self.log.read_text()[-2000:] if self.log.exists() else ""

    # --- processes --------------------------------------------------------------------------------------------------

    def runs(self) -> list[dict[str, Any]]:
        """Of each worker that has not told its end: `shim`, `worker` and the like, as its shim wrote it down."""
        return runs_in(self.home)

    def left(self) -> list[int]:
        """All processes of its jobs."""
        return processes_in(self.home)

    def clear(self) -> None:
        """Nothing of it is left when a test is over."""
        if self.server is not None:
            self.kill()
        if self._client is not None:
            self._client.close()
        kill_all(self.home)


def runs_in(home: Path) -> list[dict[str, Any]]:
    """As `Site.runs`, of the server or agent in *home*."""
    found = []
    for path in home.glob("jobs/*/workers/*/run.json"):
        with contextlib.suppress(OSError, ValueError):
            if not (path.parent / "exit.json").exists():
                found.append({**json.loads(path.read_bytes()), "job": path.parts[-4], "folder": path.parent})
    return found


def processes_in(home: Path) -> list[int]:
    """All processes of the jobs in *home*."""
    mark = f"{home}/jobs/"
    return [
        process.pid
        for process in procfs.all_processes()
        if not process.is_zombie and procfs.environment(process.pid).get("LEVADA_STATE_DIR", "").startswith(mark)
    ]


def kill_all(home: Path) -> None:
    """Ends all workers in *home* with their shims."""
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
    """A process whose parent is the shim tells that the number is still the shim's."""
    worker = procfs.look(run["worker"])
    if worker is not None and worker.parent == run["shim"] and worker.started == run["worker_started"]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(run["shim"], signal.SIGKILL)


def document(name: str, command: list[str], **spec: Any) -> dict[str, Any]:
    """A job as a user writes it."""
    return {
        "apiVersion": "levada.dev/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"run": {"command": command}, **spec},
    }


@contextmanager
def site(home: Path, **fields: Any) -> Iterator[Site]:
    """A folder for a server; nothing runs when the block is left."""
    made = Site(home, **fields)
    try:
        yield made
    finally:
        made.clear()
