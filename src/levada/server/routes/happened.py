"""/api/v1/events, /watch, /decisions, /plans, /usage, /snapshot: what happened, and what happens."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Response

from levada.errors import BadInput
from levada.server.answers import answer
from levada.server.body import StrictRoute
from levada.server.context import Ctx
from levada.server.gate import Operator, Viewer
from levada.server.models import LARGEST, EventView, Page, Seconds
from levada.server.streams import SSE, Stream, event

router = APIRouter(prefix="/api/v1", route_class=StrictRoute)

Id = Annotated[int, Query(ge=0, le=LARGEST)]
Limit = Annotated[int, Query(ge=1, le=1000)]
_BY = "user|queue|workload|gpu_type"
OfJob = Annotated[str | None, Query(description="Only of this job.", min_length=1, max_length=253)]


@router.get("/events", tags=["events"], response_model=Page[EventView])
async def events(context: Ctx, who: Viewer, job: OfJob = None, after: Id = 0, limit: Limit = 100) -> Any:
    """List what happened after an event, oldest first."""
    job_id = context.service.job(job, user=who.user)["id"] if job else None
    found = await context.service.history(job=job_id, after=after, limit=limit)
    return answer({"items": found, "next": str(found[-1]["id"]) if len(found) == limit else None})


@router.get(
    "/watch",
    tags=["events"],
    response_class=Response,
    responses={
        200: {
            "description": "Server-sent events: `id`, `event` (its type) and `data` (the event as JSON).",
            "content": {SSE: {"schema": {"type": "string"}}},
        }
    },
)
async def watch(
    context: Ctx,
    who: Viewer,
    job: OfJob = None,
    after: Annotated[int | None, Query(ge=0, le=LARGEST, description="Begin right after this event.")] = None,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID", description="The same, and first.")] = None,
) -> Response:
    """Watch what happens, from now on or right after an event; none is missed."""
    job_id = context.service.job(job, user=who.user)["id"] if job else None
    field = "Last-Event-ID" if last_event_id else "after"
    if last_event_id:
        if not (last_event_id.isascii() and last_event_id.isdecimal() and int(last_event_id[:20]) <= LARGEST):
            raise BadInput.one("must be the id of an event", field)
        after = int(last_event_id)
    last = context.service.last_event()
    begin = last if after is None else after
    if begin > last:
        # Of another server, or of a store that was put back to an older state: nothing after it would ever come.
        raise BadInput.one(f"there was no event {begin} yet, the last is {last}; leave it out to begin now", field)
    items = context.service.watch(after=begin, job=job_id)
    # A comment, which lets who loses the connection before the first event go on where it began.
    return Stream(context, items, write=event, media_type=SSE, first=b": after %d\n\n" % begin, beat=b":\n\n")


@router.get("/decisions", tags=["decisions"], response_model=Page[dict[str, Any]])
async def decisions(context: Ctx, who: Viewer, limit: Limit = 20) -> Any:
    """List the last decisions, newest last."""
    return answer({"items": context.service.decisions(limit), "next": None})


@router.get("/decisions/{revision}", tags=["decisions"])
async def decision(context: Ctx, who: Viewer, revision: Annotated[int, Path(ge=0, le=LARGEST)]) -> dict[str, Any]:
    """Get one decision with its reasons."""
    return context.service.decision(revision)


@router.get("/plans", tags=["decisions"], response_model=Page[dict[str, Any]])
async def plans(context: Ctx, who: Viewer, limit: Limit = 20) -> Any:
    """List the last plans, newest last."""
    return answer({"items": context.service.plans(limit), "next": None})


@router.get("/faults", tags=["events"], response_model=Page[dict[str, Any]])
async def faults(context: Ctx, who: Operator) -> Any:
    """List internal errors of the engine that were undone, newest last, for a bug report."""
    return answer({"items": context.service.faults(), "next": None})


@router.get("/usage", tags=["usage"])
async def usage(
    context: Ctx,
    who: Viewer,
    by: Annotated[
        str,
        Query(
            description="user, queue, workload, gpu_type; several with commas.",
            json_schema_extra={"pattern": f"^({_BY})(,({_BY}))*$"},
        ),
    ] = "user",
    since: Annotated[Seconds, Query(description="How many seconds back.")] = 7 * 86400.0,
) -> Page[dict[str, Any]]:
    """Sum up GPU seconds."""
    names = list(dict.fromkeys(by.split(",")))
    unknown = [name for name in names if name not in _BY.split("|")]
    if unknown:
        raise BadInput.one("must be of user, queue, workload, gpu_type, with commas", "by")
    return Page(items=await context.service.usage(names, time.time() - since))


@router.get("/snapshot", tags=["decisions"], response_model=dict[str, Any])
async def snapshot(context: Ctx, who: Operator) -> Any:
    """Get the whole state as one document, for `levada replay`."""
    return answer(context.service.snapshot())
