"""`levada sim compare`: the same figures as a table, JSON, CSV and Markdown."""

import csv
import io
import json
from pathlib import Path

import pytest

from levada.cli import main as cli
from tests.report.made import run, sweep

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    rows = [run(policy, 1.0, seed, hours + seed) for policy, hours in (("fifo", 4), ("srjf", 2)) for seed in (0, 2)]
    return sweep(tmp_path / "sweep", [*rows, run("srjf", 9.0, 0, None, status="saturated")])


def said(capsys: Capture, *words: str) -> str:
    assert cli.main(["sim", "compare", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_a_table_for_people(folder: str, capsys: Capture) -> None:
    assert said(capsys, folder, "--metric", "avg_jct_s").splitlines() == [
        "POLICY  JOBS PER HOUR  RUNS            MEAN JCT (h)",
        "fifo    1              2               5.00 ± 12.71",
        "srjf    1              2               3.00 ± 12.71 *",
        "",
        "srjf    9              1, 1 saturated  -",
        "",
        "* the best of its load",
    ]


def test_markdown_has_the_best_in_bold(folder: str, capsys: Capture) -> None:
    lines = said(capsys, folder, "--metric", "avg_jct_s", "-o", "md").splitlines()
    assert lines[0] == "| policy | jobs per hour | runs | mean JCT (h) |"
    assert lines[1] == "| --- | --- | --- | --- |"
    assert lines[3] == "| srjf | 1 | 2 | **3.00 ± 12.71** |"


def test_json_and_csv_agree(folder: str, capsys: Capture) -> None:
    rows = json.loads(said(capsys, folder, "-o", "json"))
    table = list(csv.DictReader(io.StringIO(said(capsys, folder, "-o", "csv"))))
    assert len(rows) == len(table) == 3
    assert rows[0]["figures"]["avg_jct_s"]["mean"] == float(table[0]["avg_jct_s"]) == 18000.0
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


def test_faults_are_one_line_each(tmp_path: Path, capsys: Capture) -> None:
    assert cli.main(["sim", "compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 2
