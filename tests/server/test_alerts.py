"""Alerts name only what the server tells, and say what to do."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from levada.cli.main import VERBS
from levada.server.alerts import ALERTS, Alert, rules
from levada.server.families import FAMILIES
from levada.server.promql import unknown_names
from tests.server.serving import Served
from tests.server.test_dashboard import asked_for

SERIES = {series for family in FAMILIES.values() for series in family.series}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_is_complete(alert: Alert) -> None:
    named = asked_for(alert.query)
    assert named
    assert named <= SERIES
    assert alert.severity in {"critical", "warning", "info"}
    assert re.fullmatch(r"\d+m", alert.lasting)
    assert len(alert.advice) > 60
    grouped = {label.strip() for inside in re.findall(r"by \((.*?)\)", alert.query) for label in inside.split(",")}
    for label in re.findall(r"\$labels\.(\w+)", alert.summary + alert.advice):
        assert label in grouped, "Prometheus would leave a hole in the text"
    verbs = {verb for verbs in VERBS.values() for verb in verbs}
    for verb in re.findall(r"\blevada ([a-z]+)", alert.advice):
        assert verb in verbs


def test_names_are_unique() -> None:
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)


@pytest.mark.parametrize(
    ("query", "unknown"),
    [
        ("levada_jbos > 0", ["levada_jbos"]),
        ("absent(levada_jobs_total)", ["levada_jobs_total"]),
        ("leveda_jobs", ["leveda_jobs"]),
        ('levada_jobs{gpu_type="a100"} > 0', ["levada_jobs{gpu_type}"]),
        ('levada_jobs{phase="a,b", quue=~"x"}', ["levada_jobs{quue}"]),
        ("sum by (policy) (levada_jobs)", ["policy"]),
        ("rate(levada_http_request_seconds[5m])", ["levada_http_request_seconds"]),
        ("levada_gpus and on (gpu_typ) levada_gpus_used", ["gpu_typ"]),
        ("levada_gpus offset 1h > 1e3 or up == 0", ["up"]),
    ],
)
def test_no_rules_are_made_with_a_name_that_does_not_exist(query: str, unknown: list[str]) -> None:
    assert unknown_names(query, FAMILIES.values()) == unknown
    with pytest.raises(ValueError, match="LevadaWrong: there is no metric or label"):
        rules([Alert("LevadaWrong", "info", query, "5m", "", "")])


def test_a_metric_that_goes_takes_its_alerts_along_loudly() -> None:
    fewer = [family for family in FAMILIES.values() if family.name != "levada_nodes"]
    with pytest.raises(ValueError, match="LevadaNodeLost: there is no metric or label levada_nodes"):
        rules(families=fewer)


def test_events_that_alerts_count_are_there_before_the_first(up: Served) -> None:
    # A series that begins with 1 has never risen, and its first event would raise no alert.
    types = {name for alert in ALERTS for name in re.findall(r'levada_events_total{type="(\w+)"}', alert.query)}
    found = text_string_to_metric_families(up.ask("GET", "/metrics").text)
    there = {sample.labels["type"] for family in found for sample in family.samples if family.name == "levada_events"}
    assert types
    assert types <= there


def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here to check the rules")
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(rules()), encoding="utf-8")
    done = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
