"""`levada sim trace`: generated and converted traces are equal, and each fault is one line."""

import json
from pathlib import Path

import pytest

from levada.cli import main as cli
from levada.sim.traces import WRITERS, read

Capture = pytest.CaptureFixture[str]
DRAW = ["--workload", "gavel", "--jobs", "12", "--rate", "6", "--seed", "5"]


def trace(*words: str | Path) -> int:
    return cli.main(["sim", "trace", *map(str, words)])


@pytest.fixture
def drawn(tmp_path: Path, capsys: Capture) -> Path:
    path = tmp_path / "drawn.csv"
    assert trace("generate", path, *DRAW, "--multi-gpu", "--priorities", "--slos") == 0
    assert capsys.readouterr() == ("", f"{path}: 12 jobs\n")
    return path


def test_same_seed_same_bytes_and_another_seed_other_jobs(drawn: Path, tmp_path: Path) -> None:
    again, other = tmp_path / "again.csv", tmp_path / "other.csv"
    trace("generate", again, *DRAW, "--multi-gpu", "--priorities", "--slos")
    trace("generate", other, *DRAW[:-1], "6")
    assert again.read_bytes() == drawn.read_bytes()
    assert other.read_bytes() != drawn.read_bytes()


def test_generated_trace_runs_like_its_workload(drawn: Path, capsys: Capture) -> None:
    common = ["--policy", "fifo", "--cluster", "v100=8,k80=8", "--gpus-per-node", "8", "-o", "json"]
    assert cli.main(["sim", "run", *common, *DRAW, "--multi-gpu", "--priorities", "--slos"]) == 0
    from_workload = json.loads(capsys.readouterr().out)["jct_s"]
    assert cli.main(["sim", "run", *common, "--trace", str(drawn)]) == 0
    assert json.loads(capsys.readouterr().out)["jct_s"] == from_workload
    assert len(from_workload) == 12


@pytest.mark.parametrize("format", ["slurm", "philly", "csv"])
def test_examples_of_the_documentation_run_on_any_type(format: str, tmp_path: Path, capsys: Capture) -> None:
    lines = (Path(__file__).parents[2] / "docs" / "traces.md").read_text().splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith(f"    {format} "))
    example = tmp_path / "example"
    example.write_text("\n".join(line[16:] for line in lines[first : first + 2]) + "\n")
    assert (
        cli.main(["sim", "run", "--policy", "fifo", "--cluster", "a100=4", "--trace", str(example), "-o", "json"]) == 0
    )
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["jobs"], found["finished"]) == (1, 1)
    assert err.startswith("a100 is not in the throughput table: using the durations of the trace")


@pytest.mark.parametrize("name", ["there.parquet", "there.csv"])
def test_own_formats_are_lossless(drawn: Path, tmp_path: Path, name: str) -> None:
    there = tmp_path / name
    assert trace("convert", drawn, there) == 0
    assert read(there) == read(drawn)


@pytest.mark.parametrize("name", ["gavel-jobs", "philly", "slurm"])
def test_other_formats_keep_arrivals_and_sizes(drawn: Path, tmp_path: Path, name: str) -> None:
    there = tmp_path / "there"
    assert trace("convert", drawn, there, "--format", name, "--jobs", 9) == 0
    was, now = read(drawn).take(slice(0, 9)), read(there)
    assert now.scale.tolist() == was.scale.tolist()
    # Philly and Slurm store whole seconds and start with the first job.
    assert now.arrival_s == pytest.approx(was.arrival_s - was.arrival_s[0] * (name != "gavel-jobs"), abs=1.0)


def test_stdout_contains_only_the_trace(drawn: Path, capsys: Capture) -> None:
    assert trace("convert", drawn, "-", "--format", "csv") == 0
    assert capsys.readouterr() == (drawn.read_text(), "")


def test_missing_durations_come_from_the_throughput_table(drawn: Path, tmp_path: Path, capsys: Capture) -> None:
    # Gavel's own format has steps only.
    there = tmp_path / "there.trace"
    assert trace("convert", drawn, there) == 0
    capsys.readouterr()
    assert trace("describe", there, "-o", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert trace("describe", drawn, "-o", "json") == 0
    before = json.loads(capsys.readouterr().out)
    assert told["duration_s"]["known"] == told["jobs"] == 12
    assert told["gpu_hours"] == pytest.approx(before["gpu_hours"], rel=1e-3), "whole steps are a little less"
    assert (told["scale"], told["weight"]) == (before["scale"], before["weight"])


def test_describe_text(drawn: Path, capsys: Capture) -> None:
    assert trace("describe", drawn) == 0
    out = capsys.readouterr().out
    assert out.startswith("jobs       12\n")
    assert "GPU-hours" in out


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["describe", "absent.csv"], "absent.csv: No such file or directory"),
        (["convert", "{drawn}", "there.txt"], "there.txt: unknown suffix '.txt'"),
        (["convert", "{drawn}", "there", "--format", "gavle"], "unknown format 'gavle'; formats: csv, "),
        (["convert", "{drawn}", "-"], f"standard output needs --format: one of {', '.join(WRITERS)}"),
        (["convert", "{drawn}", "absent/there.csv"], "absent/there.csv: No such file or directory"),
        (["generate", "there.csv", "--workload", "gavle", "--jobs", "3"], "unknown workload 'gavle'; did you mean"),
        (
            ["generate", "there.csv", "--workload", "gavel", "--jobs", "3", "--fixed-duration", "0"],
            "--fixed-duration 0: must be a number of seconds above 0",
        ),
    ],
)
def test_every_fault_is_one_line(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, words: list[str], fault: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert trace(*(word.format(drawn=drawn) for word in words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(fault)
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["drawn.csv"]
