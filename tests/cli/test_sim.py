"""`levada sim run` and `levada bench sim`: output, faults and Ctrl-C."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from levada.cli import main as cli
from tests.test_plugins import SMALLEST_FIRST

Capture = pytest.CaptureFixture[str]
SMALL = ["--cluster", "v100=4,k80=4", "--workload", "gavel", "--jobs", "6", "--rate", "4", "--fixed-duration", "3600"]
KEYS = [
    "policy", "jobs", "finished", "makespan_s", "avg_jct_s", "jct_s", "p50_jct_s", "p90_jct_s", "p99_jct_s",
    "utilization", "ftf", "cost", "slo_violations", "rounds", "decisions", "preemptions", "cpu_s", "wall_s",
    "peak_rss_mb",
]  # fmt: skip
#: Lines of the table that are not in the interface, and the parameters of the simulation.
MORE_KEYS = [
    "queueing_s", "dropped", "deadlines", "moves", "resizes", "lease_extensions", "utilization_by_type", "measured",
    "events", "cluster", "gpus", "trace", "workload", "rate", "asked_jobs", "seed", "profiling", "reference_models",
]  # fmt: skip


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    code = cli.main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("policy", ["elastic-fifo", "max_min_fairness_perf"])
def test_json_has_the_keys_of_the_interface_in_their_order(capsys: Capture, policy: str) -> None:
    code, out, err = run(capsys, "sim", "run", "--policy", policy, *SMALL, "-o", "json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert list(said) == KEYS + MORE_KEYS
    assert (said["cluster"], said["rate"], said["asked_jobs"], said["seed"], said["measured"]) == (
        *("k80=4,v100=4", 4.0, 6, 0, 6),
    )
    assert list(said["queueing_s"]) == ["mean", "p50", "p90", "p99"]
    assert list(said["utilization_by_type"]) == ["k80", "v100"]
    assert (said["policy"], said["jobs"], said["finished"]) == (policy, 6, 6)
    assert list(said["jct_s"]) == list("012345")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("raise ZeroDivisionError('no way')", "was rejected: ZeroDivisionError: no way"),
        ("return None", "was rejected: TypeError"),
        ("return decision(snap, count, count * 99), state", "was rejected: I3"),
    ],
)
def test_policy_error_ends_the_simulation(capsys: Capture, tmp_path: Path, line: str, expected: str) -> None:
    source = (
        "import numpy as np\nfrom levada.core.decision import decision\n"
        "from levada.policies.protocol import ALL_GUARDS, ON_EVENTS, Needs\n\n\n"
        "class Broken:\n"
        "    name, needs, cadence, guards = 'broken', Needs.NOTHING, ON_EVENTS, ALL_GUARDS\n\n"
        "    def initial(self, seed):\n        return None\n\n"
        "    def decide(self, snap, perf, state):\n"
        f"        count = np.ones(len(snap), np.int64)\n        {line}\n"
    )
    (tmp_path / "broken.py").write_text(source)
    code, out, err = run(capsys, "sim", "run", "--policy", f"{tmp_path / 'broken.py'}:Broken", *SMALL)
    assert (code, out) == (1, "")
    assert expected in err
    assert len(err.splitlines()) == 1


def test_table(capsys: Capture) -> None:
    code, out, err = run(capsys, "sim", "run", "--policy", "max_min_fairness_perf", *SMALL)
    assert (code, err) == (0, "")
    for word in ("completion time", "utilization", "finish-time fairness", "6 finished"):
        assert word in out
    assert "nan" not in out


def test_table_states_measured_jobs_and_cost(capsys: Capture) -> None:
    _, out, _ = run(capsys, "sim", "run", "--policy", "fifo", *SMALL)
    assert "measured" not in out
    assert "GPU-hours" in out, "no price was given"
    _, out, _ = run(capsys, "sim", "run", "--policy", "fifo", *SMALL, "--window", "2:5", "--prices", "v100=2")
    rows = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert rows["measured"] == "3 (jobs 2 to 4)"
    assert rows["cost"].startswith("$")


def test_bench_prints_cpu_time(capsys: Capture) -> None:
    code, out, _ = run(capsys, "bench", "sim", "--policy", "fifo", *SMALL, "-o", "json")
    said = json.loads(out)
    assert code == 0
    assert list(said) == [
        "policy", "jobs", "finished", "gpus", "rounds", "decisions", "events", "start_s", "cpu_s", "events_per_s",
        "jobs_per_cpu_s", "peak_rss_mb",
    ]  # fmt: skip
    assert (said["jobs"], said["finished"], said["gpus"]) == (6, 6, 8)
    assert said["events"] == 12, "every job comes and goes, and there are no rounds"
    assert said["cpu_s"] > 0
    assert "jobs_per_cpu_s" in run(capsys, "bench", "sim", "--policy", "fifo", *SMALL)[1]


def test_every_flag_reaches_the_simulation(capsys: Capture, tmp_path: Path) -> None:
    rounds = tmp_path / "rounds.jsonl"
    flags = (
        "--policy max_min_fairness_packed --cluster v100=8,k80=8 --gpus-per-node v100=8,k80=2 --workload gavel --jobs 9"
        " --rate 6 --seed 3 --multi-gpu --priorities --slos --fixed-duration 2400 --steady-state --profiling 0.5"
        " --reference-models 9 --round 120 --mechanism gavel --global-queue --window 1:8 --prices v100=2,k80=0.5"
        f" --policy-option shares=leximin --restart-cost 5 --rounds {rounds} --checkpoint {tmp_path / 'state'} -o json"
    )
    code, out, err = run(capsys, "sim", "run", *flags.split())
    assert (code, err) == (0, "")
    assert json.loads(out)["rounds"] == len(rounds.read_text().splitlines())
    more = "--policy elastic-fifo --cluster v100=8 --workload gavel --jobs 5 --failures 5 --repair 0.5 -o json"
    assert run(capsys, "sim", "run", *more.split())[0] == 0
    ideal = "--policy max_min_fairness --cluster v100=8 --workload gavel --jobs 5 --ideal -o json"
    assert run(capsys, "sim", "run", *ideal.split())[0] == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--policy fifo", " needs --cluster: GPUs by type"),
        ("--policy fifo --cluster 36:36:36 --workload gavel --jobs 1", "must be TYPE=GPUS"),
        ("--policy fifo --cluster a100=4 --workload gavel --jobs 1", "a100 is not in the throughput table"),
        ("--policy fifo --cluster v100=4", "--trace FILE or --workload NAME"),
        ("--policy fifo --cluster v100=4 --trace nowhere.trace", "nowhere.trace: No such file or directory"),
        ("--policy fifo --cluster v100=4 --workload gavel --jobs 0", "--jobs must be from 1"),
        ("--policy fifo --cluster v100=4 --workload gavel --jobs many", "not a whole number"),
        ("--policy fifo --cluster v100=4 --workload gavel --jobs 1 --window 3:1", "--window '3:1' is empty"),
        ("--policy fifo --cluster v100=4 --workload gavel --jobs 1 --mechanism gavle", "did you mean gavel?"),
        ("--policy fyfo --cluster v100=4 --workload gavel --jobs 1", "unknown policy 'fyfo'"),
        ("--policy isolated --cluster v100=4 --workload gavel --jobs 1 --policy-option x=1", "unknown option"),
        ("--policy fifo --cluster v100=4 --workload gavel --jobs 1 --throughputs no.json", "no.json: No such file"),
        ("--policy fifo --cluster v100=4 --workload gavel --jobs 1 --outptu json", "did you mean --output?"),
        (
            "--policy fifo --cluster v100=4 --workload gavel --jobs 1 --gpus-per-node v10=3",
            "--gpus-per-node: the cluster has no v10; did you mean v100?",
        ),
        (
            "--policy fifo --cluster v100=4 --workload gavel --jobs 1 --prices v10=3",
            "--prices: the cluster has no v10; did you mean v100?",
        ),
        (
            "--policy fifo --cluster v100=4 --workload gavel --jobs 5 --window 10:20",
            "--window 10:20 is beyond the last of the 5 jobs",
        ),
    ],
)
def test_faults_are_one_line_and_code_2(capsys: Capture, arguments: str, expected: str) -> None:
    for verb in (("sim", "run"), ("bench", "sim")):
        code, out, err = run(capsys, *verb, *arguments.split())
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert expected in err


def test_all_faults_of_flags_are_reported_together(capsys: Capture) -> None:
    arguments = "--policy fifo --cluster v100 --workload gavel --jobs 1 --prices x --window 5:2 --restart-cost soon"
    code, _, err = run(capsys, "sim", "run", *arguments.split())
    assert code == 2
    assert err.count("\n") == 4


LONG = [
    "sim",
    "run",
    "--policy",
    "max_min_fairness_perf",
    "--cluster",
    "v100=8,k80=8",
    "--workload",
    "gavel",
    "--window",
    "0:100000",
    "--rate",
    "1",
    "-o",
    "json",
]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_keeps_the_checkpoint(number: int, tmp_path: Path) -> None:
    state = tmp_path / "state"
    process = subprocess.Popen(
        [sys.executable, "-m", "levada", *LONG, "--checkpoint", str(state), "--rounds", str(tmp_path / "rounds")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _until(lambda: (tmp_path / "rounds").exists() and (tmp_path / "rounds").stat().st_size > 0, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 3
    assert out == ""
    assert f"run the same command to resume from {state}" in err.splitlines()[-1]
    assert state.exists()


def test_interrupt_before_the_start_keeps_nothing(tmp_path: Path) -> None:
    state, marker = tmp_path / "state", tmp_path / "marker"
    own = tmp_path / "slow.py"
    wait = f"from pathlib import Path; import signal; Path({str(marker)!r}).touch(); signal.pause()"
    own.write_text(SMALLEST_FIRST.replace("return None  # it remembers nothing", wait))
    words = ["sim", "run", "--cluster", "v100=4", "--workload", "gavel", "--jobs", "3", "--policy"]
    process = subprocess.Popen(
        [sys.executable, "-m", "levada", *words, f"{own}:SmallestFirst", "--checkpoint", str(state)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _until(marker.exists, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out, state.exists()) == (3, "", False)
    assert err.splitlines()[-1] == (
        f"levada: interrupted before the simulation started; no checkpoint was written to {state}"
    )


def test_progress_is_shown_on_a_terminal() -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", "levada", *LONG], stdout=subprocess.PIPE, stderr=slave)
    os.close(slave)
    seen = b""
    while b"jobs done, day" not in seen:
        seen += os.read(master, 4096)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=600)
    os.close(master)
    assert (process.returncode, out) == (3, b"")


def _until(true: object, process: subprocess.Popen[str]) -> None:
    """Wait until a condition on another process is true."""
    assert callable(true)
    end = time.monotonic() + 900
    while not true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
