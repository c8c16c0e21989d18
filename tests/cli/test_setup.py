"""`scripts/setup.sh` gives signs of life while pip works, and tells what pip said where it fails."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: pip, as far as the script sees it: it fetches something until a file is there.
PYTHON = """#!/bin/sh
case "$*" in *"pip --version"*) exit 0 ;; esac
echo "Collecting numpy==2.0 (from levada)"
until [ -e "$GO" ]; do sleep 0.1; done
echo "ERROR: no space left"
exit "$CODE"
"""


@pytest.mark.parametrize("code", [0, 1])
def test_names_of_packages_are_shown(tmp_path: Path, code: int) -> None:
    venv, go = tmp_path / "venv", tmp_path / "go"
    (venv / "bin").mkdir(parents=True)
    python = venv / "bin" / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    env = {**os.environ, "GO": str(go), "CODE": str(code)}
    words = ["bash", "scripts/setup.sh", str(venv), str(venv / "stamp"), "pyproject.toml"]
    with subprocess.Popen(words, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "collecting numpy==2.0" not in (line := process.stderr.readline()):
            assert line, "it said nothing of what it fetches"
        go.touch()
        rest = process.stderr.read()
    assert process.returncode == code
    assert ("no space left" in rest) == bool(code)
    assert (venv / "stamp").exists() == (not code)
