"""Alerting rules for Prometheus, each with advice for the operator."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from levada.server.metric_defs import FAMILIES, Family

Json = dict[str, Any]

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_WINDOW = re.compile(r"\[[^\]]*\]")
_SELECTOR = re.compile(r"(\w+)\s*\{([^}]*)\}")
_LABELS = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_WORD = re.compile(r"\b[a-zA-Z_:]\w*\b(?!\s*\()")
_OPERATORS = frozenset({"and", "or", "unless", "bool", "offset"})
#: Labels of every series: Prometheus adds the first, the second distinguishes the buckets of a histogram.
_COMMON_LABELS = frozenset({"instance", "le"})


class Alert(NamedTuple):
    """One rule: fires when *query* has been true for the time *lasting*."""

    name: str
    severity: str  #: critical: nothing works; warning: jobs or GPU time are at risk; info: useful to know
    query: str
    lasting: str
    summary: str
    advice: str


ALERTS = (
    Alert(
        "LevadaServerGone",
        "critical",
        "absent(levada_server_ready)",
        "5m",
        "No Levada server exports metrics",
        "Running jobs continue, new jobs do not start. Check the server (levada doctor) and start it (levada up, or "
        "your service manager). If it is running, check that Prometheus reaches it and has a viewer's token.",
    ),
    Alert(
        "LevadaServerNotReady",
        "critical",
        "sum by (instance) (levada_server_ready) == 0",
        "5m",
        "The server {{ $labels.instance }} cannot act",
        "GET /readyz returns the reason. Often it is the database: check that it answers and that its disk has space.",
    ),
    Alert(
        "LevadaDecisionsFail",
        "warning",
        "sum by (instance, policy) (increase(levada_decisions_failed_total[15m])) > 0",
        "10m",
        "Decisions of the policy {{ $labels.policy }} fail",
        "Jobs keep their GPUs. levada decisions ls lists the failed decisions and their errors. Until the cause is "
        "fixed, switch to another policy: levada policy set NAME.",
    ),
    Alert(
        "LevadaDecisionsSlow",
        "warning",
        "sum by (instance, policy) (rate(levada_decision_seconds_total[15m]))"
        " / sum by (instance, policy) (rate(levada_decisions_total[15m])) > 30",
        "15m",
        "A decision of the policy {{ $labels.policy }} takes {{ $value | humanizeDuration }}",
        "GPUs stay idle while it decides. Choose a policy that is faster with this number of jobs: levada policy ls "
        "lists them, and levada replay tries one on a snapshot.",
    ),
    Alert(
        "LevadaEngineFaults",
        "warning",
        "sum by (instance, event) (increase(levada_engine_faults_total[15m])) > 0",
        "0m",
        "Internal error of the server {{ $labels.instance }} in {{ $labels.event }}",
        "The event was rolled back, so jobs may wait for a change that has already happened. levada doctor shows the "
        "error; report it with the output of levada doctor -o json. A restart of the server (levada down "
        "--leave-jobs, then levada up) rebuilds its state from the running workers.",
    ),
    Alert(
        "LevadaJobWaitsLong",
        "warning",
        "max by (instance, queue) (levada_queue_waiting_seconds) > 86400",
        "10m",
        "A job in the queue {{ $labels.queue }} has waited for {{ $value | humanizeDuration }}",
        "levada ls --state Pending --queue {{ $labels.queue }} lists it; levada explain JOB shows what it waits for "
        "and what would help.",
    ),
    Alert(
        "LevadaClusterFull",
        "info",
        "sum by (instance) (levada_gpus_used) >= sum by (instance) (levada_gpus)"
        " and on (instance) max by (instance) (levada_queue_waiting_seconds) > 14400",
        "30m",
        "All GPUs are in use, and a job has waited for more than 4 hours",
        "levada top shows who uses the GPUs, levada usage who used most. Add nodes (levada agent --join), or adjust "
        "the limits of queues.",
    ),
    Alert(
        "LevadaNodeLost",
        "warning",
        'sum by (instance) (levada_nodes{phase="Lost"}) > 0',
        "5m",
        "{{ $value }} of the nodes of {{ $labels.instance }} cannot be reached",
        "levada nodes lists them. Check that the machine and its levada agent run and can reach the server. Its jobs "
        "restart on other nodes from their last checkpoint.",
    ),
    Alert(
        "LevadaJobsStuckOrIdle",
        "warning",
        'sum by (instance) (increase(levada_events_total{type="warning"}[1h])) > 0',
        "0m",
        "A job makes no progress, or its GPUs are idle",
        "levada events shows the job and the observation; levada logs JOB may show the cause. levada suspend and "
        "levada resume restart it, levada cancel releases its GPUs.",
    ),
    Alert(
        "LevadaOperationsFail",
        "warning",
        'sum by (instance) (increase(levada_events_total{type="trouble"}[30m])) > 0',
        "0m",
        "A job could not be started, stopped or resized",
        "levada events shows the job and the error. If it is always the same node, drain it: levada drain NODE.",
    ),
    Alert(
        "LevadaJobsFail",
        "warning",
        'sum by (instance, queue) (increase(levada_jobs_finished_total{phase="Failed"}[1h])) > 5'
        " and sum by (instance, queue) (increase(levada_jobs_finished_total[1h]))"
        ' < 2 * sum by (instance, queue) (increase(levada_jobs_finished_total{phase="Failed"}[1h]))',
        "5m",
        "Most jobs of the queue {{ $labels.queue }} fail",
        "levada ls --state Failed --queue {{ $labels.queue }} lists them, levada describe JOB shows how one ended. "
        "If all were on one node, drain it: levada drain NODE.",
    ),
    Alert(
        "LevadaAnswersSlow",
        "warning",
        # Simulations may take seconds.
        "histogram_quantile(0.99, sum by (instance, le)"
        ' (rate(levada_http_request_seconds_bucket{route!~"/api/v1/sim/.*|/allocation"}[10m]))) > 1',
        "15m",
        "1% of the requests to {{ $labels.instance }} take more than {{ $value | humanizeDuration }}",
        "Check the load of the machine and of the database, and the slow route on the dashboard. Clients that poll "
        "should watch (/api/v1/watch) instead.",
    ),
    Alert(
        "LevadaAnswersFail",
        "warning",
        'sum by (instance) (rate(levada_http_requests_total{status=~"5.."}[10m]))'
        " / sum by (instance) (rate(levada_http_requests_total[10m])) > 0.05",
        "10m",
        "{{ $value | humanizePercentage }} of the requests to {{ $labels.instance }} fail with a server error",
        "The server's log has the errors; GET /readyz returns whether it is ready.",
    ),
)


def rules(alerts: Iterable[Alert] = ALERTS, families: Iterable[Family] = FAMILIES.values()) -> Json:
    """Return the rules as Prometheus reads them; ValueError for an alert on an unknown metric or label."""
    known = tuple(families)
    result = []
    for alert in alerts:
        if unknown := unknown_names(alert.query, known):
            raise ValueError(f"alert {alert.name}: there is no metric or label {', '.join(unknown)}")
        result.append(
            {
                "alert": alert.name,
                "expr": alert.query,
                "for": alert.lasting,
                "labels": {"severity": alert.severity},
                "annotations": {"summary": alert.summary, "description": alert.advice},
            }
        )
    return {"groups": [{"name": "levada", "rules": result}]}


def unknown_names(query: str, families: Iterable[Family]) -> list[str]:
    """Return metrics and labels of *query* that none of *families* has; understands the PromQL used here."""
    labels_of = {series: {*family.labels, *_COMMON_LABELS} for family in families for series in family.series}
    bare = _WINDOW.sub("", _STRING.sub("", query))
    unknown = []
    for metric, matchers in _SELECTOR.findall(bare):
        labels = [matcher.rstrip("=!~ ").strip() for matcher in matchers.split(",") if matcher.strip()]
        unknown += [f"{metric}{{{label}}}" for label in labels if label not in labels_of.get(metric, labels)]
    plain = _LABELS.sub("", _SELECTOR.sub(r"\1", bare))
    metrics = [word for word in _WORD.findall(plain) if word not in _OPERATORS]
    unknown += [metric for metric in metrics if metric not in labels_of]
    shared = set().union(*(labels_of.get(metric, set()) for metric in metrics))
    grouped = [label.strip() for labels in _LABELS.findall(bare) for label in labels.split(",") if label.strip()]
    return unknown + [label for label in grouped if label not in shared]
