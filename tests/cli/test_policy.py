"""`policy ls` and `policy describe`, and the static table behind them."""

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from levada.cli.main import main
from levada.policies.catalog import POLICIES
from levada.policies.registry import lookup, nearest

NAMES = [
    "fifo",
    "elastic-fifo",
    "srjf",
    "elastic-srjf",
    "tiresias",
    "elastic-tiresias",
    "ffdl",
    "afs-l",
    "dragon",
    "dragon-compat",
    "isolated",
    "gavel-fifo",
    "gavel-fifo_perf",
    "gavel-fifo_packed",
    "allox",
    "gandiva",
    *(f"max_min_fairness{form}" for form in ("", "_perf", "_packed")),
    *(f"max_min_fairness_water_filling{form}" for form in ("", "_perf", "_packed")),
    *(f"max_min_fairness_strategy_proof{form}" for form in ("", "_perf")),
    *(f"finish_time_fairness{form}" for form in ("", "_perf", "_packed")),
    *(f"min_total_duration{form}" for form in ("", "_perf", "_packed")),
    *(f"shortest_job_first{form}" for form in ("", "_perf")),
    "max_sum_throughput_perf",
    "max_sum_throughput_normalized_by_cost_perf",
    "max_sum_throughput_normalized_by_cost_perf_SLOs",
    "max_sum_throughput_normalized_by_cost_packed_SLOs",
]
ALIASES = {
    "FIFO": "fifo",
    "ElasticFIFO": "elastic-fifo",
    "SRJF": "srjf",
    "ElasticSRJF": "elastic-srjf",
    "Tiresias": "tiresias",
    "ElasticTiresias": "elastic-tiresias",
    "FfDLOptimizer": "ffdl",
    "AFS-L": "afs-l",
}


def test_names_and_aliases() -> None:
    assert [record.name for record in POLICIES] == NAMES
    assert {alias: record.name for record in POLICIES for alias in record.aliases} == ALIASES


def test_lookup_is_exact() -> None:
    for name in NAMES:
        assert lookup(name) is not None
    for alias, name in ALIASES.items():
        found = lookup(alias)
        assert found is not None
        assert found.name == name
    assert lookup("Fifo") is None
    assert lookup("") is None


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("elastic-fif", "elastic-fifo"), ("Fifo", "fifo"), ("elastictiresias", "elastic-tiresias"), ("afsl", "afs-l")],
)
def test_nearest(typo: str, meant: str) -> None:
    assert nearest(typo)[0] == meant


def test_nearest_of_nonsense_is_nothing() -> None:
    assert nearest("qqqqqqqq") == []
    assert nearest("") == []


def test_own_policies_are_listed_in_the_catalog_only() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "levada.policies" not in project.get("entry-points", {})


def test_ls_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "ls", "-o", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [record["name"] for record in listed] == NAMES
    for record in listed:
        assert list(record) == ["name", "aliases", "target", "summary", "needs", "source", "options", "shares"]
        for option in record["options"]:
            assert list(option) == ["name", "default", "unit", "meaning"]


def test_ls_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "ls", "-o", "name"]) == 0
    assert capsys.readouterr().out.split() == NAMES


def test_ls_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "ALIASES", "NEEDS", "SUMMARY"]
    assert [line.split()[0] for line in lines[1:]] == NAMES
    assert all(line == line.rstrip() for line in lines)
    assert [line.split("  ")[0] for line in lines if ")" in line[:50]] == ["elastic-fifo (recommended)"]


@pytest.mark.parametrize("name", [*NAMES, *ALIASES])
def test_describe(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["policy", "describe", name]) == 0
    out = capsys.readouterr().out
    record = lookup(name)
    assert record is not None
    for text in (record.name, record.summary, record.source, *(option.name for option in record.options)):
        assert text in out


def test_describe_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "describe", "Tiresias", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["name"] == "tiresias"
    assert shown["options"][0]["default"] == 3600


OWN = '''\
print("loading")
from levada.policies.protocol import ALL_GUARDS, ON_EVENTS, Needs


class Mine:
    """Do what is best for all.

    At length.
    """

    name, needs, cadence, guards = "mine", Needs.RATE | Needs.REMAINING, ON_EVENTS, ALL_GUARDS

    def __init__(self, *, patience_s=3.5, team):
        pass

    def initial(self, seed):
        pass

    def decide(self, snap, perf, state):
        pass
'''


def test_describe_a_policy_of_the_user(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    assert main(["policy", "describe", f"{path}:Mine", "-o", "json"]) == 0
    out, err = capsys.readouterr()
    assert err == "loading\n"
    assert json.loads(out) == {
        "name": "mine", "aliases": [], "target": f"{path}:Mine", "summary": "Do what is best for all",
        "needs": ["speedup", "remaining_s"], "source": str(path),
        "options": [
            {"name": "patience_s", "default": 3.5, "unit": "", "meaning": "-"},
            {"name": "team", "default": "required", "unit": "", "meaning": "-"},
        ],
        "shares": False,
    }  # fmt: skip
    assert main(["policy", "describe", f"{path}:Mine"]) == 0
    assert "Needs:    speedup, remaining_s" in capsys.readouterr().out
    assert main(["policy", "describe", f"{path}:Mien"]) == 2
    assert capsys.readouterr().err.endswith(f"{path}: no class 'Mien'; did you mean Mine?\n")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with entry points for policies."""
    (tmp_path / "levada_mine.py").write_text(OWN.removeprefix('print("loading")\n'))
    metadata = tmp_path / "levada_mine-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: levada-mine\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text(
        "[console_scripts]\nfirst = levada_mine:main\n\n"
        "[levada.policies]\n# a note\nours = levada_mine:Mine\nfifo = levada_mine:Mine\ngone=not_there:Mine [fast]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("levada_mine", None)


def test_ls_lists_the_policies_of_installed_packages(capsys: pytest.CaptureFixture[str], package: Path) -> None:
    assert main(["policy", "ls", "-o", "name"]) == 0
    assert capsys.readouterr().out.split() == [*NAMES, "ours", "gone"]
    assert main(["policy", "ls"]) == 0
    assert "From package levada_mine 1.2" in capsys.readouterr().out.splitlines()[-1]
    assert main(["policy", "ls", "-o", "json"]) == 0
    ours = json.loads(capsys.readouterr().out)[-2]
    assert (ours["name"], ours["target"], ours["source"]) == ("ours", "levada_mine:Mine", "levada_mine 1.2")
    assert ours["needs"] is None


def test_describe_an_installed_policy_by_its_entry_point_name(
    capsys: pytest.CaptureFixture[str], package: Path
) -> None:
    assert main(["policy", "describe", "ours", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["target"]) == ("ours", "levada_mine:Mine")
    assert shown["source"] == f"levada_mine 1.2 ({package / 'levada_mine.py'})"
    assert main(["policy", "describe", "ourss"]) == 2
    assert capsys.readouterr().err.endswith("did you mean ours?\n")


@pytest.mark.parametrize("wide", [60, 80, 120, 300])
def test_ls_fits_the_terminal_and_truncates_no_summary(
    wide: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(wide))
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["policy", "ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= wide
    header = ["NAME"] if wide == 300 else []
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == [*header, *NAMES]
    assert ("NEEDS" in lines[0]) == (wide == 300)
    text = " ".join(" ".join(lines).split())
    assert [record.name for record in POLICIES if record.summary not in text] == []


def test_needs_in_the_documentation_are_those_of_ls(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "ls", "-o", "json"]) == 0
    listed = {record["name"]: ", ".join(record["needs"]) for record in json.loads(capsys.readouterr().out)}
    page = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if line.startswith("| `")]
    written = {row[1].strip("`"): row[-2].replace("`", "") for row in rows}
    assert {name: needs for name, needs in listed.items() if name in NAMES} == {name: written[name] for name in NAMES}
