"""What every route works with."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import Annotated
from weakref import WeakValueDictionary

from fastapi import Depends, Request

from levada.server.ports import Keys, Service


@dataclass(frozen=True)
class Tuning:
    """How much and how slowly a client may send and take; seconds and bytes."""

    #: Of a body: some ten thousand jobs.
    most_bytes: int = 16 * 2**20
    #: For a body to come.
    body_s: float = 30.0
    #: For the head of a request to come.
    head_s: float = 20.0
    #: For a client to take what was sent; a watch that nobody reads ends so.
    take_s: float = 60.0
    #: How often a stream says that it is there; clients take 45 s of silence for its end.
    beat_s: float = 15.0
    #: How old `/metrics` may be: it costs the same however many ask.
    metrics_s: float = 5.0


@dataclass
class Context:
    """The service behind the routes, and how they behave."""

    service: Service
    keys: Keys
    #: Signs the tokens of workers; whoever starts workers needs the same.
    worker_key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    #: `/metrics` needs no token: fine on loopback, where Prometheus seldom has one.
    open_metrics: bool = True
    tuning: Tuning = Tuning()
    #: Set when the server stops: streams end.
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def writing(self, job_id: str) -> asyncio.Lock:
        """One writer at a time looks at a job's version and changes the job."""
        return self._locks.setdefault(job_id, asyncio.Lock())


async def context_of(request: Request) -> Context:
    """The context of the app that serves this request."""
    context: Context = request.app.state.context
    return context


Ctx = Annotated[Context, Depends(context_of)]
