"""Alerting rules for Prometheus: what somebody should know of, and what to do then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from levada.server.families import FAMILIES, Family
from levada.server.promql import unknown_names

Json = dict[str, Any]


class Alert(NamedTuple):
    """One rule. *query* is true when something is wrong, and has been for *lasting* when it is told."""

    name: str
    severity: str  #: critical: nothing works; warning: something is lost while nobody looks; info: good to know
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
        "No Levada server tells its metrics",
        "Running jobs go on, new ones do not start. See whether the server runs (levada doctor) and start it "
        "(levada up, or your service manager); if it does run, see whether Prometheus reaches it and has "
        "the token of a viewer.",
    ),
    Alert(
        "LevadaServerNotReady",
        "critical",
        "sum by (instance) (levada_server_ready) == 0",
        "5m",
        "The server {{ $labels.instance }} cannot act",
        "GET /readyz tells why. Most often it is the database: see that it answers and that its disk has room.",
    ),
    Alert(
        "LevadaDecisionsFail",
        "warning",
        "sum by (instance, policy) (increase(levada_decisions_failed_total[15m])) > 0",
        "10m",
        "Decisions of the policy {{ $labels.policy }} fail",
        "Jobs keep what they have. levada decisions tells which failed and why; until that is mended, "
        "levada policy set NAME lets another policy decide.",
    ),
    Alert(
        "LevadaDecisionsSlow",
        "warning",
        "sum by (instance, policy) (rate(levada_decision_seconds_total[15m]))"
        " / sum by (instance, policy) (rate(levada_decisions_total[15m])) > 30",
        "15m",
        "A decision of the policy {{ $labels.policy }} takes {{ $value | humanizeDuration }}",
        "GPUs stay free while it thinks. Choose a policy that is quicker for so many jobs: levada policy ls names "
        "them, and levada replay tries one on a snapshot.",
    ),
    Alert(
        "LevadaEngineFaults",
        "warning",
        "sum by (instance, event) (increase(levada_engine_faults_total[15m])) > 0",
        "0m",
        "The server {{ $labels.instance }} met an internal error in {{ $labels.event }}",
        "What the event had changed was undone, so jobs may wait for something that has happened. levada doctor shows "
        "the error; report it with the output of levada doctor -o json. Restarting the server (levada down "
        "--leave-jobs, then levada up) tells it again what runs.",
    ),
    Alert(
        "LevadaJobWaitsLong",
        "warning",
        "max by (instance, queue) (levada_queue_waiting_seconds) > 86400",
        "10m",
        "A job in the queue {{ $labels.queue }} has waited for {{ $value | humanizeDuration }}",
        "levada ls --state Pending --queue {{ $labels.queue }} finds it; levada explain JOB tells what it waits for "
        "and what would help.",
    ),
    Alert(
        "LevadaClusterFull",
        "info",
        "sum by (instance) (levada_gpus_used) >= sum by (instance) (levada_gpus)"
        " and on (instance) max by (instance) (levada_queue_waiting_seconds) > 14400",
        "30m",
        "No GPU is free, and jobs have waited for hours",
        "levada top shows who has the GPUs, levada usage who used most. Lend the cluster more nodes "
        "(levada agent --join), or see whether limits of queues would share them better.",
    ),
    Alert(
        "LevadaNodeLost",
        "warning",
        'sum by (instance) (levada_nodes{phase="Lost"}) > 0',
        "5m",
        "{{ $value }} of the nodes of {{ $labels.instance }} cannot be reached",
        "levada nodes names them. See that the machine and its levada agent run and that it reaches the server; "
        "its jobs start again elsewhere from their last checkpoint.",
    ),
    Alert(
        "LevadaJobsStuckOrIdle",
        "warning",
        'sum by (instance) (increase(levada_events_total{type="warning"}[1h])) > 0',
        "0m",
        "A job makes no steps, or its GPUs do nothing",
        "levada events tells which job and what was seen; levada logs JOB may tell why. levada suspend and levada "
        "resume start it again, levada cancel gives its GPUs to others.",
    ),
    Alert(
        "LevadaOperationsFail",
        "warning",
        'sum by (instance) (increase(levada_events_total{type="trouble"}[30m])) > 0',
        "0m",
        "A job could not be started, stopped or resized",
        "levada events tells which job and why. When it is always the same node, levada drain NODE keeps jobs from it.",
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
        "When all were on one node, levada drain NODE keeps jobs from it.",
    ),
    Alert(
        "LevadaAnswersSlow",
        "warning",
        # A simulation may take its time.
        "histogram_quantile(0.99, sum by (instance, le)"
        ' (rate(levada_http_request_seconds_bucket{route!~"/api/v1/sim/.*|/allocation"}[10m]))) > 1',
        "15m",
        "One answer in a hundred of {{ $labels.instance }} takes more than {{ $value | humanizeDuration }}",
        "See whether the machine or the database is busy, and on the dashboard which route is slow; "
        "who asks often should watch (/api/v1/watch) instead.",
    ),
    Alert(
        "LevadaAnswersFail",
        "warning",
        'sum by (instance) (rate(levada_http_requests_total{status=~"5.."}[10m]))'
        " / sum by (instance) (rate(levada_http_requests_total[10m])) > 0.05",
        "10m",
        "{{ $value | humanizePercentage }} of the answers of {{ $labels.instance }} are errors of the server",
        "The server's log tells what went wrong; GET /readyz tells whether it can act.",
    ),
)


def rules(alerts: Iterable[Alert] = ALERTS, families: Iterable[Family] = FAMILIES.values()) -> Json:
    """The rules as Prometheus reads them; ValueError for an alert on what no metric tells."""
    known = tuple(families)
    made = []
    for alert in alerts:
        if unknown := unknown_names(alert.query, known):
            raise ValueError(f"alert {alert.name}: there is no metric or label {', '.join(unknown)}")
        made.append(
            {
                "alert": alert.name,
                "expr": alert.query,
                "for": alert.lasting,
                "labels": {"severity": alert.severity},
                "annotations": {"summary": alert.summary, "description": alert.advice},
            }
        )
    return {"groups": [{"name": "levada", "rules": made}]}
