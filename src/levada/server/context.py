"""Context of all routes: the service, the keys and the limits of requests."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import Annotated
from weakref import WeakValueDictionary

from fastapi import Depends, Request

from levada.server.interfaces import Keys, ServiceInterface


@dataclass(frozen=True)
class ServerTuning:
    """Limits and intervals of the HTTP server, in seconds and bytes."""

    #: Size of a body; enough for about 10,000 jobs.
    max_bytes: int = 16 * 2**20
    #: Time to receive a body.
    body_s: float = 30.0
    #: Time to receive the head of a request.
    head_s: float = 20.0
    #: Time that a client may leave its response unread.
    take_s: float = 60.0
    #: Interval of heartbeats of a stream; clients reconnect after 45 s of silence.
    beat_s: float = 15.0
    #: Time for which the text of `/metrics` is cached.
    metrics_s: float = 5.0


@dataclass
class Context:
    """The service behind the routes, and their settings."""

    service: ServiceInterface
    keys: Keys
    #: Signs the tokens of workers; the backend signs with the same key.
    worker_key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    #: `/metrics` needs no token; for loopback, where Prometheus rarely has one.
    open_metrics: bool = True
    tuning: ServerTuning = ServerTuning()
    #: Set when the server stops, to end streams.
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def write_lock(self, job_id: str) -> asyncio.Lock:
        """Return the lock under which a request compares the version of a job and changes it."""
        return self._locks.setdefault(job_id, asyncio.Lock())


async def context_of(request: Request) -> Context:
    """Return the context of the app that serves this request."""
    context: Context = request.app.state.context
    return context


Ctx = Annotated[Context, Depends(context_of)]
