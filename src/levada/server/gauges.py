"""What is, as metrics: the server and its decisions, jobs that are not over, nodes."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from levada import __version__
from levada.server.ports import Json


def of_server(policy: str, is_ready: bool) -> Iterator[Metric]:
    """The server itself."""
    server = GaugeMetricFamily("levada_server_info", "This server.", labels=["version", "policy"])
    server.add_metric([__version__, policy], 1)
    yield server
    ready = GaugeMetricFamily("levada_server_ready", "1 when the server can act.")
    ready.add_metric([], int(is_ready))
    yield ready


def of_decisions(tally: list[Json]) -> Iterator[Metric]:
    """What policies did."""
    made = CounterMetricFamily("levada_decisions", "Decisions.", labels=["policy"])
    failed = CounterMetricFamily("levada_decisions_failed", "Decisions that were not carried out.", labels=["policy"])
    seconds = CounterMetricFamily("levada_decision_seconds", "Time that decisions took.", labels=["policy"])
    for each in tally:
        made.add_metric([each["policy"]], each["made"])
        failed.add_metric([each["policy"]], each["failed"])
        seconds.add_metric([each["policy"]], each["seconds"])
    yield from (made, failed, seconds)


def of_jobs(jobs: list[Json]) -> Iterator[Metric]:
    """Jobs that are not over, and the GPUs they have."""
    info = GaugeMetricFamily(
        "levada_job_info", "A job that is not over.", labels=["job", "workload", "user", "queue", "phase"]
    )
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
    by_phase = GaugeMetricFamily("levada_jobs", "Jobs that are not over.", labels=["phase", "queue"])
    for (phase, queue), number in sorted(count.items()):
        by_phase.add_metric([phase, queue], number)
    yield by_phase
    held = GaugeMetricFamily("levada_job_gpus", "GPUs that jobs have.", labels=["gpu_type", "queue"])
    for (gpu_type, queue), number in sorted(gpus.items()):
        if gpu_type:
            held.add_metric([gpu_type, queue], number)
    yield held
    longest = GaugeMetricFamily(
        "levada_queue_waiting_seconds", "How long the job that waits longest has waited.", labels=["queue"]
    )
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
    total = GaugeMetricFamily("levada_gpus", "GPUs of all nodes.", labels=["gpu_type"])
    busy = GaugeMetricFamily("levada_gpus_used", "GPUs that jobs have.", labels=["gpu_type"])
    for gpu_type in sorted(there):
        total.add_metric([gpu_type], there[gpu_type])
        busy.add_metric([gpu_type], used[gpu_type])
    yield total
    yield busy
    count = GaugeMetricFamily("levada_nodes", "Nodes.", labels=["phase"])
    for phase, number in sorted(Tally(node["phase"] for node in nodes).items()):
        count.add_metric([phase], number)
    yield count
