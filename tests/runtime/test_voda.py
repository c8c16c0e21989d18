"""Epoch files of Voda scripts."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.runtime.voda import Epochs, find, read
from tests.runtime.supervisor import supervising

TRAIN = str(Path(__file__).parents[2] / "examples" / "voda" / "train.py")
HEADER = "epoch,batch,epoch_time_sec,start_time,step_time_sec,total_epochs,workers\n"


def written(folder: Path, text: str) -> Epochs:
    path = folder / "job.csv"
    path.write_text(text)
    return read(path)


def test_only_the_last_epochs_with_the_current_workers_count(tmp_path: Path) -> None:
    rows = "0,8,100,2026-01-01 00:00:00.0,1,10,1\n1,8,100,x,1,10,1\n2,8,60,x,1,10,2\n3,8,50,x,1,10,2\n"
    assert written(tmp_path, HEADER + rows) == Epochs(done=4, epoch_s=55.0, workers=2, total=10)


def test_missing_empty_and_header_only_files_mean_no_epochs(tmp_path: Path) -> None:
    assert read(tmp_path / "absent.csv") == Epochs()
    assert written(tmp_path, "") == Epochs()
    assert written(tmp_path, HEADER) == Epochs()


@pytest.mark.parametrize(
    "spoilt", ["1,8,NA,x,NA,10,1\n", "\n", "NA\n", "x,y,z\n", "1,8,nan,x,1,10,1\n", "1,8,12", "1,8,100,x,1,10,1"]
)
def test_damaged_and_incomplete_lines_are_skipped(tmp_path: Path, spoilt: str) -> None:
    assert written(tmp_path, HEADER + "0,8,100,x,1,10,1\n" + spoilt) == Epochs(1, 100.0, 1, 10)


def test_unused_columns_may_be_missing(tmp_path: Path) -> None:
    assert written(tmp_path, "epoch,epoch_time_sec\n0,2.5\n") == Epochs(done=1, epoch_s=2.5, workers=1, total=0)


@given(st.text(alphabet="0123456789,.\n\"'epochtim_sNA-\x00é", max_size=200))
def test_no_file_content_raises(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    epochs = written(tmp_path_factory.mktemp("voda"), "epoch,epoch_time_sec,workers\n" + text)
    assert epochs.done >= 0
    assert epochs.epoch_s >= 0


def test_the_file_is_found_from_the_script_arguments() -> None:
    assert find(["--name", "a-1", "--epochs", "3", "--metrics-dir=/metrics"]) == Path("/metrics/a-1.csv")
    assert find(["--name", "a-1"]) is None


def test_epochs_become_progress_and_the_script_resumes_after_a_stop(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics"
    arguments = ["--name", "line", "--metrics-dir", str(metrics), "--store-dir", str(tmp_path / "store")]
    runner = ["-m", "levada.runtime.voda", TRAIN, *arguments, "--epochs", "6", "--epoch-seconds", "0.4"]
    with supervising(tmp_path, runner) as job:
        (worker,) = job.start(1)
        job.wait_step(2)
        report = worker.report
        assert report.flags == 1
        assert report.generation == 1
        assert report.saves == report.saved_step == report.step
        assert 0.3 < report.step_s < 10
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == -15  # no signal handler; its epochs are on disk
        before = worker.report.step

        (again,) = job.start(1)
        assert again.exit_code() == 0
        assert again.report.step == 6
        assert again.report.flags & 4
        assert f"epoch {int(before) + 1}/6" in again.output
        assert f"epoch {int(before)}/6" not in again.output


def test_a_script_that_fails_is_not_complete(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("raise SystemExit(3)")
    runner = ["-m", "levada.runtime.voda", str(tmp_path / "fails.py"), "--name=x", f"--metrics-dir={tmp_path}"]
    with supervising(tmp_path, runner) as job:
        (worker,) = job.start(1)
        assert worker.exit_code() == 3
        assert worker.report.flags == 1


def test_without_arguments_it_prints_its_usage() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "levada.runtime.voda", TRAIN], capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 1
    assert done.stderr.startswith("usage: python -m levada.runtime.voda SCRIPT --name NAME --metrics-dir FOLDER")
