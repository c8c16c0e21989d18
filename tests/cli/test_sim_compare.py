"""`levada sim compare`: the same figures as a table, JSON, CSV and Markdown."""

import csv
import io
import json
from pathlib import Path

import pytest

from levada.cli import main as cli
from tests.report.sweep_files import run, sweep

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    rows = [
        run(policy, 1.0, seed, hours + seed / 100) for policy, hours in (("fifo", 4), ("srjf", 2)) for seed in range(3)
    ]
    return sweep(tmp_path / "sweep", [*rows, run("srjf", 9.0, 0, None, status="saturated")])


def said(capsys: Capture, *words: str) -> str:
    assert cli.main(["sim", "compare", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_table(folder: str, capsys: Capture) -> None:
    assert said(capsys, folder, "--metric", "avg_jct_s").splitlines() == [
        "POLICY  JOBS PER HOUR  RUNS            MEAN JCT (h)",
        "fifo    1              3               4.01 ± 0.02",
        "srjf    1              3               2.01 ± 0.02 *",
        "",
        "srjf    9              1, 1 saturated  -",
        "",
        "* best at its load: its 95 % confidence interval overlaps no other",
    ]


@pytest.mark.parametrize("wide", [60, 80, 200])
def test_a_table_fits_the_terminal(wide: int, folder: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(wide))
    monkeypatch.setenv("NO_COLOR", "1")
    lines = said(capsys, folder).splitlines()
    assert max(len(line) for line in lines if line.startswith(("POLICY", "fifo", "srjf"))) <= wide
    assert ("UNFAIR" in lines[0]) == (wide == 200)
    assert lines[-1].startswith("columns dropped, terminal too narrow: ") == (wide < 200)


def test_markdown_has_the_best_in_bold(folder: str, capsys: Capture) -> None:
    lines = said(capsys, folder, "--metric", "avg_jct_s", "-o", "md").splitlines()
    assert lines[0] == "| policy | jobs per hour | runs | mean JCT (h) |"
    assert lines[1] == "| --- | --- | --- | --- |"
    assert lines[3] == "| srjf | 1 | 3 | **2.01 ± 0.02** |"


def test_json_and_csv_agree(folder: str, capsys: Capture) -> None:
    rows = json.loads(said(capsys, folder, "-o", "json"))
    table = list(csv.DictReader(io.StringIO(said(capsys, folder, "-o", "csv"))))
    assert len(rows) == len(table) == 3
    assert rows[0]["figures"]["avg_jct_s"]["mean"] == float(table[0]["avg_jct_s"]) == 14436.0
    assert rows[2]["figures"]["avg_jct_s"]["mean"] is None
    assert (table[2]["avg_jct_s"], table[2]["saturated"]) == ("", "1")


def test_single_runs_are_compared(tmp_path: Path, capsys: Capture) -> None:
    names = []
    for policy in ("fifo", "srjf"):
        words = ["--policy", policy, "--cluster", "v100=2", "--workload", "gavel", "--jobs", "3", "-o", "json"]
        assert cli.main(["sim", "run", *words]) == 0
        names.append(tmp_path / f"{policy}.json")
        names[-1].write_text(capsys.readouterr().out)
    lines = said(capsys, *map(str, names)).splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["POLICY", "fifo", "srjf"]
    assert not any("*" in line for line in lines), "one run each is not significant"
    assert lines[-1] == "no best is marked: a policy has fewer than 3 runs; add seeds"
    moves = said(capsys, *map(str, names), "--metric", "moves", "--metric", "queueing_s").splitlines()
    assert all("-" not in line for line in moves[1:3]), "the JSON of a run has all metrics of its table"


def test_single_runs_show_cluster_and_load(tmp_path: Path, capsys: Capture) -> None:
    names = []
    for cluster, rate in (("v100=2", "2"), ("v100=3", "4")):
        words = f"sim run --policy fifo --cluster {cluster} --workload gavel --jobs 3 --rate {rate} -o json"
        assert cli.main(words.split()) == 0
        names.append(str(tmp_path / f"{cluster}.json"))
        Path(names[-1]).write_text(capsys.readouterr().out)
    lines = said(capsys, *names).splitlines()
    assert lines[0].split()[:5] == ["POLICY", "CLUSTER", "JOBS", "PER", "HOUR"]
    assert [lines[row].split()[:3] for row in (1, 3)] == [["fifo", "v100=2", "2"], ["fifo", "v100=3", "4"]]
    assert cli.main(["sim", "plot", "jct", *names, "--out", str(tmp_path / "jct.svg")]) == 0


def test_faults_are_one_line_each(tmp_path: Path, capsys: Capture) -> None:
    assert cli.main(["sim", "compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 2
