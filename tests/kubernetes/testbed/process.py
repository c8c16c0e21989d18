"""Child processes of a test bed: started with a log file, killed with their parent, and free ports for them."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.timeouts import WAIT_S

_LAST_LINES = 15
_POLL_S = 0.02
#: Below the range from which Linux takes the ports of outgoing connections.
_PORTS = range(10_000, 32_000)


class NotReady(Exception):
    """A process ended, or did not become ready in time; the message has the last lines of its log."""


class Process:
    """One program of the bed. The kernel kills it when the thread that started it ends."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name = Path(command[0]).name
        self.log = log
        self._command = ["setpriv", "--pdeathsig=KILL", "--", *command]
        self._environment = dict(environment)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id, or None if it does not run."""
        return self._child.pid if self._child is not None and self._child.poll() is None else None

    def start(self) -> None:
        """Start it in a session of its own, so that Ctrl-C reaches only the parent."""
        with open(self.log, "ab") as log:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal and wait for its end."""
        if self._child is not None:
            self._child.send_signal(number)
            self._child.wait()

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        """Poll `is_ready`; raise `NotReady` if the process ends, or after the timeout."""
        end = time.monotonic() + timeout_s
        while not _holds(is_ready):
            if self.pid is None:
                raise NotReady(f"{self.name} ended:\n{self.tail()}")
            if time.monotonic() > end:
                raise NotReady(f"{self.name} was not ready after {timeout_s:.0f} s:\n{self.tail()}")
            time.sleep(_POLL_S)

    def has_logged(self, text: str) -> bool:
        """Whether the text is in its log."""
        return text in self.log.read_text(errors="replace")

    def tail(self) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:])


def free_port() -> int:
    """A loopback port that nothing listens on."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def child_environment(**variables: str) -> dict[str, str]:
    """The environment without settings of other clusters and of proxies."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TZ") if name in os.environ}
    return kept | variables


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except OSError:
        return False
