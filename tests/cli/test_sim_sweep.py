"""`levada sim sweep`: same results for any number of processes, no repeated runs, nothing lost by Ctrl-C or kill."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from levada.cli import main as cli
from levada.cli.sim_sweep import parse_rates, parse_wholes
from tests.test_plugins import SMALLEST_FIRST

Capture = pytest.CaptureFixture[str]
SMALL = ["--cluster", "v100=4,k80=4", "--workload", "gavel", "--jobs", "5", "--fixed-duration", "3600"]
#: Measured values, which differ between runs.
MEASURED = ["cpu_s", "wall_s"]


def sweep(*words: str | Path) -> int:
    return cli.main(["sim", "sweep", *map(str, words)])


def runs(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "runs.parquet")


def test_results_are_independent_of_processes_and_order(tmp_path: Path, capsys: Capture) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert (
        sweep(*SMALL, "--policy", "fifo,max_min_fairness_perf", "--rate", "2,6", "--seed", "0-1", "--out", one, "-j", 1)
        == 0
    )
    out, err = capsys.readouterr()
    told = err.splitlines()
    assert [line.partition(";")[0] for line in told[:-1]] == [f"{n} of 8 runs done" for n in range(1, 9)]
    assert told[-1] == f"{one}: 8 runs"
    assert out.startswith("POLICY")
    assert (
        sweep(
            *SMALL,
            "--policy",
            "max_min_fairness_perf",
            "--policy",
            "fifo",
            "--rate",
            "6,2",
            "--seed",
            "1,0",
            "--out",
            two,
            "-j",
            3,
        )
        == 0
    )
    capsys.readouterr()
    assert runs(one).drop(MEASURED).equals(runs(two).drop(MEASURED))
    assert (one / "jobs.parquet").read_bytes() == (two / "jobs.parquet").read_bytes()
    assert runs(one).height == 8

    row = runs(one).row(0, named=True)
    assert (row["policy"], row["rate"], row["seed"], row["status"]) == ("fifo", 2.0, 0, "finished")
    words = [*SMALL, "--policy", "fifo", "--rate", "2", "--seed", "0", "-o", "json"]
    assert cli.main(["sim", "run", *words]) == 0
    said = json.loads(capsys.readouterr().out)
    said["queueing_s"] = said["queueing_s"]["mean"]
    assert {key: row[key] for key in row if key in said and key not in MEASURED} == {
        key: said[key] for key in said if key in row and key not in MEASURED
    }
    jobs = pl.read_parquet(one / "jobs.parquet").filter(pl.col("run") == row["run"])
    assert dict(zip(map(str, jobs["job"]), jobs["jct_s"], strict=True)) == said["jct_s"]


def test_finished_runs_are_reused_and_new_ones_added(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "sweep"
    assert sweep(*SMALL, "--policy", "fifo", "--rate", "4", "--seed", "0-1", "--out", out) == 0
    before = stamps(out)
    assert len(before) == 2
    capsys.readouterr()
    assert sweep(*SMALL, "--policy", "fifo,srjf", "--rate", "4", "--seed", "0-1", "--out", out) == 0
    told = capsys.readouterr().err.splitlines()
    assert (told[0], told[-1]) == ("2 of 4 runs are already done", f"{out}: 4 runs")
    assert told[-2].startswith("4 of 4 runs done; last: srjf at 4/h, seed ")
    after = stamps(out)
    assert {name: after[name] for name in before} == before
    assert runs(out).height == 4


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Modification time and inode of each finished run."""
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in (folder / "parts").glob("*.json")}


LONG = ["--cluster", "v100=2", "--workload", "gavel", "--fixed-duration", "7200", "--policy", "fifo", "--run-saturated"]


def begin(out: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "levada", "sim", "sweep", *LONG, *words, "--out", str(out), "-j", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupt_keeps_finished_runs(number: int, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    process = begin(out, "--jobs", "3,4,5", "--rate", "1,2,3,4,5,6,7,8", "--seed", "0-9")
    until(lambda: len(stamps(out)) >= 2 if out.exists() else False, process)
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    process.send_signal(number)
    said, told = process.communicate(timeout=600)
    assert said == ""
    end = time.monotonic() + 600
    while any(Path(f"/proc/{child}/status").exists() and "Z" not in state(child) for child in children):
        assert time.monotonic() < end, "workers end with the sweep"
        time.sleep(0.02)
    kept = stamps(out)
    if number != signal.SIGKILL:
        assert process.returncode == 3
        assert told.splitlines()[-1].startswith("levada: interrupted; ")
        assert runs(out).height == len(kept) < 240
    # Partial files of an interrupted write are ignored.
    (out / "parts" / "0123.json.half").write_text("{")
    (out / "parts" / f"{'0' * 20}.jobs.parquet").write_text("PAR1")
    first = ["--jobs", "3", "--rate", "1,2,3,4,5,6,7,8", "--seed", "0"]
    again = begin(out, *first)
    again.communicate(timeout=900)
    assert again.returncode == 0
    now = stamps(out)
    assert {name: now[name] for name in kept} == kept
    assert runs(out).filter((pl.col("asked_jobs") == 3) & (pl.col("seed") == 0)).height == 8


def state(child: int) -> str:
    try:
        return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def until(true: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait until a condition on another process is true."""
    end = time.monotonic() + 900
    while not true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def test_progress_bar_on_a_terminal(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    words = [*SMALL, "--policy", "fifo", "--rate", "4", "--out", str(tmp_path / "sweep"), "-j", "1", "-o", "csv"]
    process = subprocess.Popen(
        [sys.executable, "-m", "levada", "sim", "sweep", *words], stdout=subprocess.PIPE, stderr=slave
    )
    os.close(slave)
    seen = b""
    try:
        while chunk := os.read(master, 4096):
            seen += chunk
    except OSError:
        pass  # the other side is closed
    out, _ = process.communicate(timeout=600)
    os.close(master)
    assert process.returncode == 0
    assert b"0/1" in seen
    assert out.startswith(b"policy,cluster,load,runs,saturated,avg_jct_s,")


def test_failed_run_does_not_stop_others(tmp_path: Path, capsys: Capture) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        SMALLEST_FIRST.replace("        jobs, allowed", "        __import__('os')._exit(7)\n        jobs, allowed")
    )
    out = tmp_path / "sweep"
    assert sweep(*SMALL, "--policy", f"{mine}:SmallestFirst,fifo", "--rate", "1", "--out", out, "-j", 1) == 1
    said, told = capsys.readouterr()
    assert said == ""
    lines = [line for line in told.splitlines() if " runs done; " not in line]
    assert len(lines) == 2
    assert lines[0] == f"levada: {mine}:SmallestFirst at 1/h, seed 0: process exited with code 7"
    assert lines[1] == "levada: 1 of 2 runs failed; run the same command to retry them"
    assert runs(out)["policy"].to_list() == ["fifo"]
    mine.write_text(SMALLEST_FIRST)
    assert sweep(*SMALL, "--policy", f"{mine}:SmallestFirst,fifo", "--rate", "1", "--out", out, "-j", 1) == 0
    assert runs(out).height == 2


def test_saturated_runs_are_stopped_and_marked(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "sweep"
    words = ["--cluster", "v100=2", "--workload", "gavel", "--fixed-duration", "3600", "--jobs", "490"]
    assert sweep(*words, "--policy", "fifo", "--rate", "1,60", "--out", out, "-o", "json") == 0
    said = json.loads(capsys.readouterr().out)
    assert [(row["load"], row["saturated"]) for row in said] == [(1.0, 0), (60.0, 1)]
    assert said[1]["figures"]["avg_jct_s"]["mean"] is None
    assert runs(out)["status"].to_list() == ["finished", "saturated"]


def test_timelines_store_placements(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    policies = "fifo,max_min_fairness_perf"
    assert sweep(*SMALL, "--policy", policies, "--rate", "4", "--timelines", "--out", out) == 0
    bars = pl.read_parquet(out / "timelines.parquet")
    jobs = pl.read_parquet(out / "jobs.parquet")
    both = bars.join(jobs, on=["run", "job"])
    assert (both["begin_s"] < both["end_s"]).all()
    assert (both["begin_s"] >= both["arrival_s"]).all()
    assert (both["end_s"] <= both["finished_s"]).all()
    for _, of_run in both.group_by("run"):
        assert set(of_run["job"]) == set(range(5))
        on_device = of_run.explode("devices").sort("devices", "begin_s")
        clash = on_device.filter(
            (pl.col("devices") == pl.col("devices").shift()) & (pl.col("begin_s") < pl.col("end_s").shift())
        )
        assert clash.is_empty(), "no GPU is used by two jobs"


@pytest.mark.parametrize(
    ("words", "faults"),
    [
        (["--policy", "fivo", "--rate", "1"], ["unknown policy 'fivo'"]),
        (["--policy", "fifo", "--rate", "x"], ["--rate 'x' must be comma-separated numbers"]),
        (["--policy", "fifo", "--rate", "1:2"], ["--rate '1:2' must be FROM:TO:COUNT"]),
        (["--policy", "fifo", "--rate", "1", "--seed", "3-1"], ["--seed '3-1': '3-1' must be an ascending range"]),
        (["--policy", "fifo", "--rate", "-1", "--jobs", "0"], ["--rate must be a number", "--jobs must be from 1"]),
        (["--policy", ",", "--rate", "1", "--seed", "x"], ["--seed 'x'", "--policy: is empty"]),
        (["--policy", "fifo", "--rate", "1", "--cutoffs", "absent"], ["absent: "]),
        (["--policy", "fifo", "--rate", "1", "--window", "9:2"], ["--window '9:2' is empty"]),
    ],
)
def test_faults_are_reported_before_any_run(
    tmp_path: Path, capsys: Capture, words: list[str], faults: list[str]
) -> None:
    out = tmp_path / "sweep"
    assert sweep(*SMALL, *words, "--out", out) == 2
    said, told = capsys.readouterr()
    lines = told.splitlines()
    assert said == ""
    assert len(lines) == len(faults)
    assert all(line.startswith(fault) for line, fault in zip(lines, faults, strict=True)), lines
    assert not out.exists()


def test_ranges_of_rates_and_seeds() -> None:
    assert parse_rates("1,2.5") == [1.0, 2.5]
    assert parse_rates("0:6:4") == [2.0, 4.0, 6.0]
    assert parse_rates("0.4:0.8:3") == [0.4, 0.6, 0.8]
    assert parse_wholes("--seed", "0-2,7") == [0, 1, 2, 7]


# ---------------------------------------------------------------------------------------------------------- on Dask


def test_a_sweep_on_a_dask_cluster_gives_the_same_results(tmp_path: Path, capsys: Capture) -> None:
    from distributed import LocalCluster

    asked = (*SMALL, "--policy", "fifo,max_min_fairness_perf", "--rate", "2", "--seed", "0-1", "--timelines")
    assert sweep(*asked, "--out", tmp_path / "here") == 0
    with LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster:
        address = cluster.scheduler_address.replace("tcp://", "dask://")
        assert sweep(*asked, "--out", tmp_path / "there", "--on", address) == 0
    for name in ("runs", "jobs", "timelines"):
        here, there = (pl.read_parquet(tmp_path / place / f"{name}.parquet") for place in ("here", "there"))
        measured = [column for column in MEASURED if column in here.columns]
        assert here.drop(measured).equals(there.drop(measured)), name


@pytest.mark.parametrize(
    ("on", "code", "expected"),
    [
        ("somewhere", 2, "must be dask://HOST:PORT"),
        ("dask://127.0.0.1:9", 1, "no Dask scheduler answers at dask://127.0.0.1:9"),
    ],
)
def test_unreachable_dask_cluster_is_one_line(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, on: str, code: int, expected: str
) -> None:
    monkeypatch.setattr("levada.sim.sweep.dask._CONNECT_S", 0.5)
    assert sweep(*SMALL, "--policy", "fifo", "--rate", "2", "--out", tmp_path / "out", "--on", on) == code
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if expected in line]
    assert not [line for line in lines if "Traceback" in line]
