"""Every metric there is, each declared once: what `/metrics` tells, dashboards and alerts are all made from here.

This module imports nothing heavy, so that `levada metrics` needs neither a server nor its libraries.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
#: Training takes from a minute to weeks.
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
#: Waiting should not.
_WAIT = (1.0, 5.0, 15.0, *_LONG)
#: Answers come in milliseconds, or something is wrong.
_ANSWER = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


class Kind(StrEnum):
    """How a metric behaves."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Family(NamedTuple):
    """A metric with all its labels, named as Prometheus names it."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """The names that a query may use."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.name}_{end}" for end in ("bucket", "count", "sum"))
        return (self.name,)


#: All of them by name, in the order of this file.
FAMILIES: dict[str, Family] = {}


def _gauge(name: str, text: str, *labels: str) -> Family:
    return _declared(Family(name, Kind.GAUGE, text, labels))


def _counter(name: str, text: str, *labels: str) -> Family:
    return _declared(Family(name, Kind.COUNTER, text, labels))


def _histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...]) -> Family:
    return _declared(Family(name, Kind.HISTOGRAM, text, labels, buckets))


def _declared(family: Family) -> Family:
    if family.name in FAMILIES:
        raise ValueError(f"{family.name} is declared twice")
    return FAMILIES.setdefault(family.name, family)


# Labels are few and short: a job's id stands only in `levada_job_info`.
SERVER_INFO = _gauge("levada_server_info", "This server.", "version", "policy")
SERVER_READY = _gauge("levada_server_ready", "1 when the server can act.")

JOBS = _gauge("levada_jobs", "Jobs that are not over.", "phase", "queue")
JOB_GPUS = _gauge("levada_job_gpus", "GPUs that jobs have, by queue.", "gpu_type", "queue")
JOBS_FINISHED = _counter("levada_jobs_finished_total", "Jobs that ended.", "phase", "queue")
JOB_GPU_SECONDS = _counter("levada_job_gpu_seconds_total", "GPU seconds of jobs that ended.", "queue")
JOB_COMPLETION = _histogram(
    "levada_job_completion_seconds", "From submission to success, without suspension.", "queue", buckets=_LONG
)
JOB_WAITING = _histogram("levada_job_waiting_seconds", "How long jobs that ended had waited.", "queue", buckets=_WAIT)
JOB_INFO = _gauge("levada_job_info", "Each job that is not over.", "job", "workload", "user", "queue", "phase")

QUEUE_WAITING = _gauge("levada_queue_waiting_seconds", "How long the job that waits longest has waited.", "queue")

GPUS = _gauge("levada_gpus", "GPUs of all nodes.", "gpu_type")
GPUS_USED = _gauge("levada_gpus_used", "GPUs that jobs have.", "gpu_type")
NODES = _gauge("levada_nodes", "Nodes, by phase.", "phase")

DECISIONS = _counter("levada_decisions_total", "Decisions.", "policy")
DECISIONS_FAILED = _counter("levada_decisions_failed_total", "Decisions that were not carried out.", "policy")
DECISION_SECONDS = _counter("levada_decision_seconds_total", "Time that decisions took.", "policy")

ENGINE_FAULTS = _counter(
    "levada_engine_faults_total", "Internal errors of the engine that were undone, by kind of event.", "event"
)

EVENTS = _counter("levada_events_total", "Events, by type.", "type")

HTTP_REQUESTS = _counter("levada_http_requests_total", "Requests answered.", "method", "route", "status")
HTTP_SECONDS = _histogram(
    "levada_http_request_seconds", "Time to answer a request.", "method", "route", buckets=_ANSWER
)
