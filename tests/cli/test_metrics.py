"""`levada metrics` prints the list, the dashboard and the alerts, without a server."""

import json
import re
from pathlib import Path

import pytest
import yaml

from levada.cli.main import main
from levada.server.alerts import rules
from levada.server.dashboard import dashboard
from levada.server.metric_defs import FAMILIES


def test_ls(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "TYPE", "LABELS", "HELP"]
    assert [line.split()[0] for line in lines[1:]] == list(FAMILIES)
    assert main(["metrics", "ls", "-o", "json"]) == 0
    by_name = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert by_name["levada_jobs_finished_total"] == {
        "name": "levada_jobs_finished_total",
        "type": "counter",
        "labels": ["phase", "queue"],
        "help": "Jobs that have ended.",
    }
    assert by_name["levada_job_waiting_seconds"]["type"] == "histogram"


def test_dashboard(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["metrics", "dashboard"]) == 0
    assert json.loads(capsys.readouterr().out) == dashboard()
    file = tmp_path / "levada.json"
    assert main(["metrics", "dashboard", "--out", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    assert json.loads(file.read_text(encoding="utf-8")) == dashboard()


def test_alerts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["metrics", "alerts"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == rules()
    file = tmp_path / "alerts.yaml"
    assert main(["metrics", "alerts", "--out", str(file)]) == 0
    assert yaml.safe_load(file.read_text(encoding="utf-8")) == rules()


def test_a_file_that_cannot_be_written_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["metrics", "alerts", "--out", str(tmp_path / "no" / "file")]) == 1
    assert capsys.readouterr().err == f"levada: cannot write {tmp_path}/no/file: No such file or directory\n"


def test_the_docs_list_every_metric_with_its_labels() -> None:
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    told = {}
    for names, labels in re.findall(r"^\| (`levada_[^|]*) \| ([^|]*) \|$", text, re.MULTILINE):
        told |= {name: tuple(re.findall(r"`(\w+)`", labels)) for name in re.findall(r"`(\w+)`", names)}
    assert told == {family.name: family.labels for family in FAMILIES.values()}
