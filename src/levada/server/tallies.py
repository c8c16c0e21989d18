"""What happened, counted: events, and jobs as they end."""

from __future__ import annotations

import asyncio
import logging

from prometheus_client import CollectorRegistry

from levada.errors import LevadaError, NotFound
from levada.server.families import EVENTS, JOB_COMPLETION, JOB_GPU_SECONDS, JOB_WAITING, JOBS_FINISHED
from levada.server.instruments import counter, histogram
from levada.server.models import OVER
from levada.server.ports import Json, Service

_log = logging.getLogger(__name__)

#: After trouble it is tried again so much later.
_AGAIN_S = 5.0
#: Events that alerts look for are there from the start, as 0: what begins with 1 has never risen.
_ALARMING = ("warning", "trouble")


class Tallies:
    """Counters and histograms over what happens."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._events = counter(EVENTS, registry)
        for alarming in _ALARMING:
            self._events.labels(alarming)
        self._finished = counter(JOBS_FINISHED, registry)
        self._gpu_seconds = counter(JOB_GPU_SECONDS, registry)
        self._completion = histogram(JOB_COMPLETION, registry)
        self._waiting = histogram(JOB_WAITING, registry)

    async def follow(self, service: Service) -> None:
        """Counts from now on; trouble of the service is waited out."""
        last = service.last_event()
        while True:
            try:
                async for event in service.watch(after=last, job=None):
                    last = event["id"]
                    self.count(event, service)
            except LevadaError as trouble:
                _log.warning("events are not counted: %s", trouble)
            except Exception:
                # Counting is no reason to stop.
                _log.exception("events are not counted")
            await asyncio.sleep(_AGAIN_S)

    def count(self, event: Json, service: Service) -> None:
        """Takes one event into account."""
        self._events.labels(event["type"]).inc()
        if event.get("phase") not in OVER or event["job"] is None:
            return
        try:
            job = service.job(event["job"])
        except NotFound:
            return  # its time in lists was shorter than our delay
        queue = job["queue"]
        self._finished.labels(event["phase"], queue).inc()
        self._gpu_seconds.labels(queue).inc(job["gpu_seconds"])
        self._waiting.labels(queue).observe(job["waiting_s"])
        if event["phase"] == "Succeeded":
            self._completion.labels(queue).observe(job["waiting_s"] + job["running_s"])
