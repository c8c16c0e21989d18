"""Definitions of all metrics, for `/metrics`, the dashboard and the alerts.

This module imports only the standard library: `levada metrics` works without the packages of the server.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
#: Buckets for the duration of training: a minute to weeks.
_LONG = (
    _MINUTE,
    5 * _MINUTE,
    15 * _MINUTE,
    _HOUR,
    3 * _HOUR,
    6 * _HOUR,
    12 * _HOUR,
    _DAY,
    3 * _DAY,
    7 * _DAY,
    28 * _DAY,
)
#: Buckets for waiting times.
_WAIT = (1.0, 5.0, 15.0, *_LONG)
#: Buckets for request times.
_ANSWER = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


class MetricKind(StrEnum):
    """Type of a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Family(NamedTuple):
    """A metric with its labels; the name is that of Prometheus."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """Return the names that queries can use."""
        if self.kind is MetricKind.HISTOGRAM:
            return tuple(f"{self.name}_{end}" for end in ("bucket", "count", "sum"))
        return (self.name,)


#: All metrics by name, in the order of this file.
FAMILIES: dict[str, Family] = {}


def _gauge(name: str, text: str, *labels: str) -> Family:
    return _declare(Family(name, MetricKind.GAUGE, text, labels))


def _counter(name: str, text: str, *labels: str) -> Family:
    return _declare(Family(name, MetricKind.COUNTER, text, labels))


def _histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...]) -> Family:
    return _declare(Family(name, MetricKind.HISTOGRAM, text, labels, buckets))


def _declare(family: Family) -> Family:
    if family.name in FAMILIES:
        raise ValueError(f"{family.name} is declared twice")
    return FAMILIES.setdefault(family.name, family)


# Labels have few values; only `levada_job_info` has job ids.
SERVER_INFO = _gauge("levada_server_info", "This server.", "version", "policy")
SERVER_READY = _gauge("levada_server_ready", "1 if the server is ready, else 0.")

JOBS = _gauge("levada_jobs", "Active jobs.", "phase", "queue")
JOB_GPUS = _gauge("levada_job_gpus", "GPUs used by jobs, by queue.", "gpu_type", "queue")
JOBS_FINISHED = _counter("levada_jobs_finished_total", "Jobs that have ended.", "phase", "queue")
JOB_GPU_SECONDS = _counter("levada_job_gpu_seconds_total", "GPU seconds of jobs that have ended.", "queue")
JOB_COMPLETION = _histogram(
    "levada_job_completion_seconds", "Time from submission to success, without suspension.", "queue", buckets=_LONG
)
JOB_WAITING = _histogram("levada_job_waiting_seconds", "Waiting time of jobs that have ended.", "queue", buckets=_WAIT)
JOB_INFO = _gauge("levada_job_info", "One series per active job.", "job", "workload", "user", "queue", "phase")

QUEUE_WAITING = _gauge("levada_queue_waiting_seconds", "Longest current waiting time of a pending job.", "queue")

GPUS = _gauge("levada_gpus", "GPUs of all nodes.", "gpu_type")
GPUS_USED = _gauge("levada_gpus_used", "GPUs used by jobs.", "gpu_type")
NODES = _gauge("levada_nodes", "Nodes, by phase.", "phase")

DECISIONS = _counter("levada_decisions_total", "Decisions.", "policy")
DECISIONS_FAILED = _counter("levada_decisions_failed_total", "Decisions that failed or were rejected.", "policy")
DECISION_SECONDS = _counter("levada_decision_seconds_total", "Time spent on decisions.", "policy")

ENGINE_FAULTS = _counter(
    "levada_engine_faults_total", "Internal errors of the engine that were rolled back, by kind of event.", "event"
)

EVENTS = _counter("levada_events_total", "Events, by type.", "type")

HTTP_REQUESTS = _counter("levada_http_requests_total", "Requests answered.", "method", "route", "status")
HTTP_SECONDS = _histogram(
    "levada_http_request_seconds", "Time to answer a request.", "method", "route", buckets=_ANSWER
)
