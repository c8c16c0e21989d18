"""Resize, suspension and worker loss of jobs of several frameworks, on a real server."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from levada.core.events import OptionsChanged
from tests.cli.live_server import Shell, job

TRAIN = Path(__file__).parents[2] / "examples" / "numpy" / "train.py"
#: Run until stopped; save nothing before *save* exists, and nothing on SIGTERM.
UNSAVED = "trap 'exit 75' TERM; for i in $(seq 2400); do {save}; sleep 0.05; done"


@pytest.fixture(autouse=True)
def prompt_decisions(shell: Shell) -> Iterator[None]:
    """Only unsaved work protects jobs from resizes; no job is left for the next test."""
    quick = {"min_run_s": 0.0, "cooldown_s": 0.0, "rate_limit_s": 0.0}
    shell.up.run(lambda: shell.up.service.loop.apply(OptionsChanged(at=0.0, options=quick)))
    yield
    for each in shell.json("ls", "--state", "pending,running,resizing,starting,suspended"):
        shell("cancel", each["id"])
        shell("wait", each["id"], code=103)


def unsaved(shell: Shell, name: str, framework: str, **spec: Any) -> str:
    """Id of a running job without a checkpoint; the programs of the framework are stubs."""
    script = shell.folder / "train.sh"
    script.write_text(
        "#!/bin/sh\n" + UNSAVED.format(save=f"[ -e {shell.folder}/save ] && touch $LEVADA_CHECKPOINT_DIR/model")
    )
    script.chmod(0o755)
    for program in ("torchrun", "horovodrun"):
        stub = shell.folder / program
        stub.write_text(f"#!/bin/sh\nexec {script}\n")
        stub.chmod(0o755)
    made = job(name, gpuTypes=["v100"], **spec)
    env = {"PATH": f"{shell.folder}:{os.environ['PATH']}"}
    made["spec"]["run"] = {"command": [str(script)], "framework": framework, "env": env}
    if framework == "tensorflow":
        made["spec"]["parameterServers"] = {"replicas": 1, "command": [str(script)], "cpu": 0, "memory": "0"}
    submitted = shell("submit", "-f", shell.file(f"{name}.yaml", made), "-o", "name").strip()
    shell("wait", submitted, "--for", "Running")
    return submitted


def training(shell: Shell, name: str, **spec: Any) -> str:
    """Id of a job that uses the runtime and has reported it."""
    made = job(name, **spec)
    env = {"STEPS": "100000", "STEP_SECONDS": "0.02", "OMP_NUM_THREADS": "1"}
    made["spec"]["run"] = {"command": [sys.executable, str(TRAIN)], "env": env}
    submitted = shell("submit", "-f", shell.file(f"{name}.yaml", made), "-o", "name").strip()
    shell.until(lambda: (shell.json("get", "job", submitted)["progress"]["step"] or 0) > 5)
    return submitted


def terminal(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    """Simulate a terminal with a user who types this text."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)


def view(shell: Shell, name: str) -> Any:
    return shell.json("get", "job", name)


@pytest.mark.parametrize("framework", ["horovod", "tensorflow", "torchrun", "plain"])
def test_job_without_checkpoint_is_not_resized_by_restart(shell: Shell, framework: str) -> None:
    first = unsaved(shell, "first", framework, workers={"min": 1, "max": 2})
    assert len(view(shell, first)["workers"]) == 2
    second = shell.submit("second", "sleep 600", gpuTypes=["v100"])
    shell.until(lambda: view(shell, second)["reason"]["code"] == "capacity")
    now = view(shell, first)
    assert (now["phase"], len(now["workers"]), now["generation"]) == ("Running", 2, 1), "no work is lost"
    (shell.folder / "save").touch()
    shell("wait", second, "--for", "Running")
    shell.until(lambda: view(shell, first)["phase"] == "Running")
    now = view(shell, first)
    assert (len(now["workers"]), now["resizes"], now["restarts"], now["retried"]) == (1, 1, 1, 0)
    assert "1 restart, 1 resize, 0 moves" in shell("describe", first)
    assert "Resizing from 2 to 1 worker by a restart." in shell("events", first)


def test_runtime_jobs_are_resized_in_place(shell: Shell) -> None:
    first = training(shell, "first", gpuTypes=["v100"], workers={"min": 1, "max": 2})
    shell.until(lambda: len(view(shell, first)["workers"]) == 2)
    told = shell("scale", first, "1")
    assert told == f"{first}: Changing to 1 worker without a restart.\n"
    shell.until(lambda: (len(view(shell, first)["workers"]), view(shell, first)["phase"]) == (1, "Running"))
    now = view(shell, first)
    assert (now["restarts"], now["resizes"], now["fixed"], now["min"], now["max"]) == (0, 1, 1, 1, 2)
    assert "Resizing from 2 to 1 worker without a restart." in shell("events", first)
    # It saves on SIGTERM: no work is lost, so there is no prompt.
    shell("suspend", first)
    shell("wait", first, "--for", "Suspended")
    shell("resume", first)
    shell("wait", first, "--for", "Running")
    assert view(shell, first)["restarts"] == 1, "all its workers started again"


def test_scale_waits_for_a_checkpoint_or_is_forced(shell: Shell) -> None:
    name = unsaved(shell, "scaled", "torchrun", workers={"min": 1, "max": 2})
    code, out, err = shell.try_out("scale", name, "1")
    assert (code, out) == (
        0,
        f"{name}: Will change to 1 worker after its first checkpoint in $LEVADA_CHECKPOINT_DIR.\n",
    )
    assert err.startswith("To restart it now and lose ")
    assert err.endswith(" of work of 2 workers, use --force\n")
    assert len(view(shell, name)["workers"]) == 2
    assert "1-2, fixed at 1 by its user" in shell("describe", name)
    assert shell("scale", name, "1", "--force") == f"{name}: Changing to 1 worker by a restart.\n"
    shell.until(lambda: (len(view(shell, name)["workers"]), view(shell, name)["phase"]) == (1, "Running"))
    assert view(shell, name)["restarts"] == 1
    # It is protected again: --force applied only to that change.
    shell("update", name, "--min", "1", "--max", "2")
    second = shell("scale", name, "2")
    assert "after its first checkpoint" in second or "Has 2 workers now" in second


def test_suspend_shows_lost_work_and_asks(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    name = unsaved(shell, "kept", "plain", workers=2)
    told = shell("suspend", name, code=5)
    assert f"{name} has saved no checkpoint since it started" in told
    assert "of work of 2 workers would be lost; use --force" in told
    answer = shell.up.ask("POST", f"/api/v1/jobs/{name}/suspend")
    assert (answer.status, answer.json()["code"]) == (409, "unsaved")
    assert view(shell, name)["phase"] == "Running"

    for typed, phase in (("n\n", "Running"), ("", "Running"), ("y\n", "Suspended")):
        terminal(monkeypatch, typed)
        code, _, err = shell.try_out("suspend", name)
        assert "Suspend it and lose that work? [y/N] " in err
        assert code == (0 if phase == "Suspended" else 5)
        shell("wait", name, "--for", phase)
    shell("resume", name)
    shell("wait", name, "--for", "Running")
    assert shell("suspend", name, "--force") == f"Suspended {name}\n"
    shell("wait", name, "--for", "Suspended")


def test_update_preemptible(shell: Shell) -> None:
    first = unsaved(shell, "first", "horovod", workers={"min": 1, "max": 2})
    second = shell.submit("second", "sleep 600", gpuTypes=["v100"])
    shell.until(lambda: view(shell, second)["reason"]["code"] == "capacity")
    assert view(shell, first)["preemptible"] == "auto"
    assert shell("update", first, "--preemptible", "true") == f"{first}: preemptible true\n"
    shell("wait", second, "--for", "Running")
    assert view(shell, first)["preemptible"] is True
    assert shell("update", first, "--preemptible", "false") == f"{first}: preemptible false\n"
    assert view(shell, first)["preemptible"] is False
    bad = shell.up.ask("PATCH", f"/api/v1/jobs/{first}", {"preemptible": "never"})
    assert bad.status == 422
    assert "--preemptible" in shell("update", first, "--preemptible", "never", code=2)


def test_fixed_size_is_not_a_minimum(shell: Shell) -> None:
    name = training(shell, "fixed", workers={"min": 1, "max": 2}, gpuTypes=["v100"])
    shell("scale", name, "2")
    shell.until(lambda: (len(view(shell, name)["workers"]), view(shell, name)["phase"]) == (2, "Running"))
    backend = shell.up.service.loop.backend
    shell.until(lambda: all(each.pid for each in backend.workers(name)))
    (victim,) = [each.pid for each in backend.workers(name) if each.index == 1]
    os.kill(victim, signal.SIGKILL)
    # It continues with 1 worker, and has 2 again when GPUs are free.
    shell.until(lambda: view(shell, name)["generation"] > 1 and len(view(shell, name)["workers"]) == 2)
    shell.until(lambda: view(shell, name)["phase"] == "Running")
    now = view(shell, name)
    assert (now["restarts"], now["retried"], now["fixed"]) == (0, 0, 2)
    assert "worker 1 was killed (signal 9); 1 is left" in shell("events", name)


def test_job_below_its_minimum_fails_with_cause_and_advice(shell: Shell) -> None:
    name = training(shell, "short", workers=2, gpuTypes=["v100"])
    backend = shell.up.service.loop.backend
    shell.until(lambda: len(view(shell, name)["workers"]) == 2)
    (victim,) = [each.pid for each in backend.workers(name) if each.index == 1]
    os.kill(victim, signal.SIGKILL)
    shell("wait", name, code=100)
    now = view(shell, name)
    assert now["exit_code"] == 137
    assert now["reason"]["text"].startswith(
        "Failed: worker 1 was killed (signal 9). Set `retries` to restart from the checkpoint."
    )
    told = shell("events", name)
    assert "Lost a worker; fewer than min (2) are left and no retries remain." in told
    assert "go on" not in told


def test_policy_set_lists_jobs_that_it_would_shrink(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    name = training(shell, "large", workers={"min": 1, "max": 2}, gpuTypes=["v100"])
    shell.until(lambda: (len(view(shell, name)["workers"]), view(shell, name)["phase"]) == (2, "Running"))
    line = f"levada: fifo shrinks 1 of 1 running job: {name} (2 to 1 worker).\n"
    answer = shell.up.ask("PUT", "/api/v1/policies/current?dry_run=true", {"name": "fifo"})
    assert answer.json()["warnings"] == [line.removeprefix("levada: ").strip()]
    assert shell("policy", "get") == "elastic-fifo\n", "that was only a question"
    terminal(monkeypatch, "n\n")
    code, out, err = shell.try_out("policy", "set", "fifo")
    assert (code, out) == (5, "")
    assert err.startswith(line + "Change the policy to fifo? [y/N] ")
    assert shell("policy", "get") == "elastic-fifo\n"
    terminal(monkeypatch, "y\n")
    assert shell("policy", "set", "fifo") == "fifo\n"
    shell.until(lambda: (len(view(shell, name)["workers"]), view(shell, name)["phase"]) == (1, "Running"))
    assert shell("policy", "set", "elastic-fifo", "--yes") == "elastic-fifo\n", "no job shrinks"
    shell.until(lambda: (len(view(shell, name)["workers"]), view(shell, name)["phase"]) == (2, "Running"))
    # Without a terminal, it prints the list and does not ask.
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert shell.try_out("policy", "set", "fifo") == (0, "fifo\n", line)
    shell("policy", "set", "elastic-fifo")


def test_policy_set_lists_jobs_that_shrink_after_a_checkpoint(shell: Shell) -> None:
    name = unsaved(shell, "later", "plain", workers={"min": 1, "max": 2})
    shell.until(lambda: (len(view(shell, name)["workers"]), view(shell, name)["phase"]) == (2, "Running"))
    answer = shell.up.ask("PUT", "/api/v1/policies/current?dry_run=true", {"name": "fifo"})
    assert answer.json()["warnings"] == [
        f"fifo shrinks 1 of 1 running job: {name} (2 to 1 worker, after its first checkpoint)."
    ]
    kept = shell.up.ask("PUT", "/api/v1/policies/current?dry_run=true", {"name": "elastic-fifo"})
    assert kept.json()["warnings"] == []
    shell("update", name, "--preemptible", "false")
    answer = shell.up.ask("PUT", "/api/v1/policies/current?dry_run=true", {"name": "fifo"})
    assert answer.json()["warnings"] == [], "which never happens"
