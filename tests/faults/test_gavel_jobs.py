"""Scripts for Gavel under a real server: stopped, resumed, killed and rotated, each of their steps is made once."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.site import Site, site

SCRIPT = str(Path(__file__).parents[1] / "runtime" / "gavel_script.py")
_OVER = ("Succeeded", "Failed", "Cancelled")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("gavel")
    (folder / "home").mkdir()
    with site(folder / "home", nodes=("a100=4",)) as here:
        yield here.up()


@pytest.fixture
def here(server: Site) -> Iterator[Site]:
    yield server
    for job in server.client.jobs():
        if job["phase"] not in _OVER:
            server.client.cancel(job["id"])
    server.until(lambda: not server.left() and all(job["phase"] in _OVER for job in server.client.jobs()))


def submit(here: Site, folder: Path, manner: str = "own-limit", *, pace: float = 0.01, **spec: Any) -> str:
    """A job of this manner; its script would make more steps than the job has."""
    words = [SCRIPT, manner, str(folder), "--limit", "100000", "--pace", str(pace)]
    return here.submit(manner, [sys.executable, "-m", "levada.runtime.gavel", *words], **spec)


def trained(folder: Path) -> int:
    """The steps in the script's own checkpoint."""
    return int(json.loads((folder / "model.json").read_text())["trained"])


def reaches(here: Site, job: str, step: int) -> int:
    """The step of a job that runs, when it has come so far."""

    def seen() -> int:
        view = here.client.get(job)
        assert view["phase"] != "Succeeded", view
        return (view["progress"]["step"] or 0) if view["phase"] == "Running" else 0

    here.until(lambda: seen() >= step)
    return seen()


def told(here: Site, job: str, kind: str) -> list[str]:
    """The texts of such events of a job."""
    return [event["text"] for event in here.client.events(job) if event["type"] == kind]


@pytest.mark.parametrize("manner", ["own-limit", "always-complete", "spawned"])
def test_stopped_resumed_and_killed_it_makes_its_steps_once(here: Site, tmp_path: Path, manner: str) -> None:
    job = submit(here, tmp_path, manner, steps=400, retries=1)
    reaches(here, job, 60)
    here.client.suspend(job)
    stopped = here.until_phase(job, "Suspended", *_OVER)
    assert stopped["phase"] == "Suspended"
    saved = trained(tmp_path)
    assert stopped["progress"] | {"rate": None} == {"step": saved, "total": 400, "rate": None}

    here.client.resume(job)
    reaches(here, job, saved + 40)
    (run,) = [run for run in here.runs() if run["job"] == job]
    os.killpg(run["worker"], signal.SIGKILL)
    # What was not saved is lost, and is not shown as done until it is made again.
    here.until(lambda: here.client.get(job)["restarts"] == 1)
    assert here.client.get(job)["progress"]["step"] in range(saved, 400)

    ended = here.until_phase(job, *_OVER)
    assert (ended["phase"], ended["exit_code"], ended["progress"]["step"]) == ("Succeeded", 0, 400)
    assert trained(tmp_path) == 400
    lost = len((tmp_path / "ledger").read_text().splitlines()) - 400
    assert lost >= 40


def test_workers_of_one_job_stop_together_and_their_steps_are_counted_once(here: Site, tmp_path: Path) -> None:
    job = submit(here, tmp_path, steps=200, workers=2)
    reaches(here, job, 50)
    here.client.suspend(job)
    stopped = here.until_phase(job, "Suspended", *_OVER)
    assert (stopped["phase"], stopped["progress"]["step"]) == ("Suspended", trained(tmp_path))
    here.client.resume(job)
    ended = here.until_phase(job, *_OVER)
    assert (ended["phase"], ended["progress"]["step"], trained(tmp_path)) == ("Succeeded", 200, 200)


def test_a_script_that_ends_before_its_steps_are_made_runs_again(here: Site, tmp_path: Path) -> None:
    words = [SCRIPT, "own-limit", str(tmp_path), "--limit", "30"]
    job = here.submit("short", [sys.executable, "-m", "levada.runtime.gavel", *words], steps=70)
    ended = here.until_phase(job, *_OVER)
    assert (ended["phase"], ended["progress"]["step"], trained(tmp_path)) == ("Succeeded", 70, 70)
    assert any("at step 30 of 70" in text for text in told(here, job, "exit"))


def test_jobs_that_save_when_they_leave_take_turns_by_default(here: Site, tmp_path: Path) -> None:
    before = here.client.policy()
    here.client.set_policy("max_min_fairness_perf", {"round_s": 1.5})
    try:
        folders = [tmp_path / str(at) for at in range(6)]
        jobs = [submit(here, folder, steps=900) for folder in folders]
        seen = dict.fromkeys(jobs, 0)

        def all_ran() -> bool:
            for job in jobs:
                view = here.client.get(job)
                assert view["phase"] != "Succeeded", "one came to its end before another had its turn"
                seen[job] = max(seen[job], view["progress"]["step"] or 0)
            return min(seen.values()) > 0

        here.until(all_ran)
        for job, folder in zip(jobs, folders, strict=True):
            ended = here.until_phase(job, *_OVER)
            assert (ended["phase"], ended["progress"]["step"], trained(folder)) == ("Succeeded", 900, 900)
            assert not told(here, job, "unsaved")
            # None was killed: what was made at all is what is in the model.
            assert len((folder / "ledger").read_text().splitlines()) == 900
    finally:
        here.client.set_policy(before["name"], before.get("options") or {})


def test_who_did_not_save_when_asked_is_not_stopped_for_others_again(here: Site, tmp_path: Path) -> None:
    job = submit(here, tmp_path, "forgetful", steps=100_000, workers=4)
    step = reaches(here, job, 30)
    # Said to save, it gives way to a job of more importance.
    first = here.submit("first", ["sleep", "0.5"], priority=100)
    here.until_phase(first, "Succeeded")
    (text,) = here.until(lambda: told(here, job, "unsaved"))
    assert "left without saving" in text
    assert int(text.split("after step ")[1].split(",")[0]) >= step
    # Everything was lost, and it begins again.
    reaches(here, job, 30)
    generation = here.client.get(job)["generation"]
    second = here.submit("second", ["sleep", "0.5"], priority=100)
    for at in range(3):
        quick = here.submit(f"quick-{at}", ["true"], gpusPerWorker=0)
        here.until_phase(quick, "Succeeded")
    assert here.phase(second) == "Pending"
    assert (here.client.get(job)["phase"], here.client.get(job)["generation"]) == ("Running", generation)


def test_a_time_limit_holds_while_the_server_is_away(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with site(tmp_path / "home", nodes=("a100=1",)) as alone:
        alone.up()
        job = submit(alone, tmp_path / "kept", steps=1_000_000, timeLimit="4s")
        reaches(alone, job, 20)
        alone.until(lambda: "until_time" in (alone.home / "jobs" / job / "world.json").read_text())
        alone.kill()
        alone.until(lambda: not alone.left())
        assert trained(tmp_path / "kept") >= 20
        alone.up()
        ended = alone.until_phase(job, *_OVER)
        assert (ended["phase"], ended["reason"]["code"]) == ("Failed", "time-limit")
        assert ended["progress"]["step"] == trained(tmp_path / "kept")
