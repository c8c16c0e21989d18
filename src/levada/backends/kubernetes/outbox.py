"""Outbox: what the backend observed and has not reported yet."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from levada.backends.kubernetes.owned_job import OwnedJob
from levada.backends.protocol import Arrival, Note, Report
from levada.core.events import Event


class Outbox:
    """Collects events, notes, arrivals and departures; a report has those of one moment, in order."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Report] = asyncio.Queue()
        self._events: list[Event] = []
        self._notes: list[Note] = []
        self._arrivals: dict[str, Arrival] = {}
        self._departed: dict[str, None] = {}
        self._scheduled = False
        #: Reports wait until `open` has returned its observation.
        self.is_held = True

    def add(self, event: Event) -> None:
        """Add an event."""
        self._events.append(event)
        self._schedule()

    def tell(self, kind: type[Any], job: OwnedJob, **fields: Any) -> None:
        """Add an event about the current generation of a job."""
        stamp = job.stamp
        assert stamp is not None
        columns = {name: np.array([value]) if isinstance(value, int) else value for name, value in fields.items()}
        number, generation = np.array([stamp.number]), np.array([stamp.generation])
        self.add(kind(at=0.0, number=number, generation=generation, **columns))

    def note(self, job: str, type: str, text: str, **data: Any) -> None:
        """Add an entry of a job's history."""
        self._notes.append(Note(job=job, type=type, text=text, data=data))
        self._schedule()

    def arrive(self, arrival: Arrival) -> None:
        """Add the current state of an object; it replaces one that is not reported yet."""
        self._departed.pop(arrival.key, None)
        self._arrivals[arrival.key] = arrival
        self._schedule()

    def depart(self, key: str) -> None:
        """Add the end of an object."""
        self._arrivals.pop(key, None)
        self._departed[key] = None
        self._schedule()

    def take(self) -> Report:
        """Return and clear all that is not reported yet."""
        report = Report(
            events=tuple(self._events),
            notes=tuple(self._notes),
            arrivals=tuple(self._arrivals.values()),
            departed=tuple(self._departed),
        )
        self._events, self._notes, self._arrivals, self._departed = [], [], {}, {}
        return report

    def _schedule(self) -> None:
        """Send everything that is added in this turn of the event loop as one report."""
        if not self._scheduled and not self.is_held:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._scheduled = False
        report = self.take()
        if report != Report():
            self.queue.put_nowait(report)
