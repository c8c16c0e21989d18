"""Scripts written for Gavel run as they are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from levada.runtime import checkpoint
from levada.runtime.report import COMPLETE, LEASED, LEAVES, READY, SAVES, Report
from tests.runtime.supervisor import Supervisor, supervising

TRAIN = str(Path(__file__).parents[2] / "examples" / "gavel" / "train.py")


def command(folder: Path, steps: int, pace: float = 0.0) -> list[str]:
    runner = ["-m", "levada.runtime.gavel", TRAIN]
    return [*runner, "--num_steps", str(steps), "--step_seconds", str(pace), "--checkpoint_dir", str(folder)]


def steps_of(folder: Path) -> int:
    """What the script itself has saved."""
    return int(json.loads((folder / "model.json").read_text())["steps"])


def test_it_trains_to_its_end_without_a_server(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, *command(tmp_path, 120)], capture_output=True, text=True, timeout=180, env={}, check=True
    )
    assert "step 100  y = " in done.stdout
    assert done.stderr == ""
    assert steps_of(tmp_path) == 120


def test_asked_to_leave_it_is_done_saves_and_goes_on_later(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with supervising(tmp_path, command(kept, 200, 0.01)) as job:
        (worker,) = job.start(1)
        job.reached(60)  # beyond the first pass over the data
        assert worker.report.flags == READY | SAVES | LEASED
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
        left = worker.report
        assert left.flags == READY | SAVES | LEASED | LEAVES
        assert left.step == left.saved_step == steps_of(kept)
        assert 60 <= left.step < 200

        (again,) = job.start(1)
        assert again.ended() == 0
        assert again.report.flags & 4
        assert again.report.step == again.report.saved_step == steps_of(kept) == 200
        assert again.report.saves == 2


def test_the_end_of_a_lease_is_the_same(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with supervising(tmp_path, command(kept, 10**6)) as job:
        (worker,) = job.start(1, lease={"until_step": 75, "then": "stop"})
        job.sees(lambda: worker.process.poll() is not None, "it ends")
        assert worker.ended() == 0
        # The lease is read by the thread: it may come some steps after the first.
        assert steps_of(kept) == worker.report.step >= 75
        assert "asked to leave after step" in worker.output


def test_a_leftover_does_not_overwrite_what_is_newer(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    checkpoint.save(kept, 9, checkpoint.Progress(), b"")
    with supervising(tmp_path, command(kept, 10)) as job:
        (worker,) = job.start(1)
        assert worker.ended() == 75
        assert not (kept / "model.json").exists()


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
def test_it_is_an_iterator_like_any_other(tmp_path: Path, extra: tuple[str, ...], expected: str) -> None:
    (tmp_path / "passes.py").write_text(PASSES)
    arguments = ["-m", "levada.runtime.gavel", str(tmp_path / "passes.py"), str(tmp_path), *extra]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=180, env={}, check=True)
    assert done.stdout == expected


def test_without_a_script_it_says_how_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-m", "levada.runtime.gavel"], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (1, "usage: python -m levada.runtime.gavel SCRIPT ARGUMENT…\n")


# --- scripts that keep no step count: the lease does ------------------------------------------------------------------

SCRIPT = str(Path(__file__).with_name("gavel_script.py"))
MANNERS = ["always-complete", "own-limit", "spawned"]


def script(manner: str, folder: Path, *more: str, pace: float = 0.002) -> list[str]:
    return ["-m", "levada.runtime.gavel", SCRIPT, manner, str(folder), "--pace", str(pace), *more]


def trained(folder: Path) -> int:
    """The steps in the script's own checkpoint."""
    return int(json.loads((folder / "model.json").read_text())["trained"])


def made(folder: Path) -> int:
    """The steps that were made at all, lost ones included."""
    return len((folder / "ledger").read_text().splitlines())


def stop_at(job: Supervisor, step: int, folder: Path) -> Report:
    """Asks the worker to leave after that step, and returns its last report."""
    (worker,) = job.members
    job.sees(lambda: worker.report.step >= step, f"step {step}")
    os.killpg(worker.process.pid, signal.SIGTERM)  # as the supervisor does
    worker.ended()
    report = worker.report
    assert not report.flags & COMPLETE, "a stop is not the end of the job"
    assert report.step == report.saved_step == trained(folder)
    return report


@pytest.mark.parametrize("manner", MANNERS)
def test_granted_steps_are_made_once_over_stops_and_kills(tmp_path: Path, manner: str) -> None:
    kept = tmp_path / "kept"
    # The script's own limit counts from 0 in every run and would be too much.
    with supervising(tmp_path, script(manner, kept, "--limit", "300")) as job:
        job.start(1, lease={"total_steps": 300})
        stopped = stop_at(job, 50, kept)

        (killed,) = job.start(1, lease={"total_steps": 300})
        job.sees(lambda: killed.report.step >= stopped.step + 30, "it goes on")
        assert killed.report.saved_step == stopped.step
        os.killpg(killed.process.pid, signal.SIGKILL)
        killed.ended()
        assert trained(kept) == stopped.step, "what was made after the last save is lost"

        (last,) = job.start(1, lease={"total_steps": 300})
        assert last.ended() == 0
        assert last.report.flags & COMPLETE
        assert last.report.step == last.report.saved_step == trained(kept) == 300
        lost = made(kept) - 300
        assert 30 <= lost < 300 - stopped.step


@pytest.mark.parametrize("manner", MANNERS)
def test_without_declared_steps_a_script_that_was_asked_to_leave_is_not_done(tmp_path: Path, manner: str) -> None:
    kept = tmp_path / "kept"
    with supervising(tmp_path, script(manner, kept, "--limit", "100")) as job:
        job.start(1)
        left = stop_at(job, 30, kept)
        # Nobody but the script knows when to end: it makes its own number of steps again.
        (again,) = job.start(1)
        assert again.ended() == 0
        assert again.report.flags & COMPLETE
        assert trained(kept) == left.step + 100


@pytest.mark.parametrize("die", ["before-save", "after-save"])
def test_a_kill_while_it_saves_neither_loses_nor_doubles_steps(tmp_path: Path, die: str) -> None:
    kept = tmp_path / "kept"
    with supervising(tmp_path, script("own-limit", kept, "--die", die)) as job:
        (worker,) = job.start(1, lease={"total_steps": 200})
        job.reached(40)
        worker.signal(signal.SIGTERM)
        assert worker.ended() == -signal.SIGKILL
        had = trained(kept) if die == "after-save" else 0
        assert had >= 40 or die == "before-save"
    with supervising(tmp_path / "later", script("own-limit", kept)) as job:
        job.generation = 5
        (worker,) = job.start(1, lease={"total_steps": 200})
        assert worker.ended() == 0
        assert worker.report.flags & COMPLETE
        assert worker.report.step == trained(kept) == 200
        steps = [line.split() for line in (kept / "ledger").read_text().splitlines()]
        assert [int(step) for generation, _, step in steps if generation == "6"] == [*range(had + 1, 201)]


def test_a_job_whose_last_save_was_its_end_is_done_without_another_step(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with supervising(tmp_path, script("own-limit", kept, "--die", "after-save")) as job:
        for _ in range(2):
            (worker,) = job.start(1, lease={"total_steps": 50})
            assert worker.ended() == -signal.SIGKILL
            assert made(kept) == trained(kept) == 50
        assert worker.report.flags & COMPLETE
        assert worker.report.step == 50


def test_a_killed_save_at_the_end_is_not_the_end(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with supervising(tmp_path, script("always-complete", kept, "--die", "before-save")) as job:
        (worker,) = job.start(1, lease={"total_steps": 50})
        assert worker.ended() == -signal.SIGKILL
        assert not worker.report.flags & COMPLETE


def test_steps_of_another_job_in_the_same_folder_do_not_count(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    for job_id in ("first", "second"):
        with supervising(tmp_path / job_id, script("own-limit", kept), {"LEVADA_JOB": job_id}) as job:
            job.generation = 7 if job_id == "first" else 0
            (worker,) = job.start(1, lease={"total_steps": 60})
            assert worker.ended() == 0
            assert worker.report.step == worker.report.saved_step == 60
    assert trained(kept) == 120


def test_a_checkpoint_that_cannot_be_loaded_counts_for_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with supervising(tmp_path, script("own-limit", kept)) as job:
        job.start(1, lease={"total_steps": 200})
        stop_at(job, 40, kept)
        (kept / "model.json").write_text('{"trained": 4')
        (worker,) = job.start(1, lease={"total_steps": 200})
        assert worker.ended() == 0
        assert "steps was not loaded" in worker.output
        assert worker.report.step == trained(kept) == 200


def test_a_script_that_ends_too_early_is_not_done(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with supervising(tmp_path, script("own-limit", kept, "--limit", "30")) as job:
        for step in (30, 60):
            (worker,) = job.start(1, lease={"total_steps": 80})
            assert worker.ended() == 0
            assert worker.report.step == step
            assert worker.report.flags & (COMPLETE | LEASED) == LEASED
            assert f"the script ended after step {step} of 80" in worker.output
        (worker,) = job.start(1, lease={"total_steps": 80})
        worker.ended()
        assert worker.report.flags & COMPLETE
        assert worker.report.step == trained(kept) == 80


def test_a_script_that_ends_without_training_has_failed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys; from gavel_iterator import GavelIterator\nGavelIterator([], sys.argv[1], None, None)\n"
    )
    command = ["-m", "levada.runtime.gavel", str(tmp_path / "script.py"), str(tmp_path / "kept")]
    with supervising(tmp_path, command) as job:
        (worker,) = job.start(1, lease={"total_steps": 80})
        assert worker.ended() == 1
        assert "the script ended at step 0 of 80 without training" in worker.output


def test_all_ranks_make_the_granted_steps_and_the_first_answers_for_the_job(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with supervising(tmp_path, script("own-limit", kept)) as job:
        workers = job.start(2, lease={"total_steps": 90})
        assert [worker.ended() for worker in workers] == [0, 0]
        assert [worker.report.step for worker in workers] == [90, 90]
        assert [worker.report.flags & (COMPLETE | LEASED) for worker in workers] == [COMPLETE | LEASED, 0]
        assert made(kept) == 180
