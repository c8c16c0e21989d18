"""Metrics of the current state: server, decisions, active jobs, nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from levada import __version__
from levada.api.types import DecisionCountView, JobView, NodeView
from levada.core.commands import FAULT_KINDS
from levada.server.instruments import gauge, tally
from levada.server.metric_defs import (
    DECISION_SECONDS,
    DECISIONS,
    DECISIONS_FAILED,
    ENGINE_FAULTS,
    GPUS,
    GPUS_USED,
    JOB_GPUS,
    JOB_INFO,
    JOBS,
    NODES,
    QUEUE_WAITING,
    SERVER_INFO,
    SERVER_READY,
)


def server_metrics(policy: str, is_ready: bool) -> Iterator[Metric]:
    """Yield metrics of the server itself."""
    server = gauge(SERVER_INFO)
    server.add_metric([__version__, policy], 1)
    yield server
    ready = gauge(SERVER_READY)
    ready.add_metric([], int(is_ready))
    yield ready


def decision_metrics(counts: list[DecisionCountView]) -> Iterator[Metric]:
    """Yield metrics of decisions by policy."""
    made = tally(DECISIONS)
    failed = tally(DECISIONS_FAILED)
    seconds = tally(DECISION_SECONDS)
    for count in counts:
        made.add_metric([count["policy"]], count["made"])
        failed.add_metric([count["policy"]], count["failed"])
        seconds.add_metric([count["policy"]], count["seconds"])
    yield from (made, failed, seconds)


def fault_metrics(counts: Mapping[str, int]) -> Iterator[Metric]:
    """Yield engine faults by kind. All kinds start at 0: `increase()` does not see a series that starts at 1."""
    faults = tally(ENGINE_FAULTS)
    for kind in sorted({*FAULT_KINDS, *counts}):
        faults.add_metric([kind], counts.get(kind, 0))
    yield faults


class JobMetrics:
    """Metrics of active jobs and their GPUs; *named* adds one series per job."""

    def __init__(self, *, named: bool) -> None:
        self._info = gauge(JOB_INFO) if named else None
        self._count: Counter[tuple[str, str]] = Counter()
        self._gpus: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._waiting: defaultdict[str, float] = defaultdict(float)

    def add(self, jobs: list[JobView]) -> None:
        """Add jobs."""
        for job in jobs:
            queue = job["queue"]
            if self._info is not None:
                self._info.add_metric([job["id"], job["workload"], job["user"], queue, job["phase"]], 1)
            self._count[job["phase"], queue] += 1
            self._gpus[job["gpu_type"] or "", queue] += job["gpus"]
            if job["phase"] == "Pending":
                self._waiting[queue] = max(self._waiting[queue], job["waiting_s"])

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics of all added jobs."""
        if self._info is not None:
            yield self._info
        by_phase = gauge(JOBS)
        for (phase, queue), number in sorted(self._count.items()):
            by_phase.add_metric([phase, queue], number)
        yield by_phase
        held = gauge(JOB_GPUS)
        for (gpu_type, queue), gpus in sorted(self._gpus.items()):
            if gpu_type:
                held.add_metric([gpu_type, queue], gpus)
        yield held
        longest = gauge(QUEUE_WAITING)
        for queue, seconds in sorted(self._waiting.items()):
            longest.add_metric([queue], seconds)
        yield longest


def node_metrics(nodes: list[NodeView]) -> Iterator[Metric]:
    """Yield metrics of nodes and their GPUs."""
    total: defaultdict[str, float] = defaultdict(float)
    used: defaultdict[str, float] = defaultdict(float)
    for node in nodes:
        for gpu_type, gpus in node["gpus"].items():
            total[gpu_type] += gpus["total"]
            used[gpu_type] += gpus["used"]
    all_gpus = gauge(GPUS)
    used_gpus = gauge(GPUS_USED)
    for gpu_type in sorted(total):
        all_gpus.add_metric([gpu_type], total[gpu_type])
        used_gpus.add_metric([gpu_type], used[gpu_type])
    yield all_gpus
    yield used_gpus
    by_phase = gauge(NODES)
    for phase, number in sorted(Counter(node["phase"] for node in nodes).items()):
        by_phase.add_metric([phase], number)
    yield by_phase
