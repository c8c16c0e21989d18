"""Alerts use only existing metrics and labels, and have advice."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from levada.cli.main import VERBS
from levada.server.alerts import ALERTS, Alert, rules, unknown_names
from levada.server.metric_defs import FAMILIES
from tests.server.http_server import Served
from tests.server.test_dashboard import metrics_of

SERIES = {series for family in FAMILIES.values() for series in family.series}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_is_complete(alert: Alert) -> None:
    metrics = metrics_of(alert.query)
    assert metrics
    assert metrics <= SERIES
    assert alert.severity in {"critical", "warning", "info"}
    assert re.fullmatch(r"\d+m", alert.lasting)
    assert len(alert.advice) > 60
    grouped = {label.strip() for inside in re.findall(r"by \((.*?)\)", alert.query) for label in inside.split(",")}
    for label in re.findall(r"\$labels\.(\w+)", alert.summary + alert.advice):
        assert label in grouped, "Prometheus would insert an empty text"
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
def test_rules_with_unknown_names_are_rejected(query: str, unknown: list[str]) -> None:
    assert unknown_names(query, FAMILIES.values()) == unknown
    with pytest.raises(ValueError, match="LevadaWrong: there is no metric or label"):
        rules([Alert("LevadaWrong", "info", query, "5m", "", "")])


def test_an_alert_on_a_removed_metric_raises() -> None:
    fewer = [family for family in FAMILIES.values() if family.name != "levada_nodes"]
    with pytest.raises(ValueError, match="LevadaNodeLost: there is no metric or label levada_nodes"):
        rules(families=fewer)


def test_event_types_of_alerts_start_at_zero(up: Served) -> None:
    # `increase()` does not see a series that starts at 1, so its first event would not fire an alert.
    types = {name for alert in ALERTS for name in re.findall(r'levada_events_total{type="(\w+)"}', alert.query)}
    families = text_string_to_metric_families(up.ask("GET", "/metrics").text)
    types = {
        sample.labels["type"] for family in families for sample in family.samples if family.name == "levada_events"
    }
    assert types
    assert types <= types


def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here to check the rules")
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(rules()), encoding="utf-8")
    done = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
