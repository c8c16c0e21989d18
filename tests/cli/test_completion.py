"""Completion scripts are valid shell and ask `levada` in a way it answers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from levada.cli.main import main

CHECKS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}


@pytest.mark.parametrize("shell", CHECKS)
def test_script_is_valid(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out, encoding="utf-8")
    assert "levada" in script.read_text(encoding="utf-8")
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here to read it")
    subprocess.run([*CHECKS[shell], str(script)], check=True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["levada", "pol"], {"policy"}),
        (["levada", "policy", ""], {"ls", "describe"}),
        (["levada", "schema", "j"], {"job"}),
    ],
)
def test_bash_completes(
    words: list[str], expected: set[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    main(["completion", "bash"])
    command = tmp_path / "levada"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m levada "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    quoted = " ".join(f"'{word}'" for word in words)
    script = (
        f"{capsys.readouterr().out}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
        "_levada_completion levada; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert set(done.stdout.split()) == expected
