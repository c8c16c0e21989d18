"""Metrics that count events and ended jobs."""

from __future__ import annotations

import asyncio
import logging

from prometheus_client import CollectorRegistry

from levada.api import ENDED
from levada.api.types import EventView
from levada.errors import LevadaError, NotFound
from levada.server.instruments import counter, histogram
from levada.server.interfaces import ServiceInterface
from levada.server.metric_defs import EVENTS, JOB_COMPLETION, JOB_GPU_SECONDS, JOB_WAITING, JOBS_FINISHED

_log = logging.getLogger(__name__)

#: Pause before a retry after an error.
_RETRY_S = 5.0
#: Event types that alerts use start at 0: `increase()` does not see a series that starts at 1.
_ALERT_TYPES = ("warning", "trouble")


class EventCounters:
    """Counters and histograms of events."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._events = counter(EVENTS, registry)
        for event_type in _ALERT_TYPES:
            self._events.labels(event_type)
        self._finished = counter(JOBS_FINISHED, registry)
        self._gpu_seconds = counter(JOB_GPU_SECONDS, registry)
        self._completion = histogram(JOB_COMPLETION, registry)
        self._waiting = histogram(JOB_WAITING, registry)

    async def follow(self, service: ServiceInterface) -> None:
        """Count new events until cancelled; retries after errors of the service."""
        last = service.history.last_event()
        while True:
            try:
                async for event in service.history.watch(after=last, job=None):
                    last = event["id"]
                    self.count(event, service)
            except LevadaError as error:
                _log.warning("cannot count events: %s", error)
            except Exception:
                _log.exception("cannot count events")  # the server must not stop because of its metrics
            await asyncio.sleep(_RETRY_S)

    def count(self, event: EventView, service: ServiceInterface) -> None:
        """Count one event."""
        self._events.labels(event["type"]).inc()
        if event.get("phase") not in ENDED or event["job"] is None:
            return
        try:
            job = service.jobs.get(event["job"])
        except NotFound:
            return  # its TTL has already passed
        queue = job["queue"]
        self._finished.labels(event["phase"], queue).inc()
        self._gpu_seconds.labels(queue).inc(job["gpu_seconds"])
        self._waiting.labels(queue).observe(job["waiting_s"])
        if event["phase"] == "Succeeded":
            self._completion.labels(queue).observe(job["waiting_s"] + job["running_s"])
