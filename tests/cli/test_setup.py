"""`scripts/setup.sh` shows the output of the installer, uses pip if uv fails, and prints the error if both fail."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: An installer as the script sees it: fetches something until a file exists.
FETCH = """
echo "{line}"
until [ -e "$GO" ]; do sleep 0.1; done
echo "ERROR: no space left"
exit "$CODE"
"""
UV = "#!/bin/sh\n" + FETCH.format(line="Downloading numpy (15.9MiB)")
UV_THAT_FAILS = "#!/bin/sh\necho 'error: no index'\nexit 2\n"
PIP = """#!/bin/sh
case "$*" in *"pip --version"*) exit 0 ;; esac
""" + FETCH.format(line="Collecting numpy==2.0 (from levada)")
PIP_THAT_FAILS = '#!/bin/sh\ncase "$*" in *"pip --version"*) exit 0 ;; esac\necho "ERROR: no index"\nexit 1\n'


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("uv", "python", "line", "code"),
    [
        (UV, PIP_THAT_FAILS, "downloading numpy", 0),
        (UV_THAT_FAILS, PIP, "collecting numpy==2.0", 0),
        (UV_THAT_FAILS, PIP, "collecting numpy==2.0", 1),
    ],
    ids=["uv", "pip", "neither"],
)
def test_names_of_packages_are_shown(tmp_path: Path, uv: str, python: str, line: str, code: int) -> None:
    venv, go = tmp_path / "venv", tmp_path / "go"
    program(venv / "bin" / "python", python)
    program(tmp_path / "bin" / "uv", uv)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "GO": str(go), "CODE": str(code)}
    words = ["bash", "scripts/setup.sh", str(venv), str(venv / "stamp"), "pyproject.toml"]
    with subprocess.Popen(words, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while line not in (said := process.stderr.readline()):
            assert said, "it does not name the package that it fetches"
        go.touch()
        rest = process.stderr.read()
    assert process.returncode == code
    assert ("no space left" in rest) == bool(code)
    assert (venv / "stamp").exists() == (not code)
