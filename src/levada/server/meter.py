"""What Prometheus sees."""

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

from levada.server.context import Tuning
from levada.server.families import HTTP_REQUESTS, HTTP_SECONDS
from levada.server.gauges import OfJobs, of_decisions, of_faults, of_nodes, of_server
from levada.server.instruments import counter, histogram
from levada.server.ports import Service
from levada.server.tallies import Tallies

_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})


class Meter:
    """Counts requests, and asks the service for the rest when Prometheus comes."""

    def __init__(self, service: Service, tuning: Tuning) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        self._requests = counter(HTTP_REQUESTS, self._registry)
        self._seconds = histogram(HTTP_SECONDS, self._registry)
        self._tallies = Tallies(self._registry)
        self._texts = {named: _Kept(partial(self._text, named=named), tuning.metrics_s) for named in (False, True)}

    async def follow(self) -> None:
        """Counts what happens from now on, until it is cancelled."""
        await self._tallies.follow(self._service)

    async def answer(self, *, named: bool) -> Response:
        """All metrics as text; *named*: those of single jobs, too."""
        return Response(await self._texts[named].get(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _text(self, *, named: bool) -> bytes:
        jobs = OfJobs(named=named)
        async for some in self._service.living():
            jobs.add(some)
        ready = not self._service.ready()
        seen = [
            *of_server(self._service.policy()["name"], ready),
            *of_decisions(self._service.decision_tally()),
            *of_faults(self._service.fault_tally()),
            *jobs.metrics(),
            *of_nodes(self._service.nodes()),
        ]
        # Beside the loop: a hundred thousand jobs are a hundred thousand lines.
        return await asyncio.to_thread(generate_latest, _All(seen, self._registry))

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


class _All(Collector):
    """What is, and what was counted along."""

    def __init__(self, seen: list[Metric], counted: CollectorRegistry) -> None:
        self._seen, self._counted = seen, counted

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        yield from self._seen
        yield from self._counted.collect()


class _Kept:
    """A text that is made once for all who ask meanwhile, and told again for a time."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, bytes]], keep_s: float) -> None:
        self._make, self._keep_s = make, keep_s
        self._making: asyncio.Task[bytes] | None = None
        self._until = 0.0

    async def get(self) -> bytes:
        """The text; who stops waiting for it leaves it to the others."""
        made = self._making is not None and self._making.done()
        if self._making is None or (made and time.monotonic() >= self._until):
            self._making = asyncio.create_task(self._made())
        return await asyncio.shield(self._making)

    async def _made(self) -> bytes:
        self._until = 0.0  # one that fails is not kept
        began = time.monotonic()
        text = await self._make()
        took_s = time.monotonic() - began
        # What takes long is kept for longer, so that making it is never most of what a server does.
        self._until = time.monotonic() + self._keep_s * max(1.0, took_s)
        return text
