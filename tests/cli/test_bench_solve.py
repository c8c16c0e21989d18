"""`levada bench solve`: the keys of the interface, and the same objective for the same seed."""

import json

import pytest

from levada.cli import main as cli

Capture = pytest.CaptureFixture[str]
PERF = ["--policy", "max_min_fairness_perf"]


def bench(capsys: Capture, *words: str) -> str:
    assert cli.main(["bench", "solve", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_json_has_the_keys_of_the_interface(capsys: Capture) -> None:
    said = json.loads(bench(capsys, *PERF, "--jobs", "20,40", "--types", "3", "-o", "json"))
    assert [list(row) for row in said] == [
        ["policy", "jobs", "classes", "build_s", "solve_s", "cold_s", "objective"]
    ] * 2  # fmt: skip
    assert [row["jobs"] for row in said] == [20, 40]


def test_same_seed_same_objective(capsys: Capture) -> None:
    def objective(*words: str) -> float:
        (row,) = json.loads(bench(capsys, *PERF, "--jobs", "30", "-o", "json", *words))
        return float(row["objective"])

    assert objective("--seed", "3") == objective("--seed", "3")
    assert objective("--seed", "3") != objective("--seed", "4")
    assert objective("--load", "20") < objective("--load", "2")
    assert objective("--gpus", "300") > objective("--gpus", "6")


def test_table(capsys: Capture) -> None:
    lines = bench(capsys, "--policy", "isolated", "--jobs", "20").splitlines()
    assert lines[0].split() == ["POLICY", "JOBS", "CLASSES", "BUILD", "ms", "FIRST", "ms", "LATER", "ms", "OBJECTIVE"]
    assert lines[1].split()[-1] == "-"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--policy", "fifo", "--jobs", "4"], "fifo solves nothing"),
        ([*PERF, "--jobs", "many"], "--jobs 'many': 'many' must be a whole number"),
        (
            [*PERF, "--jobs", "4", "--load", "1", "--gpus", "9"],
            "--load and --gpus are mutually exclusive; give one of them",
        ),
        ([*PERF, "--jobs", "4", "--throughputs", "absent"], "absent"),
    ],
)
def test_faults_are_one_line(capsys: Capture, words: list[str], fault: str) -> None:
    assert cli.main(["bench", "solve", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(fault)
    assert err.count("\n") == 1
