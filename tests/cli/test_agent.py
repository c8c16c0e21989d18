"""`levada agent`: another machine joins a real server, works for it, and leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.test_up import home, levada, until

__all__ = ["home"]


@contextmanager
def joined(*words: str) -> Iterator[None]:
    """A running agent; leaving the block stops it."""
    with subprocess.Popen([sys.executable, "-m", "levada", "agent", *words]) as agent:
        try:
            yield
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(60) == 0
        finally:
            agent.kill()


def test_agent_joins_runs_a_job_and_reconnects(home: Path, tmp_path: Path) -> None:
    def asked(verb: str, *words: str) -> str:
        return levada(verb, "--state-dir", str(home), *words).stdout

    saves = str(tmp_path / "saves")
    up = json.loads(asked("up", "--port", "0", "--node", "gpu=1", "--checkpoints", saves, "-o", "json"))
    agent = ["--join", up["url"], "--token", up["token"], "--name", "left", "--node", "gpu=4"]
    agent += ["--state-dir", str(tmp_path / "left"), "--checkpoints", saves]
    go = tmp_path / "go"
    code = f"echo $LEVADA_NODE $LEVADA_CHECKPOINT_DIR; until [ -e {go} ]; do sleep 0.05; done"
    run = {"command": ["sh", "-c", code], "workdir": "/"}
    job = {
        "apiVersion": "levada.dev/v1",
        "kind": "Job",
        "metadata": {"name": "toy"},
        "spec": {"workers": 3, "run": run},
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    with joined(*agent):
        until(lambda: "left-0" in asked("nodes"))
        name = asked("submit", "-f", str(tmp_path / "job.json"), "-o", "name").strip()
        until(lambda: asked("logs", name).count("\n") == 3)
        assert asked("logs", name, "--worker", "0").split()[-2:] == ["left-0", f"{saves}/{name}-0"]
    go.touch()  # its workers kept running without the agent
    with joined(*agent):
        assert levada("wait", "--state-dir", str(home), name, "--timeout", "180s").returncode == 0


def test_down_stops_jobs_on_other_machines(home: Path, tmp_path: Path) -> None:
    def asked(verb: str, *words: str) -> str:
        return levada(verb, "--state-dir", str(home), *words).stdout

    up = json.loads(asked("up", "--port", "0", "--node", "gpu=1", "-o", "json"))
    agent = ["--join", up["url"], "--token", up["token"], "--name", "left", "--node", "far=1"]
    saved = tmp_path / "saved"
    run = {"command": ["sh", "-c", f"trap 'echo > {saved}; exit 75' TERM; echo up; while :; do sleep 0.05; done"]}
    job = {
        "apiVersion": "levada.dev/v1",
        "kind": "Job",
        "metadata": {"name": "toy"},
        "spec": {"workers": 1, "gpuTypes": ["far"], "run": {**run, "workdir": "/"}},
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    with joined(*agent, "--state-dir", str(tmp_path / "left")):
        until(lambda: "left-0" in asked("nodes"))
        name = asked("submit", "-f", str(tmp_path / "job.json"), "-o", "name").strip()
        until(lambda: asked("logs", name) == "up\n")
        assert levada("down", "--state-dir", str(home)).returncode == 0
        assert saved.exists()
        assert list((tmp_path / "left" / "jobs").glob("*/workers/*/exit.json"))


def test_node_remove_removes_lost_machines(home: Path) -> None:
    def asked(*words: str) -> str:
        return levada(*words, "--state-dir", str(home)).stdout

    asked("up", "--port", "0", "--node", "gpu=1", "--node", "gpu=2")
    asked("down")
    asked("up", "--port", "0", "--node", "gpu=1")
    assert [line.split()[:2] for line in asked("nodes", "--no-headers").splitlines()] == [
        ["node-0", "Ready"],
        ["node-1", "Lost"],
    ]
    assert asked("node", "remove", "node-1") == "node-1: removed\n"
    assert asked("nodes", "-o", "name") == "node-0\n"
    asked("down")
    asked("up", "--port", "0", "--node", "gpu=1", "--node", "gpu=2")
    assert asked("nodes", "-o", "name") == "node-0\nnode-1\n"


def test_agent_refuses_plain_http_to_another_machine(tmp_path: Path) -> None:
    words = ["agent", "--join", "http://192.0.2.1:7373", "--token", "secret", "--state-dir", str(tmp_path / "agent")]
    done = levada(*words, "--node", "gpu=1")
    assert done.returncode == 5
    assert "in the clear; use https://" in done.stderr
    assert "secret" not in done.stderr
