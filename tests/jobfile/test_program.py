"""Commands and environments that the kernel rejects are faults."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from levada.errors import BadInput
from levada.jobfile.load import load


def faults(**run: Any) -> list[str]:
    """What is wrong with a job that runs this; one line each."""
    document = {"apiVersion": "levada.dev/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"run": run}}
    try:
        load(json.dumps(document))
    except BadInput as wrong:
        return [str(fault) for fault in wrong.faults]
    return []


@pytest.mark.parametrize(
    ("run", "where", "what"),
    [
        ({"command": ["x"], "env": {"A=B": "c"}}, "spec.run.env", "'A=B' is not a variable name: it contains '='"),
        ({"command": ["x"], "env": {"A": "c\0d"}}, "spec.run.env", "the variable 'A' contains a null byte"),
        ({"command": ["x"], "env": {"A": "x" * 200_000}}, "spec.run.env", "200,002 bytes"),
        ({"command": ["x"], "env": {f"A{n}": "x" * 100_000 for n in range(9)}}, "spec.run.env", "all variables have"),
        ({"command": ["echo", "x" * 3_000_000]}, "spec.run.command[1]", "3,000,000 bytes"),
        ({"command": ["echo", "a\0b"]}, "spec.run.command[1]", "null byte"),
        ({"command": ["echo", "\ud800"]}, "spec.run.command[1]", "an unpaired UTF-16 surrogate"),
        ({"command": ["echo", *["x" * 100_000] * 9]}, "spec.run.command", "all arguments have"),
        ({"command": [""]}, "spec.run.command", "the program name is empty"),
    ],
)
def test_what_cannot_be_started_is_told_in_one_line(run: dict[str, Any], where: str, what: str) -> None:
    (line,) = faults(**run)
    assert line.startswith(f"{where}: ")
    assert what in line
    assert len(line) < 200


def test_the_most_that_is_taken_can_be_started() -> None:
    longest = "x" * (128 * 1024 - 1)
    command, env = ["true", *[longest] * 5], {f"A{n}": longest[3:] for n in range(5)}
    assert faults(command=command, env=env) == []
    subprocess.run(command, env={**os.environ, **env}, check=True, timeout=180)
