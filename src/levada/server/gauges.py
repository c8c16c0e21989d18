"""What is, as metrics: the server and its decisions, jobs that are not over, nodes."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator

from prometheus_client.core import Metric

from levada import __version__
from levada.server.families import (
    DECISION_SECONDS,
    DECISIONS,
    DECISIONS_FAILED,
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


def of_jobs(jobs: list[Json]) -> Iterator[Metric]:
    """Jobs that are not over, and the GPUs they have."""
    info = gauge(JOB_INFO)
    count: Tally[tuple[str, str]] = Tally()
    gpus: Tally[tuple[str, str]] = Tally()
    waiting: Tally[str] = Tally()
    for job in jobs:
        info.add_metric([job["id"], job["workload"], job["user"], job["queue"], job["phase"]], 1)
        count[job["phase"], job["queue"]] += 1
        gpus[job["gpu_type"] or "", job["queue"]] += job["gpus"]
        if job["phase"] == "Pending":
            waiting[job["queue"]] = max(waiting[job["queue"]], job["waiting_s"])
    yield info
    by_phase = gauge(JOBS)
    for (phase, queue), number in sorted(count.items()):
        by_phase.add_metric([phase, queue], number)
    yield by_phase
    held = gauge(JOB_GPUS)
    for (gpu_type, queue), number in sorted(gpus.items()):
        if gpu_type:
            held.add_metric([gpu_type, queue], number)
    yield held
    longest = gauge(QUEUE_WAITING)
    for queue, seconds in sorted(waiting.items()):
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
