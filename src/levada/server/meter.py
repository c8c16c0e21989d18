"""What Prometheus sees. Labels are few and short: a job's id stands only in `levada_job_info`."""

from __future__ import annotations

import asyncio
import time
from collections import Counter as Tally
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from levada import __version__
from levada.server.models import PHASES
from levada.server.ports import Json, Service

#: A job that is over is counted and no longer told of one by one.
_OVER = {"Succeeded", "Failed", "Cancelled"}
_PAGE = 1000
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})


# When a counter began is of no use to anybody here, and would double the text.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Meter:
    """Counts requests, and asks the service for the rest when Prometheus comes."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        self._state = _State()
        self._registry.register(self._state)
        self._requests = Counter(
            "levada_http_requests", "Requests answered.", ["method", "route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "levada_http_request_seconds", "Time to answer a request.", ["method", "route"], registry=self._registry
        )

    async def answer(self) -> Response:
        """All metrics as text."""
        jobs: list[Json] = []
        after: str | None = None
        while True:
            page, after = self._service.jobs(
                phases=set(PHASES) - _OVER, user=None, queue=None, labels={}, after=after, limit=_PAGE
            )
            jobs += page
            if after is None:
                break
            # Others want their turn between two pages.
            await asyncio.sleep(0)
        ready = not self._service.ready()
        self._state.seen = [
            *_of_server(self._service.policy()["name"], ready),
            *_of_jobs(jobs),
            *_of_nodes(self._service.nodes()),
        ]
        return Response(generate_latest(self._registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    def metered(self, app: ASGIApp) -> ASGIApp:
        """*app*, its requests counted; a stream's time is that until it begins."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            began = time.perf_counter()

            async def noted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    # The pattern and not the path: names of jobs are no labels.
                    route = getattr(scope.get("route"), "path", "other")
                    method = scope["method"] if scope["method"] in _METHODS else "other"
                    self._requests.labels(method, route, str(message["status"])).inc()
                    self._seconds.labels(method, route).observe(time.perf_counter() - began)
                await send(message)

            await app(scope, receive, noted)

        return counted


class _State(Collector):
    """Jobs, GPUs and queues as they were seen last."""

    def __init__(self) -> None:
        self.seen: list[Metric] = []

    def collect(self) -> list[Metric]:
        """One family after the other."""
        return self.seen


def _of_server(policy: str, is_ready: bool) -> Iterator[Metric]:
    server = GaugeMetricFamily("levada_server_info", "This server.", labels=["version", "policy"])
    server.add_metric([__version__, policy], 1)
    yield server
    ready = GaugeMetricFamily("levada_server_ready", "1 when the server can act.")
    ready.add_metric([], int(is_ready))
    yield ready


def _of_jobs(jobs: list[Json]) -> Iterator[Metric]:
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


def _of_nodes(nodes: list[Json]) -> Iterator[Metric]:
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
