"""The commands of the README work unchanged from the root of the repository."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_up import ROOT, left_behind
from tests.timeouts import WAIT_S

#: Verbs that run until Ctrl-C; the test reads one line of each and interrupts them.
STAY = ("levada logs -f", "levada run")


def commands() -> list[str]:
    """The lines of the first block, without the one that depends on the shell."""
    page = (ROOT / "README.md").read_text()
    block = re.search(r"## On one machine\n\n```console\n(.*?)```", page, re.DOTALL)
    assert block is not None
    lines = [line.removeprefix("$ ") for line in block[1].splitlines()]
    assert lines[0] == "source .venv/bin/activate"
    return lines[1:]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A user without settings. The state directory names a free port: another server may use the default port."""
    home = tmp_path / "levada"
    home.mkdir(mode=0o700)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        (home / "setup.json").write_text(json.dumps({"port": probe.getsockname()[1]}))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LEVADA_", "XDG_"))}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**kept, "PATH": path, "XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}


def test_commands_of_the_readme(env: dict[str, str], tmp_path: Path) -> None:
    try:
        for line in commands():
            with subprocess.Popen(
                # exec: Ctrl-C must reach the verb, not a shell around it.
                ["bash", "-c", f"exec {line}"],
                cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            ) as process:  # fmt: skip
                assert process.stdout is not None
                if line.startswith(STAY):
                    assert "step" in process.stdout.readline()
                    process.send_signal(signal.SIGINT)
                _, err = process.communicate(timeout=WAIT_S)
            assert process.returncode == (3 if line.startswith(STAY) else 0), f"{line}: {err}"
            assert "Traceback" not in err
    finally:
        subprocess.run(["levada", "down", "--stop-jobs"], env=env, capture_output=True, check=False)
    assert left_behind(tmp_path) == []
