"""`levada down` where the server hears nothing any more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from levada.cli.starting import take_down
from levada.errors import LevadaError
from levada.server.home import SERVER, Home

#: Has the folder, and is deaf: until somebody closes its input.
DEAF = """
import os, pathlib, signal, sys
from levada.server.home import SERVER, Home
signal.signal(signal.SIGTERM, signal.SIG_IGN)
home = Home(pathlib.Path(sys.argv[1]))
home.make()
with home.held():
    home.write(SERVER, {"pid": os.getpid()})
    print("up", flush=True)
    sys.stdin.read()
"""


def test_a_server_that_hears_nothing_is_told_of_in_one_line(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    words = [sys.executable, "-c", DEAF, str(home.folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        with pytest.raises(LevadaError, match=f"kill -9 {server.pid}.* jobs run on"):
            take_down(home, patience_s=0.2)
        home.drop(SERVER)  # as one that has heard, and waits for its jobs
        assert server.stdin is not None
        server.stdin.close()
        take_down(home, patience_s=0.2)
    assert home.holder() is None
