"""`/metrics`, and the middleware that counts requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from levada.server.context import ServerTuning
from levada.server.counters import EventCounters
from levada.server.gauges import JobMetrics, decision_metrics, fault_metrics, node_metrics, server_metrics
from levada.server.instruments import counter, histogram
from levada.server.interfaces import ServiceInterface
from levada.server.metric_defs import HTTP_REQUESTS, HTTP_SECONDS

_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})


class MetricsMiddleware:
    """Counts requests and events; reads the other metrics from the service at each scrape."""

    def __init__(self, service: ServiceInterface, tuning: ServerTuning) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        self._requests = counter(HTTP_REQUESTS, self._registry)
        self._seconds = histogram(HTTP_SECONDS, self._registry)
        self._events = EventCounters(self._registry)
        self._texts = {named: _Cached(partial(self._text, named=named), tuning.metrics_s) for named in (False, True)}

    async def follow(self) -> None:
        """Count events until cancelled."""
        await self._events.follow(self._service)

    async def answer(self, *, named: bool) -> Response:
        """Return all metrics as text; *named* includes series of single jobs."""
        return Response(await self._texts[named].get(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _text(self, *, named: bool) -> bytes:
        job_metrics = JobMetrics(named=named)
        async for jobs in self._service.jobs.living():
            job_metrics.add(jobs)
        ready = not self._service.ready()
        current = [
            *server_metrics(self._service.cluster.policy()["name"], ready),
            *decision_metrics(self._service.history.decision_tally()),
            *fault_metrics(self._service.history.fault_tally()),
            *job_metrics.metrics(),
            *node_metrics(self._service.cluster.nodes()),
        ]
        # In a thread: 100,000 jobs are 100,000 lines.
        return await asyncio.to_thread(generate_latest, _AllMetrics(current, self._registry))

    def metered(self, app: ASGIApp) -> ASGIApp:
        """Wrap *app* to count its requests; the time of a stream ends when it begins."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            began = time.perf_counter()

            async def observed(message: Message) -> None:
                if message["type"] == "http.response.start":
                    # The route, not the path: a label per job name would create too many series.
                    route = getattr(scope.get("route"), "path", "other")
                    method = scope["method"] if scope["method"] in _METHODS else "other"
                    self._requests.labels(method, route, str(message["status"])).inc()
                    self._seconds.labels(method, route).observe(time.perf_counter() - began)
                await send(message)

            await app(scope, receive, observed)

        return counted


class _AllMetrics(Collector):
    """Current values and counters."""

    def __init__(self, current: list[Metric], counters: CollectorRegistry) -> None:
        self._current, self._counters = current, counters

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families."""
        yield from self._current
        yield from self._counters.collect()


class _Cached:
    """A text that is built once for all concurrent requests and cached for a time."""

    def __init__(self, build: Callable[[], Coroutine[Any, Any, bytes]], cache_s: float) -> None:
        self._build, self._cache_s = build, cache_s
        self._task: asyncio.Task[bytes] | None = None
        self._until = 0.0

    async def get(self) -> bytes:
        """Return the text; a cancelled caller does not cancel the build, which others wait for."""
        if self._task is None or (self._task.done() and time.monotonic() >= self._until):
            self._task = asyncio.create_task(self._run())
        return await asyncio.shield(self._task)

    async def _run(self) -> bytes:
        self._until = 0.0  # an error is not cached
        began = time.monotonic()
        text = await self._build()
        took_s = time.monotonic() - began
        # A text that takes long is cached longer, so that the server does not spend most of its time on metrics.
        self._until = time.monotonic() + self._cache_s * max(1.0, took_s)
        return text
