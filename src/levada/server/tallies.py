"""What happened, counted: events, and jobs as they end."""

from __future__ import annotations

import asyncio
import logging

from prometheus_client import CollectorRegistry, Counter, Histogram

from levada.errors import LevadaError, NotFound
from levada.server.models import OVER
from levada.server.ports import Json, Service

_log = logging.getLogger(__name__)

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
#: Training takes from a minute to weeks.
_LONG = (
    _MINUTE,
    5 * _MINUTE,
    15 * _MINUTE,
    _HOUR,
    3 * _HOUR,
    6 * _HOUR,
    12 * _HOUR,
    _DAY,
    3 * _DAY,
    7 * _DAY,
    28 * _DAY,
)
#: Waiting should not.
_WAIT = (1.0, 5.0, 15.0, *_LONG)
#: After trouble it is tried again so much later.
_AGAIN_S = 5.0


class Tallies:
    """Counters and histograms over what happens."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._events = Counter("levada_events", "Events, by type.", ["type"], registry=registry)
        self._finished = Counter("levada_jobs_finished", "Jobs that ended.", ["phase", "queue"], registry=registry)
        self._gpu_seconds = Counter(
            "levada_job_gpu_seconds", "GPU seconds of jobs that ended.", ["queue"], registry=registry
        )
        self._completion = Histogram(
            "levada_job_completion_seconds",
            "From submission to success, without suspension.",
            ["queue"],
            buckets=_LONG,
            registry=registry,
        )
        self._waiting = Histogram(
            "levada_job_waiting_seconds",
            "How long they waited.",
            ["queue"],
            buckets=_WAIT,
            registry=registry,
        )

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
