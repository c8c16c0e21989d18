"""What Prometheus sees."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from levada.server.families import HTTP_REQUESTS, HTTP_SECONDS
from levada.server.gauges import of_decisions, of_jobs, of_nodes, of_server
from levada.server.instruments import counter, histogram
from levada.server.models import OVER, PHASES
from levada.server.ports import Json, Service
from levada.server.tallies import Tallies

_PAGE = 1000
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})


class Meter:
    """Counts requests, and asks the service for the rest when Prometheus comes."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        self._state = _State()
        self._registry.register(self._state)
        self._requests = counter(HTTP_REQUESTS, self._registry)
        self._seconds = histogram(HTTP_SECONDS, self._registry)
        self._tallies = Tallies(self._registry)

    async def follow(self) -> None:
        """Counts what happens from now on, until it is cancelled."""
        await self._tallies.follow(self._service)

    async def answer(self) -> Response:
        """All metrics as text."""
        jobs: list[Json] = []
        after: str | None = None
        while True:
            page, after = self._service.jobs(
                phases=set(PHASES) - OVER, user=None, queue=None, labels={}, after=after, limit=_PAGE
            )
            jobs += page
            if after is None:
                break
            # Others want their turn between two pages.
            await asyncio.sleep(0)
        ready = not self._service.ready()
        self._state.seen = [
            *of_server(self._service.policy()["name"], ready),
            *of_decisions(self._service.decision_tally()),
            *of_jobs(jobs),
            *of_nodes(self._service.nodes()),
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
