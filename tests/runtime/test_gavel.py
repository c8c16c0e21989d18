"""Scripts written for Gavel run as they are."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from levada.runtime import checkpoint
from tests.runtime.supervisor import supervising

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
        assert worker.report.flags == 1
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
        left = worker.report
        assert left.flags == 1 | 8
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
