"""Gavel scripts run unchanged: checkpoints, leases and step counts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from levada.runtime import checkpoint
from levada.runtime.report import COMPLETE, LEASED, LEAVES, READY, SAVES, ProgressReport
from tests.runtime.supervisor import Supervisor, supervising

TRAIN = str(Path(__file__).parents[2] / "examples" / "gavel" / "train.py")


def command(folder: Path, steps: int, pace: float = 0.0) -> list[str]:
    runner = ["-m", "levada.runtime.gavel", TRAIN]
    return [*runner, "--num_steps", str(steps), "--step_seconds", str(pace), "--checkpoint_dir", str(folder)]


def steps_of(folder: Path) -> int:
    """The step count in the checkpoint of the example script."""
    return int(json.loads((folder / "model.json").read_text())["steps"])


def test_a_gavel_script_runs_to_its_end_without_a_server(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, *command(tmp_path, 120)], capture_output=True, text=True, timeout=180, env={}, check=True
    )
    assert "step 100  y = " in done.stdout
    assert done.stderr == ""
    assert steps_of(tmp_path) == 120


def test_a_stopped_script_saves_and_resumes(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    with supervising(tmp_path, command(checkpoints, 200, 0.01)) as job:
        (worker,) = job.start(1)
        job.wait_step(60)  # after the first epoch
        assert worker.report.flags == READY | SAVES | LEASED
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0
        report = worker.report
        assert report.flags == READY | SAVES | LEASED | LEAVES
        assert report.step == report.saved_step == steps_of(checkpoints)
        assert 60 <= report.step < 200

        (restarted,) = job.start(1)
        assert restarted.exit_code() == 0
        assert restarted.report.flags & 4
        assert restarted.report.step == restarted.report.saved_step == steps_of(checkpoints) == 200
        assert restarted.report.saves == 2


def test_the_end_of_a_lease_stops_the_script(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    with supervising(tmp_path, command(checkpoints, 10**6)) as job:
        (worker,) = job.start(1, lease={"until_step": 75, "then": "stop"})
        job.wait_until(lambda: worker.process.poll() is not None, "the worker ends")
        assert worker.exit_code() == 0
        # A thread reads the lease: some steps more may be done.
        assert steps_of(checkpoints) == worker.report.step >= 75
        assert "asked to leave after step" in worker.output


def test_a_worker_of_an_older_generation_does_not_overwrite_the_checkpoint(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    checkpoint.save(checkpoints, 9, checkpoint.SavedProgress(), b"")
    with supervising(tmp_path, command(checkpoints, 10)) as job:
        (worker,) = job.start(1)
        assert worker.exit_code() == 75
        assert not (checkpoints / "model.json").exists()


PASSES = """
import sys
from gavel_iterator import GavelIterator

def nothing(*arguments):
    return None

items = GavelIterator([10, 20, 30], sys.argv[1], nothing, nothing, synthetic_data=len(sys.argv) > 2)
print([list(items) for _ in range(2)], len(items), items.done)
items.complete()
print(items.done, list(items))
"""


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ((), "[[10, 20, 30], [10, 20, 30]] 3 False\nTrue []\n"),
        (("synthetic",), "[[10, 10, 10], [10, 10, 10]] 3 False\nTrue []\n"),
    ],
)
def test_gavel_iterator_repeats_its_items_until_complete(tmp_path: Path, extra: tuple[str, ...], expected: str) -> None:
    (tmp_path / "passes.py").write_text(PASSES)
    arguments = ["-m", "levada.runtime.gavel", str(tmp_path / "passes.py"), str(tmp_path), *extra]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=180, env={}, check=True)
    assert done.stdout == expected


def test_without_a_script_the_usage_is_printed() -> None:
    done = subprocess.run([sys.executable, "-m", "levada.runtime.gavel"], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (1, "usage: python -m levada.runtime.gavel SCRIPT ARGUMENT…\n")


# --- scripts without a step count: the lease counts -------------------------------------------------------------------

SCRIPT = str(Path(__file__).with_name("gavel_script.py"))
VARIANTS = ["always-complete", "own-limit", "spawned"]


def script(variant: str, folder: Path, *more: str, pace: float = 0.002) -> list[str]:
    return ["-m", "levada.runtime.gavel", SCRIPT, variant, str(folder), "--pace", str(pace), *more]


def trained(folder: Path) -> int:
    """The step count in the checkpoint of the test script."""
    return int(json.loads((folder / "model.json").read_text())["trained"])


def executed_steps(folder: Path) -> int:
    """The number of executed steps, including lost ones."""
    return len((folder / "ledger").read_text().splitlines())


def stop_at(job: Supervisor, step: int, folder: Path) -> ProgressReport:
    """Stop the worker after that step and return its last report."""
    (worker,) = job.members
    job.wait_until(lambda: worker.report.step >= step, f"step {step}")
    os.killpg(worker.process.pid, signal.SIGTERM)  # like the local backend
    worker.exit_code()
    report = worker.report
    assert not report.flags & COMPLETE, "a stop is not the end of the job"
    assert report.step == report.saved_step == trained(folder)
    return report


@pytest.mark.parametrize("variant", VARIANTS)
def test_granted_steps_are_done_once_across_stops_and_kills(tmp_path: Path, variant: str) -> None:
    checkpoints = tmp_path / "checkpoints"
    # The script's own limit counts from 0 in every run.
    with supervising(tmp_path, script(variant, checkpoints, "--limit", "300")) as job:
        job.start(1, lease={"total_steps": 300})
        stopped = stop_at(job, 50, checkpoints)

        (killed,) = job.start(1, lease={"total_steps": 300})
        job.wait_until(lambda: killed.report.step >= stopped.step + 30, "30 more steps")
        assert killed.report.saved_step == stopped.step
        os.killpg(killed.process.pid, signal.SIGKILL)
        killed.exit_code()
        assert trained(checkpoints) == stopped.step, "steps after the last checkpoint are lost"

        (last,) = job.start(1, lease={"total_steps": 300})
        assert last.exit_code() == 0
        assert last.report.flags & COMPLETE
        assert last.report.step == last.report.saved_step == trained(checkpoints) == 300
        lost = executed_steps(checkpoints) - 300
        assert 30 <= lost < 300 - stopped.step


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_stopped_script_without_declared_steps_is_not_complete(tmp_path: Path, variant: str) -> None:
    checkpoints = tmp_path / "checkpoints"
    with supervising(tmp_path, script(variant, checkpoints, "--limit", "100")) as job:
        job.start(1)
        report = stop_at(job, 30, checkpoints)
        # Without declared steps the script repeats its own number of steps.
        (restarted,) = job.start(1)
        assert restarted.exit_code() == 0
        assert restarted.report.flags & COMPLETE
        assert trained(checkpoints) == report.step + 100


@pytest.mark.parametrize("die", ["before-save", "after-save"])
def test_a_kill_during_a_save_neither_loses_nor_repeats_steps(tmp_path: Path, die: str) -> None:
    checkpoints = tmp_path / "checkpoints"
    with supervising(tmp_path, script("own-limit", checkpoints, "--die", die)) as job:
        (worker,) = job.start(1, lease={"total_steps": 200})
        job.wait_step(40)
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == -signal.SIGKILL
        saved_steps = trained(checkpoints) if die == "after-save" else 0
        assert saved_steps >= 40 or die == "before-save"
    with supervising(tmp_path / "later", script("own-limit", checkpoints)) as job:
        job.generation = 5
        (worker,) = job.start(1, lease={"total_steps": 200})
        assert worker.exit_code() == 0
        assert worker.report.flags & COMPLETE
        assert worker.report.step == trained(checkpoints) == 200
        steps = [line.split() for line in (checkpoints / "ledger").read_text().splitlines()]
        assert [int(step) for generation, _, step in steps if generation == "6"] == [*range(saved_steps + 1, 201)]


def test_a_job_killed_after_its_final_save_completes_without_another_step(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    with supervising(tmp_path, script("own-limit", checkpoints, "--die", "after-save")) as job:
        for _ in range(2):
            (worker,) = job.start(1, lease={"total_steps": 50})
            assert worker.exit_code() == -signal.SIGKILL
            assert executed_steps(checkpoints) == trained(checkpoints) == 50
        assert worker.report.flags & COMPLETE
        assert worker.report.step == 50


def test_a_job_killed_before_its_final_save_is_not_complete(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    with supervising(tmp_path, script("always-complete", checkpoints, "--die", "before-save")) as job:
        (worker,) = job.start(1, lease={"total_steps": 50})
        assert worker.exit_code() == -signal.SIGKILL
        assert not worker.report.flags & COMPLETE


def test_steps_of_another_job_in_the_same_folder_do_not_count(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    for job_id in ("first", "second"):
        with supervising(tmp_path / job_id, script("own-limit", checkpoints), {"LEVADA_JOB": job_id}) as job:
            job.generation = 7 if job_id == "first" else 0
            (worker,) = job.start(1, lease={"total_steps": 60})
            assert worker.exit_code() == 0
            assert worker.report.step == worker.report.saved_step == 60
    assert trained(checkpoints) == 120


def test_an_unreadable_checkpoint_restarts_the_step_count(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    with supervising(tmp_path, script("own-limit", checkpoints)) as job:
        job.start(1, lease={"total_steps": 200})
        stop_at(job, 40, checkpoints)
        (checkpoints / "model.json").write_text('{"trained": 4')
        (worker,) = job.start(1, lease={"total_steps": 200})
        assert worker.exit_code() == 0
        assert "steps was not loaded" in worker.output
        assert worker.report.step == trained(checkpoints) == 200


def test_a_script_that_ends_before_its_steps_is_not_complete(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    with supervising(tmp_path, script("own-limit", checkpoints, "--limit", "30")) as job:
        for step in (30, 60):
            (worker,) = job.start(1, lease={"total_steps": 80})
            assert worker.exit_code() == 0
            assert worker.report.step == step
            assert worker.report.flags & (COMPLETE | LEASED) == LEASED
            assert f"the script ended after step {step} of 80" in worker.output
        (worker,) = job.start(1, lease={"total_steps": 80})
        worker.exit_code()
        assert worker.report.flags & COMPLETE
        assert worker.report.step == trained(checkpoints) == 80


def test_a_script_that_ends_without_a_step_fails(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys; from gavel_iterator import GavelIterator\nGavelIterator([], sys.argv[1], None, None)\n"
    )
    command = ["-m", "levada.runtime.gavel", str(tmp_path / "script.py"), str(tmp_path / "checkpoints")]
    with supervising(tmp_path, command) as job:
        (worker,) = job.start(1, lease={"total_steps": 80})
        assert worker.exit_code() == 1
        assert "the script ended at step 0 of 80 without training" in worker.output


def test_all_ranks_do_the_granted_steps_and_rank_0_reports_the_job(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    with supervising(tmp_path, script("own-limit", checkpoints)) as job:
        workers = job.start(2, lease={"total_steps": 90})
        assert [worker.exit_code() for worker in workers] == [0, 0]
        assert [worker.report.step for worker in workers] == [90, 90]
        assert [worker.report.flags & (COMPLETE | LEASED) for worker in workers] == [COMPLETE | LEASED, 0]
        assert executed_steps(checkpoints) == 180
