"""Gavel scripts under a real server: each step is done once across stops, kills and rounds."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.real_server import RealServer, real_server

SCRIPT = str(Path(__file__).parents[1] / "runtime" / "gavel_script.py")
_OVER = ("Succeeded", "Failed", "Cancelled")


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("gavel")
    (folder / "home").mkdir()
    with real_server(folder / "home", nodes=("a100=4",)) as server:
        yield server.up()


@pytest.fixture
def server(shared_server: RealServer) -> Iterator[RealServer]:
    yield shared_server
    for job in shared_server.client.jobs():
        if job["phase"] not in _OVER:
            shared_server.client.cancel(job["id"])
    shared_server.wait_until(
        lambda: not shared_server.job_processes() and all(job["phase"] in _OVER for job in shared_server.client.jobs())
    )


def submit(server: RealServer, folder: Path, variant: str = "own-limit", *, pace: float = 0.01, **spec: Any) -> str:
    """Submit a job of this script variant, whose own limit exceeds the steps of the job."""
    arguments = [SCRIPT, variant, str(folder), "--limit", "100000", "--pace", str(pace)]
    return server.submit(variant, [sys.executable, "-m", "levada.runtime.gavel", *arguments], **spec)


def trained(folder: Path) -> int:
    """The step count in the checkpoint of the script."""
    return int(json.loads((folder / "model.json").read_text())["trained"])


def wait_step(server: RealServer, job: str, step: int) -> int:
    """Wait until a running job has done *step* steps; return its step."""

    def current_step() -> int:
        view = server.client.get(job)
        assert view["phase"] != "Succeeded", view
        return (view["progress"]["step"] or 0) if view["phase"] == "Running" else 0

    server.wait_until(lambda: current_step() >= step)
    return current_step()


def event_texts(server: RealServer, job: str, kind: str) -> list[str]:
    """The texts of the events of one type of a job."""
    return [event["text"] for event in server.client.events(job) if event["type"] == kind]


@pytest.mark.parametrize("variant", ["own-limit", "always-complete", "spawned"])
def test_a_gavel_job_stopped_resumed_and_killed_does_each_step_once(
    server: RealServer, tmp_path: Path, variant: str
) -> None:
    job = submit(server, tmp_path, variant, steps=400, retries=1)
    wait_step(server, job, 60)
    server.client.suspend(job)
    stopped = server.wait_phase(job, "Suspended", *_OVER)
    assert stopped["phase"] == "Suspended"
    saved = trained(tmp_path)
    assert stopped["progress"] | {"rate": None} == {"step": saved, "total": 400, "rate": None}

    server.client.resume(job)
    wait_step(server, job, saved + 40)
    (run,) = [run for run in server.runs() if run["job"] == job]
    os.killpg(run["worker"], signal.SIGKILL)
    # Steps after the checkpoint are lost, and not shown until they are done again.
    server.wait_until(lambda: server.client.get(job)["restarts"] == 1)
    assert server.client.get(job)["progress"]["step"] in range(saved, 400)

    ended = server.wait_phase(job, *_OVER)
    assert (ended["phase"], ended["exit_code"], ended["progress"]["step"]) == ("Succeeded", 0, 400)
    assert trained(tmp_path) == 400
    lost = len((tmp_path / "ledger").read_text().splitlines()) - 400
    assert lost >= 40


def test_workers_of_one_job_stop_together_and_their_steps_are_counted_once(server: RealServer, tmp_path: Path) -> None:
    job = submit(server, tmp_path, steps=200, workers=2)
    wait_step(server, job, 50)
    server.client.suspend(job)
    stopped = server.wait_phase(job, "Suspended", *_OVER)
    assert (stopped["phase"], stopped["progress"]["step"]) == ("Suspended", trained(tmp_path))
    server.client.resume(job)
    ended = server.wait_phase(job, *_OVER)
    assert (ended["phase"], ended["progress"]["step"], trained(tmp_path)) == ("Succeeded", 200, 200)


def test_a_script_that_ends_before_its_last_step_is_restarted(server: RealServer, tmp_path: Path) -> None:
    arguments = [SCRIPT, "own-limit", str(tmp_path), "--limit", "30"]
    job = server.submit("short", [sys.executable, "-m", "levada.runtime.gavel", *arguments], steps=70)
    ended = server.wait_phase(job, *_OVER)
    assert (ended["phase"], ended["progress"]["step"], trained(tmp_path)) == ("Succeeded", 70, 70)
    assert any("at step 30 of 70" in text for text in event_texts(server, job, "exit"))


def test_jobs_that_save_when_stopped_take_turns_by_default(server: RealServer, tmp_path: Path) -> None:
    before = server.client.policy()
    server.client.set_policy("max_min_fairness_perf", {"round_s": 1.5})
    try:
        folders = [tmp_path / str(at) for at in range(6)]
        jobs = [submit(server, folder, steps=900) for folder in folders]
        steps_done = dict.fromkeys(jobs, 0)

        def all_ran() -> bool:
            for job in jobs:
                view = server.client.get(job)
                assert view["phase"] != "Succeeded", "a job finished before another one had its turn"
                steps_done[job] = max(steps_done[job], view["progress"]["step"] or 0)
            return min(steps_done.values()) > 0

        server.wait_until(all_ran)
        for job, folder in zip(jobs, folders, strict=True):
            ended = server.wait_phase(job, *_OVER)
            assert (ended["phase"], ended["progress"]["step"], trained(folder)) == ("Succeeded", 900, 900)
            assert not event_texts(server, job, "unsaved")
            # No job was killed: every executed step is in the model.
            assert len((folder / "ledger").read_text().splitlines()) == 900
    finally:
        server.client.set_policy(before["name"], before.get("options") or {})


def test_a_job_that_did_not_save_when_stopped_is_not_preempted_again(server: RealServer, tmp_path: Path) -> None:
    job = submit(server, tmp_path, "never-saves", steps=100_000, workers=4)
    step = wait_step(server, job, 30)
    # The job is expected to save, so a job with higher priority preempts it.
    first = server.submit("first", ["sleep", "0.5"], priority=100)
    server.wait_phase(first, "Succeeded")
    (text,) = server.wait_until(lambda: event_texts(server, job, "unsaved"))
    assert "without saving" in text
    assert int(text.split("at step ")[1].split()[0]) >= step
    # All steps were lost, and the job starts again.
    wait_step(server, job, 30)
    generation = server.client.get(job)["generation"]
    second = server.submit("second", ["sleep", "0.5"], priority=100)
    for at in range(3):
        quick = server.submit(f"quick-{at}", ["true"], gpusPerWorker=0)
        server.wait_phase(quick, "Succeeded")
    assert server.phase(second) == "Pending"
    assert (server.client.get(job)["phase"], server.client.get(job)["generation"]) == ("Running", generation)


def test_a_time_limit_holds_while_the_server_is_down(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with real_server(tmp_path / "home", nodes=("a100=1",)) as server:
        server.up()
        job = submit(server, tmp_path / "checkpoints", steps=1_000_000, timeLimit="4s")
        wait_step(server, job, 20)
        server.wait_until(lambda: "until_time" in (server.home / "jobs" / job / "world.json").read_text())
        server.kill()
        server.wait_until(lambda: not server.job_processes())
        assert trained(tmp_path / "checkpoints") >= 20
        server.up()
        ended = server.wait_phase(job, *_OVER)
        assert (ended["phase"], ended["reason"]["code"]) == ("Failed", "time-limit")
        assert ended["progress"]["step"] == trained(tmp_path / "checkpoints")
