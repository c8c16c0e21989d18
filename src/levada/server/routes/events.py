"""/api/v1/events, /watch, /decisions, /plans, /faults, /usage, /snapshot."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Response

from levada.api.types import DecisionView, EngineFaultView, EventView, PlanView, SnapshotView, UsageView
from levada.errors import BadInput
from levada.server.auth import Operator, Viewer
from levada.server.context import Ctx
from levada.server.models import LARGEST, Page, Seconds
from levada.server.request_body import StrictRoute
from levada.server.responses import answer
from levada.server.streams import SSE, ResponseStream, event

router = APIRouter(prefix="/api/v1", route_class=StrictRoute)

Id = Annotated[int, Query(ge=0, le=LARGEST)]
Limit = Annotated[int, Query(ge=1, le=1000)]
_BY = "user|queue|workload|gpu_type"
JobName = Annotated[str | None, Query(description="Only events of this job.", min_length=1, max_length=253)]


@router.get("/events", tags=["events"], response_model=Page[EventView])
async def events(context: Ctx, caller: Viewer, job: JobName = None, after: Id = 0, limit: Limit = 100) -> Any:
    """List events after an id, oldest first."""
    job_id = context.service.jobs.get(job, user=caller.user)["id"] if job else None
    page = await context.service.history.events(job=job_id, after=after, limit=limit)
    return answer({"items": page, "next": str(page[-1]["id"]) if len(page) == limit else None})


@router.get(
    "/watch",
    tags=["events"],
    response_class=Response,
    responses={
        200: {
            "description": "Server-sent events: `id`, `event` (the type) and `data` (the event as JSON).",
            "content": {SSE: {"schema": {"type": "string"}}},
        }
    },
)
async def watch(
    context: Ctx,
    caller: Viewer,
    job: JobName = None,
    after: Annotated[int | None, Query(ge=0, le=LARGEST, description="Start after this event id.")] = None,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID", description="Overrides `after`.")] = None,
) -> Response:
    """Stream events, from now or after an event; none is missed."""
    job_id = context.service.jobs.get(job, user=caller.user)["id"] if job else None
    field = "Last-Event-ID" if last_event_id else "after"
    if last_event_id:
        if not (last_event_id.isascii() and last_event_id.isdecimal() and int(last_event_id[:20]) <= LARGEST):
            raise BadInput.one("must be the id of an event", field)
        after = int(last_event_id)
    last = context.service.history.last_event()
    begin = last if after is None else after
    if begin > last:
        # An id of another server, or of a store that was restored from a backup.
        raise BadInput.one(f"there is no event {begin}, the last is {last}; omit it to start now", field)
    items = context.service.history.watch(after=begin, job=job_id)
    # A comment with the start, so that a client that loses the connection before the first event can resume.
    return ResponseStream(context, items, write=event, media_type=SSE, first=b": after %d\n\n" % begin, beat=b":\n\n")


@router.get("/decisions", tags=["decisions"], response_model=Page[DecisionView])
async def decisions(context: Ctx, caller: Viewer, limit: Limit = 20) -> Any:
    """List the last decisions, newest last."""
    return answer({"items": context.service.history.decisions(limit), "next": None})


@router.get("/decisions/{revision}", tags=["decisions"])
async def decision(context: Ctx, caller: Viewer, revision: Annotated[int, Path(ge=0, le=LARGEST)]) -> DecisionView:
    """Get one decision with the reason for each job."""
    return context.service.history.decision(revision)


@router.get("/plans", tags=["decisions"], response_model=Page[PlanView])
async def plans(context: Ctx, caller: Viewer, limit: Limit = 20) -> Any:
    """List the last plans, newest last."""
    return answer({"items": context.service.history.plans(limit), "next": None})


@router.get("/faults", tags=["events"], response_model=Page[EngineFaultView])
async def faults(context: Ctx, caller: Operator) -> Any:
    """List internal errors of the engine, newest last, for bug reports."""
    return answer({"items": context.service.history.faults(), "next": None})


@router.get("/usage", tags=["usage"])
async def usage(
    context: Ctx,
    caller: Viewer,
    by: Annotated[
        str,
        Query(
            description="Comma-separated: user, queue, workload, gpu_type.",
            json_schema_extra={"pattern": f"^({_BY})(,({_BY}))*$"},
        ),
    ] = "user",
    since: Annotated[Seconds, Query(description="Seconds before now.")] = 7 * 86400.0,
) -> Page[UsageView]:
    """Sum GPU seconds of jobs."""
    names = list(dict.fromkeys(by.split(",")))
    unknown = [name for name in names if name not in _BY.split("|")]
    if unknown:
        raise BadInput.one("must be a comma-separated list of user, queue, workload, gpu_type", "by")
    return Page(items=await context.service.history.usage(names, time.time() - since))


@router.get("/snapshot", tags=["decisions"], response_model=SnapshotView)
async def snapshot(context: Ctx, caller: Operator) -> Any:
    """Get the whole state as one document, for `levada replay`."""
    return answer(context.service.snapshot())
