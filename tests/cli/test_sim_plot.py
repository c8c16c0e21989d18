"""`levada sim plot`: one file per figure in each format, and one-line faults."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from levada.cli import main as cli

Capture = pytest.CaptureFixture[str]


def plot(*words: str | Path) -> int:
    return cli.main(["sim", "plot", *map(str, words)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plots") / "sweep"
    words = "--cluster v100=4,k80=4 --workload gavel --jobs 5 --fixed-duration 3600 --policy fifo,max_min_fairness_perf"
    assert cli.main(["sim", "sweep", *words.split(), "--rate", "2,6", "--timelines", "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize("kind", ["jct", "cdf", "ftf", "gantt", "runtime", "makespan", "utilization"])
def test_every_kind_is_plotted(folder: Path, tmp_path: Path, capsys: Capture, kind: str) -> None:
    path = tmp_path / f"{kind}.svg"
    assert plot(kind, folder, "--out", path) == 0
    out, err = capsys.readouterr()
    # Slow machines print that they are plotting.
    assert (out, err.removeprefix("plotting\n")) == ("", f"{path}\n")
    assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_the_order_of_a_cluster_does_not_matter(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    for cluster in ("v100=4,k80=4", "k80=4,v100=4"):
        assert plot("cdf", folder, "--cluster", cluster, "--out", tmp_path / "a.svg") == 0
    capsys.readouterr()
    assert plot("cdf", folder, "--cluster", "v100=4", "--out", tmp_path / "a.svg") == 2
    assert capsys.readouterr().err == "--cluster v100=4: not simulated; use k80=4,v100=4\n"


def test_extension_selects_the_format(folder: Path, tmp_path: Path) -> None:
    assert plot("jct", folder, "--out", tmp_path / "a.png") == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert plot("gantt", folder, "--by", "gpu", "--policy", "fifo", "--load", 6, "--out", tmp_path / "a.html") == 0
    page = (tmp_path / "a.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == 1


def test_report_is_one_self_contained_page(folder: Path, tmp_path: Path) -> None:
    assert plot("report", folder, "--out", tmp_path / "report.html") == 0
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 7, "three by load, two spreads, two timelines"
    assert "<table" in page
    assert "td { white-space: nowrap }" in page, "no number is broken over two lines"
    assert "<b>" not in page, "one run per load is not significant"
    assert "src=" not in page
    assert "<link" not in page


def test_default_file_name_is_the_kind(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert plot("jct", folder, "--metric", "p90_jct_s") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["jct.svg"]


def test_single_runs_and_rounds_are_plotted(tmp_path: Path, capsys: Capture) -> None:
    rounds = tmp_path / "rounds.jsonl"
    words = "--policy max_min_fairness_perf --cluster v100=4 --workload gavel --jobs 4 --fixed-duration 3600 -o json"
    assert cli.main(["sim", "run", *words.split(), "--rounds", str(rounds)]) == 0
    said = tmp_path / "run.json"
    said.write_text(capsys.readouterr().out)
    assert plot("cdf", said, "--out", tmp_path / "cdf.svg") == 0
    assert plot("gantt", rounds, "--out", tmp_path / "gantt.svg") == 0


def test_benchmarks_are_plotted(tmp_path: Path) -> None:
    bench = tmp_path / "bench.json"
    bench.write_text(json.dumps([{"policy": "a", "jobs": jobs, "solve_s": 0.001} for jobs in (16, 64)]))
    assert plot("runtime", bench, "--out", tmp_path / "runtime.svg") == 0


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["jct", "absent"], "absent: No such file or directory"),
        (["jct", "{folder}", "--out", "a.gif"], "--out a.gif: the suffix must be one of .svg, .png, .html"),
        (["report", "{folder}", "--out", "a.svg"], "--out a.svg: the suffix of a report must be .html"),
        (["jct", "{folder}", "--metric", "p98"], "--metric p98: unknown"),
        (["cdf", "{folder}", "--load", "5"], "--load 5: not simulated; use 2 or 6"),
        (
            ["gantt", "{folder}", "--policy", "srjf"],
            "no run matches --policy and --seed; the runs are fifo seed 0, max_min_fairness_perf seed 0",
        ),
        (["gantt", "{folder}/jobs.parquet"], "{folder}/jobs.parquet:1: not a round of `levada sim run --rounds`"),
        (["jct", "{folder}", "--out", "absent/a.svg"], "--out absent/a.svg: no such folder: absent"),
        (["jctt", "{folder}"], "levada: Invalid value for 'KIND': 'jctt' is not one of"),
    ],
)
def test_every_fault_is_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, words: list[str], fault: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert plot(*(word.format(folder=folder) for word in words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(fault.format(folder=folder)), err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())
