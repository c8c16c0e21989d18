"""Completion scripts are valid shell and `levada` answers their requests."""

import os
import select
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


WORDS = [
    (["levada", "pol"], {"policy"}),
    (["levada", "policy", ""], {"ls", "describe", "get", "set"}),
    (["levada", "schema", "j"], {"job"}),
    (["levada", "policy", "set", "elastic-s"], {"elastic-srjf"}),
    (["levada", "no-such-verb"], set[str]()),
]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A folder for PATH that contains the command `levada`."""
    command = tmp_path / "levada"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m levada "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "TERM": "dumb"}


@pytest.mark.parametrize(("words", "expected"), WORDS)
def test_bash_completion_prints_nothing_else(
    words: list[str], expected: set[str], capsys: pytest.CaptureFixture[str], environment: dict[str, str]
) -> None:
    main(["completion", "bash"])
    quoted = " ".join(f"'{word}'" for word in words)
    script = (
        f"{capsys.readouterr().out}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
        "_levada_completion levada; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert set(done.stdout.split()) == expected
    assert done.stderr == ""


@pytest.mark.parametrize(
    "asked",
    [
        {"_LEVADA_COMPLETE": "complete_bash", "COMP_WORDS": "levada pol", "COMP_CWORD": "1"},
        {"_LEVADA_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "levada pol"},
        {
            "_LEVADA_COMPLETE": "complete_fish",
            "_TYPER_COMPLETE_ARGS": "levada pol",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        },
    ],
)
def test_levada_answers_completion_scripts_with_code_0(asked: dict[str, str], environment: dict[str, str]) -> None:
    done = subprocess.run(["levada"], capture_output=True, text=True, env={**environment, **asked}, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "policy" in done.stdout


def test_tab_key_inserts_only_the_completed_word(environment: dict[str, str]) -> None:
    """In a real terminal, output on stderr would appear in the command line."""
    import pty

    process, terminal = pty.fork()
    if process == 0:
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], {**environment, "PS1": "ready> "})
    try:
        until(terminal, "ready> ")
        os.write(terminal, b"source <(levada completion bash)\n")
        until(terminal, "ready> ")
        os.write(terminal, b"levada allo\t")
        assert until(terminal, "cate ").split() == ["levada", "allocate"]
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


def until(terminal: int, end: str) -> str:
    """Return the output of the terminal up to *end*, within 60 s."""
    shown = ""
    while end not in shown:
        ready, _, _ = select.select([terminal], [], [], 60.0)
        assert ready, f"no {end!r} came, only {shown!r}"
        shown += os.read(terminal, 4096).decode()
    return shown
