"""`levada down` with a server that ignores SIGTERM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from levada.cli.daemon import stop_server
from levada.errors import LevadaError
from levada.server.state_dir import SERVER, StateFolder

#: Holds the lock of the state directory and ignores SIGTERM until its input is closed.
IGNORES_SIGTERM = """
import os, pathlib, signal, sys
from levada.server.state_dir import SERVER, StateFolder
signal.signal(signal.SIGTERM, signal.SIG_IGN)
home = StateFolder(pathlib.Path(sys.argv[1]))
home.make()
with home.held():
    home.write(SERVER, {"pid": os.getpid()})
    print("up", flush=True)
    sys.stdin.read()
"""


def test_server_that_ignores_sigterm_is_a_one_line_error(tmp_path: Path) -> None:
    home = StateFolder(tmp_path / "home")
    words = [sys.executable, "-c", IGNORES_SIGTERM, str(home.folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        with pytest.raises(LevadaError, match=f"kill -9 {server.pid}.* jobs keep running"):
            stop_server(home, patience_s=0.2)
        home.drop(SERVER)  # like a server that received SIGTERM and waits for its jobs
        assert server.stdin is not None
        server.stdin.close()
        stop_server(home, patience_s=0.2)
    assert home.holder() is None
