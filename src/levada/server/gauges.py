"""What is, as metrics: the server and its decisions, jobs that are not over, nodes."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from levada import __version__
from levada.core.commands import FAULT_KINDS
from levada.server.families import (
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
from levada.server.instruments import gauge, tally
from levada.server.ports import Json


def of_server(policy: str, is_ready: bool) -> Iterator[Metric]:
    """The server itself."""
    server = gauge(SERVER_INFO)
    server.add_metric([__version__, policy], 1)
    yield server
    ready = gauge(SERVER_READY)
    ready.add_metric([], int(is_ready))
    yield ready


def of_decisions(tallied: list[Json]) -> Iterator[Metric]:
    """What policies did."""
    made = tally(DECISIONS)
    failed = tally(DECISIONS_FAILED)
    seconds = tally(DECISION_SECONDS)
    for each in tallied:
        made.add_metric([each["policy"]], each["made"])
        failed.add_metric([each["policy"]], each["failed"])
        seconds.add_metric([each["policy"]], each["seconds"])
    yield from (made, failed, seconds)


def of_faults(counts: Mapping[str, int]) -> Iterator[Metric]:
    """Faults of the engine. All kinds are there from the start, as 0: what begins with 1 has never risen."""
    faults = tally(ENGINE_FAULTS)
    for kind in sorted({*FAULT_KINDS, *counts}):
        faults.add_metric([kind], counts.get(kind, 0))
    yield faults


class OfJobs:
    """Jobs that are not over, and the GPUs they have; *named* tells of each of them, too."""

    def __init__(self, *, named: bool) -> None:
        self._info = gauge(JOB_INFO) if named else None
        self._count: Tally[tuple[str, str]] = Tally()
        self._gpus: Tally[tuple[str, str]] = Tally()
        self._waiting: Tally[str] = Tally()

    def add(self, jobs: list[Json]) -> None:
        """Some more of them."""
        for job in jobs:
            queue = job["queue"]
            if self._info is not None:
                self._info.add_metric([job["id"], job["workload"], job["user"], queue, job["phase"]], 1)
            self._count[job["phase"], queue] += 1
            self._gpus[job["gpu_type"] or "", queue] += job["gpus"]
            if job["phase"] == "Pending":
                self._waiting[queue] = max(self._waiting[queue], job["waiting_s"])

    def metrics(self) -> Iterator[Metric]:
        """All of them."""
        if self._info is not None:
            yield self._info
        by_phase = gauge(JOBS)
        for (phase, queue), number in sorted(self._count.items()):
            by_phase.add_metric([phase, queue], number)
        yield by_phase
        held = gauge(JOB_GPUS)
        for (gpu_type, queue), number in sorted(self._gpus.items()):
            if gpu_type:
                held.add_metric([gpu_type, queue], number)
        yield held
        longest = gauge(QUEUE_WAITING)
        for queue, seconds in sorted(self._waiting.items()):
            longest.add_metric([queue], seconds)
        yield longest


def of_nodes(nodes: list[Json]) -> Iterator[Metric]:
    """Nodes and their GPUs."""
    there: Tally[str] = Tally()
    used: Tally[str] = Tally()
    for node in nodes:
        for gpu_type, amount in node["gpus"].items():
            there[gpu_type] += amount["total"]
            used[gpu_type] += amount["used"]
    total = gauge(GPUS)
    busy = gauge(GPUS_USED)
    for gpu_type in sorted(there):
        total.add_metric([gpu_type], there[gpu_type])
        busy.add_metric([gpu_type], used[gpu_type])
    yield total
    yield busy
    count = gauge(NODES)
    for phase, number in sorted(Tally(node["phase"] for node in nodes).items()):
        count.add_metric([phase], number)
    yield count
