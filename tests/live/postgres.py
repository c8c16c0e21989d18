"""A PostgreSQL of the tests' own, where Debian's is installed; in CI it must be."""

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

_WAIT_S = 60.0


def binaries() -> Path | None:
    """Where PostgreSQL's programs are."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    there = shutil.which("initdb")
    return Path(there).resolve().parent if there else None


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The address of a server that is up and empty."""
    programs = binaries()
    if programs is None:
        if os.environ.get("CI") == "true":
            raise AssertionError("PostgreSQL must be installed in CI: scripts/system-packages.sh --install")
        pytest.skip("PostgreSQL is not installed (scripts/system-packages.sh lists what is missing)")
    folder = Path(tempfile.mkdtemp(prefix="levada-postgres-"))
    become: list[str] = []
    if os.getuid() == 0:
        # PostgreSQL refuses to run as root.
        user = pwd.getpwnam("postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)
        become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    data = folder / "data"
    command = [*become, str(programs / "initdb"), "-D", str(data), "-U", "levada", "-A", "trust", "-E", "UTF8", "-N"]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["-p", str(port), "-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={folder}"]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(
            [*become, str(programs / "postgres"), "-D", str(data), *options], stdout=log, stderr=log, cwd=folder
        )
    try:
        _until_up(port, server, folder)
        yield f"postgresql://levada@127.0.0.1:{port}/postgres"
    finally:
        # Without waiting for whoever is still connected.
        server.send_signal(signal.SIGINT)
        server.wait(_WAIT_S)
        shutil.rmtree(folder, ignore_errors=True)


def _until_up(port: int, server: subprocess.Popen[bytes], folder: Path) -> None:
    end = time.monotonic() + _WAIT_S
    ready = [str((binaries() or Path()) / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    while subprocess.run(ready, check=False).returncode:
        assert server.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < end, "PostgreSQL did not come up"
        time.sleep(0.05)
