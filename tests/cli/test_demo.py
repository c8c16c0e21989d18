"""`levada demo`: deterministic, at most 80 columns wide, within the limits of jobs and cluster."""

import io
import json
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from levada.cli import main as cli
from levada.cli.gantt import ASCII, UNICODE, Bar, Chart, ChartRow, letters
from levada.policies.catalog import POLICIES
from tests.test_plugins import SMALLEST_FIRST

Capture = pytest.CaptureFixture[str]


def demo(capsys: Capture, *arguments: str) -> str:
    assert cli.main(["demo", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def day(capsys: Capture, *arguments: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(demo(capsys, "-o", "json", *arguments))
    return told


class Pipe(io.StringIO):
    """A stdout that is not a terminal."""

    encoding = "utf-8"


@pytest.fixture(scope="module")
def page() -> str:
    """Output of `levada demo` without options."""
    with redirect_stdout(Pipe()) as out:
        assert cli.main(["demo"]) == 0
    return out.getvalue()


def test_output_is_deterministic_for_a_seed(capsys: Capture, page: str) -> None:
    assert demo(capsys).encode() == page.encode()


def test_output_fits_80_ascii_columns(page: str) -> None:
    assert max(len(line) for line in page.splitlines()) <= 80
    assert "\x1b" not in page


def test_shows_all_parts(page: str) -> None:
    for job in range(1, 31):
        assert sum(line.startswith(f"j{job:02} ") for line in page.splitlines()) == 2, (
            "once in the table, once in the chart"
        )
    for part in ("half a GPU", "CPU only", "parameter servers", "rigid", "never preempted", "serving", "GPUs in use"):
        assert part in page
    assert "the time of the highest demand?" in page


def test_columns_are_explained_under_the_table(page: str) -> None:
    lines = page.splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith("JOB "))
    below = " ".join(lines[header + 31 : header + 34])
    for column in ("GPUS", "TYPE", "NODES", "WAIT", "RAN", "RESIZED", "MOVED", "ENDED"):
        assert column in lines[header]
        assert column in below


@pytest.mark.parametrize("policy", [record.name for record in POLICIES])
def test_every_policy_completes_the_demo(capsys: Capture, policy: str) -> None:
    told = day(capsys, "--policy", policy, "--jobs", "12")
    assert told["policy"] == policy
    assert told["rejection"] is None
    assert {job["phase"] for job in told["jobs"]} == {"Succeeded"}
    assert_possible(told)


def test_another_seed_gives_other_jobs(capsys: Capture) -> None:
    told = day(capsys, "--seed", "1")
    assert_possible(told)
    assert told["jobs"] != day(capsys, "--seed", "2")["jobs"]


def assert_possible(told: dict[str, Any]) -> None:
    """Sizes are in range, and the GPUs in use never exceed the cluster."""
    bars = []
    for job in told["jobs"]:
        for bar in job["segments"]:
            assert job["min"] <= bar["workers"] <= job["max"]
            assert job["submitted"] <= bar["begin"] < bar["end"]
            bars.append((bar["begin"], bar["end"], bar["gpu_type"], bar["workers"] * job["milli"] / 1000))
    bars += [(pod["begin"], pod["end"], pod["gpu_type"], pod["gpus"]) for pod in told["served"]]
    for gpu_type, count in told["gpus"].items():
        for at in {bar[0] for bar in bars}:
            assert sum(bar[3] for bar in bars if bar[2] == gpu_type and bar[0] <= at < bar[1]) <= count
        assert 0 <= told["utilisation"][gpu_type] <= 1


def test_serving_pod_preempts_at_noon(capsys: Capture) -> None:
    told = day(capsys)
    (pod,) = told["served"]
    assert 12 * 3600 <= pod["begin"] < 12 * 3600 + 120
    before = [bar for job in told["jobs"] for bar in job["segments"] if bar["end"] == pytest.approx(12 * 3600, abs=60)]
    assert before, "training gave way"


def test_policy_of_a_file(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SMALLEST_FIRST)
    told = day(capsys, "--jobs", "9", "--policy", f"{tmp_path}/mine.py:SmallestFirst")
    assert told["policy"] == "smallest-first"


RETURN = "return decision(snap, gpu_type, count, rank=rank), state"


def test_prints_of_a_policy_are_kept_out_of_stdout(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "print('loading')\n" + SMALLEST_FIRST.replace(RETURN, f"print('hello'); {RETURN}")
    )
    assert cli.main(["demo", "--jobs", "9", "-o", "json", "--policy", f"{tmp_path}/mine.py:SmallestFirst"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["policy"] == "smallest-first"
    assert {"loading", "hello"} == set(err.split())


def test_sys_exit_in_a_policy_is_an_error(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SMALLEST_FIRST.replace(RETURN, "raise SystemExit(7)"))
    told = day(capsys, "--jobs", "9", "--policy", f"{tmp_path}/mine.py:SmallestFirst")
    assert told["rejection"] == "SystemExit: 7"


def test_bad_input_is_one_line(capsys: Capture) -> None:
    for arguments in (["--policy", "elastc-fifo"], ["--jobs", "0"], ["--seed", "-1"], ["--policy", "no/file.py:P"]):
        assert cli.main(["demo", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert len(err.splitlines()) == 1


class Terminal(Pipe):
    """A stdout that reports to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_colour_only_on_terminals_that_support_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "120")

    def shown() -> str:
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        assert cli.main(["demo", "--jobs", "9"]) == 0
        return terminal.getvalue()

    assert "\x1b[" in shown()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = shown()
    assert "\x1b" not in plain
    assert 80 < max(len(line) for line in plain.splitlines()) <= 120


def test_start_up_stays_light() -> None:
    probe = "import sys; from levada.cli.main import build; build(); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


# ------------------------------------------------------------------------------------------------------- the chart


def chart(glyphs: Any = UNICODE, **fields: Any) -> Chart:
    given = {"until": 24 * 3600.0, "width": 24 + 2 + 3, "types": ["cpu", "a100", "v100"], "colour": False, **fields}
    return Chart(["job"], glyphs=glyphs, **given)


def test_a_row_shows_waiting_type_and_workers() -> None:
    hour = 3600.0
    bars = [
        Bar(2 * hour, 5 * hour, "a100", 4),
        Bar(5 * hour, 7 * hour, "a100", 12),
        Bar(8 * hour, 10 * hour, "v100", 1),
    ]
    assert chart().row(ChartRow("job", bars, 1 * hour, 10 * hour)) == "job   ·A44++·V1"
    assert chart(ASCII).row(ChartRow("job", bars, 1 * hour, 10 * hour)) == "job   .A44++.V1"


def test_chart_shows_short_runs() -> None:
    assert chart().row(ChartRow("job", [Bar(60.0, 120.0, "v100", 2)], 0.0, 120.0)) == "job  V"


def test_chart_levels_separate_none_some_most_and_all() -> None:
    use = chart().shares([(Bar(0.0, 3600.0, "a100", 1), 0.1), (Bar(3600.0, 7200.0, "a100", 1), 8.0)], 8.0)
    assert use[:3] == [pytest.approx(0.0125), 1.0, 0.0]
    assert chart().level("job", use[:3]) == "job  ▁█"


def test_chart_letters_are_unique() -> None:
    assert letters(["cpu", "a100", "a10g", "aaa"]) == {"cpu": "C", "a100": "A", "a10g": "G", "aaa": "X"}
