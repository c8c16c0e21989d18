"""A private PostgreSQL server for tests; optional locally, required in CI."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_WAIT_S = 180.0


def binaries() -> Path | None:
    """The folder of PostgreSQL's programs."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if programs:
        return programs[-1].parent
    there = shutil.which("initdb")
    return Path(there).resolve().parent if there else None


class Postgres:
    """A server that can be stopped and started again."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder, self._programs = folder, programs
        self._become: list[str] = []
        if os.getuid() == 0:
            # PostgreSQL refuses to run as root.
            user = pwd.getpwnam("postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
            self._become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.url = f"postgresql://levada@127.0.0.1:{self._port}/postgres"
        self._server: subprocess.Popen[bytes] | None = None
        self._made = 0
        words = ["-D", str(folder / "data"), "-U", "levada", "-A", "trust", "-E", "UTF8", "-N"]
        subprocess.run([*self._become, str(programs / "initdb"), *words], check=True, capture_output=True, cwd=folder)

    def start(self) -> None:
        """Start the server; return when it accepts connections."""
        words = ["-D", str(self._folder / "data"), "-p", str(self._port), "-c", "listen_addresses=127.0.0.1"]
        words += ["-c", f"unix_socket_directories={self._folder}"]
        with open(self._folder / "log", "ab") as log:
            self._server = subprocess.Popen(
                [*self._become, str(self._programs / "postgres"), *words], stdout=log, stderr=log, cwd=self._folder
            )
        end = time.monotonic() + _WAIT_S
        ready = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._port)]
        while subprocess.run(ready, check=False).returncode:
            assert self._server.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < end, "PostgreSQL did not come up"
            time.sleep(0.05)

    @property
    def is_up(self) -> bool:
        """Whether the server runs."""
        return self._server is not None

    def fresh(self) -> str:
        """The URL of a new empty database."""
        self._made += 1
        name = f"fresh{self._made}"
        make = [str(self._programs / "psql"), "-q", "-d", self.url, "-c", f"CREATE DATABASE {name}"]
        subprocess.run(make, check=True, capture_output=True)
        return self.url.removesuffix("/postgres") + f"/{name}"

    def stop(self) -> None:
        """Stop at once, without waiting for open connections."""
        if self._server is not None:
            self._server.send_signal(signal.SIGINT)
            self._server.wait(_WAIT_S)
            self._server = None


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """A running server without databases."""
    programs = binaries()
    if programs is None:
        if os.environ.get("CI") == "true":
            raise AssertionError("PostgreSQL must be installed in CI: scripts/system-packages.sh --install")
        pytest.skip("PostgreSQL is not installed (scripts/system-packages.sh lists what is missing)")
    folder = Path(tempfile.mkdtemp(prefix="levada-postgres-"))
    try:
        server = Postgres(folder, programs)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
