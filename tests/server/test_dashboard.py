"""The Grafana dashboard shows every metric of the server in a valid format."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import promql_parser
import pytest
from prometheus_client.parser import text_string_to_metric_families

from levada.server.alerts import unknown_names
from levada.server.dashboard import dashboard, row_of, unit
from levada.server.metric_defs import FAMILIES, Family, MetricKind
from tests.server.http_server import Served, document

NEW = Family("levada_lease_renewals_total", MetricKind.COUNTER, "Renewals of the lease.", ("store",))


def scraped(up: Served) -> dict[str, Any]:
    """Return the metric families of a scrape by the names of metric_defs.py."""
    families = text_string_to_metric_families(up.ask("GET", "/metrics").text)
    return {f"{family.name}_total" if family.type == "counter" else family.name: family for family in families}


def panels(*more: Family) -> list[dict[str, Any]]:
    return dashboard([*FAMILIES.values(), *more])["panels"]


def queries(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel.get("targets", [])]


def metrics_of(query: str) -> set[str]:
    """Return the metrics of a query according to an independent parser."""
    plain = query.replace("$__rate_interval", "5m").replace("$instance", ".*")
    metrics: set[str] = set()

    def note(expr: Any) -> None:
        if isinstance(expr, promql_parser.MatrixSelector):
            expr = expr.vector_selector
        if isinstance(expr, promql_parser.VectorSelector) and expr.name:
            metrics.add(expr.name)

    promql_parser.walk(promql_parser.parse(plain), note)
    return metrics


def test_families_are_those_of_a_real_scrape(up: Served) -> None:
    up.ask("POST", "/api/v1/jobs", document("a"))
    families = scraped(up)
    assert set(families) == set(FAMILIES)
    for name, family in families.items():
        assert (family.type, family.documentation) == (FAMILIES[name].kind, FAMILIES[name].help)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(FAMILIES[name].labels)
            assert sample.name in FAMILIES[name].series


def test_every_family_of_a_real_scrape_is_on_a_panel(up: Served) -> None:
    shown = {name for panel in panels() for query in queries(panel) for name in metrics_of(query)}
    missing = [name for name in scraped(up) if not shown & {name, f"{name}_bucket"}]
    assert missing == []


def test_a_new_metric_gets_its_own_row() -> None:
    result = panels(NEW)
    row = next(index for index, panel in enumerate(result) if panel["title"] == "Leases")
    assert result[row]["type"] == "row"
    assert result[row + 1]["title"] == "Renewals of the lease, per second"
    assert queries(result[row + 1]) == [
        'sum by (store) (rate(levada_lease_renewals_total{instance=~"$instance"}[$__rate_interval]))'
    ]


def test_rows_are_in_order_with_their_panels() -> None:
    rows = [panel["title"] for panel in panels() if panel["type"] == "row"]
    assert rows == ["Server", "Jobs", "Queues", "GPUs and nodes", "Decisions", "Events", "HTTP"]
    by_help = {family.help: family for family in FAMILIES.values()}
    row = ""
    for panel in panels():
        if panel["type"] == "row":
            row = panel["title"]
        else:
            assert row_of(by_help[panel["description"].split(" (")[0]]) == row


def test_every_query_is_promql_with_names_that_exist() -> None:
    for panel in panels():
        for query in queries(panel):
            assert metrics_of(query)
            assert unknown_names(query, FAMILIES.values()) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("levada_jobs", ['sum by (phase, queue) (levada_jobs{instance=~"$instance"})']),
        ("levada_server_ready", ['sum by (instance) (levada_server_ready{instance=~"$instance"})']),
        (
            "levada_http_request_seconds",
            [
                f"histogram_quantile({q}, sum by (le, method, route) "
                '(rate(levada_http_request_seconds_bucket{instance=~"$instance"}[$__rate_interval])))'
                for q in (0.5, 0.9, 0.99)
            ],
        ),
    ],
)
def test_queries_by_kind(name: str, expected: list[str]) -> None:
    text = FAMILIES[name].help
    assert [queries(panel) for panel in panels() if panel.get("description", "").startswith(text)] == [expected]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("levada_queue_waiting_seconds", "s"),
        ("levada_job_completion_seconds", "s"),
        ("levada_http_requests_total", "reqps"),
        ("levada_decisions_total", "cps"),
        ("levada_gpus", "short"),
    ],
)
def test_units_come_from_the_name(name: str, expected: str) -> None:
    assert unit(FAMILIES[name]) == expected


def test_grafana_can_import_it() -> None:
    result = json.loads(json.dumps(dashboard(), allow_nan=False))
    assert result["title"]
    assert result["uid"]
    assert result["schemaVersion"] >= 39
    assert "id" not in result, "Grafana assigns the id"
    source = result["templating"]["list"][0]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert result["templating"]["list"][1]["definition"] == "label_values(levada_server_info, instance)"
    for panel in result["panels"]:
        assert panel["title"]
        if panel["type"] == "row":
            continue
        assert panel["description"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert {source["datasource"]["uid"] for source in [panel, *panel["targets"]]} == {"${datasource}"}
    for used in re.findall(r"\$\{?(\w+)", json.dumps(result)):
        assert used in {"datasource", "instance", "__rate_interval", "__all"}


def test_ids_and_titles_are_unique() -> None:
    result = panels(NEW)
    assert len({panel["id"] for panel in result}) == len(result)
    titles = [panel["title"] for panel in result if panel["type"] != "row"]
    assert sorted(set(titles)) == sorted(titles)


def test_panels_do_not_overlap_and_fit_the_grid() -> None:
    places = [panel["gridPos"] for panel in panels(NEW)]
    for a in places:
        assert a["x"] >= 0
        assert a["x"] + a["w"] <= 24
    for a, b in combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or above
