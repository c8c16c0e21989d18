"""/api/v1/jobs: submit, look at, change, end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Query, Request, Response
from pydantic import Field

from levada.errors import BadInput, Fault, did_you_mean
from levada.jobfile.limits import check_documents
from levada.jobfile.load import check_names
from levada.live.submissions import names_of
from levada.server.answers import answer
from levada.server.body import StrictRoute
from levada.server.context import Context, Ctx
from levada.server.gate import User, Viewer, note, own
from levada.server.models import (
    JOB_COLUMNS,
    LARGEST,
    CurveView,
    JobColumns,
    JobView,
    Name,
    Page,
    Phase,
    Scale,
    Seconds,
    SubmittedJob,
    Update,
)
from levada.server.ports import Json, Principal
from levada.server.problems import Problem
from levada.server.streams import NDJSON, SSE, Stream, event_line, line
from levada.server.tags import names_tag, names_version, tag

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"], route_class=StrictRoute)

IfMatch = Annotated[
    str | None, Header(description="The ETag of the job as you know it; 412 where it has changed since.")
]
Force = Annotated[bool, Query(description="Restart or stop the job though it loses work that it has not saved.")]
#: What is wrong with it is told in words, not as a pattern.
Label = Annotated[str, Field(json_schema_extra={"pattern": "^[^=\\u0000]+="})]
_COLUMNS = "Only these fields, with commas between, each as one list: `id,phase,reason.text`."
Documents = Annotated[Any, Body(description="A job file as JSON, or several: all or none are taken.")]
Key = Annotated[
    str | None,
    Header(alias="Idempotency-Key", min_length=1, max_length=200, description="Sent again, it gives the same answer."),
]


@router.post("", status_code=201, response_model=SubmittedJob | Page[SubmittedJob])
async def submit(
    request: Request,
    context: Ctx,
    who: User,
    documents: Documents,
    key: Key = None,
) -> Any:
    """Submit jobs: one document answers with its job, a list (or an array job) with a page of them."""
    several = isinstance(documents, list)
    given = documents if several else [documents]
    if not given or not all(isinstance(each, dict) for each in given):
        raise BadInput.one("must be a job file as a JSON object, or a list of them")
    check_documents(len(given))
    check_names(given)
    request.state.deed.status = 201
    jobs = await context.service.submit(given, user=who.user, key=key, deed=request.state.deed)
    note(request, names_of([job["id"] for job in jobs]))
    if several or len(jobs) != 1:
        return answer({"items": jobs, "next": None}, 201)
    return answer(jobs[0], 201, {"Location": f"/api/v1/jobs/{jobs[0]['id']}", "ETag": _etag(context, jobs[0])})


@router.get("", response_model=Page[JobView] | JobColumns)
async def jobs(
    context: Ctx,
    who: Viewer,
    phase: Annotated[list[Phase] | None, Query(description="Only these; may be given several times.")] = None,
    user: Annotated[str | None, Query(description="Of this user; `me` is yourself.", max_length=253)] = None,
    queue: Annotated[str | None, Query(max_length=253)] = None,
    label: Annotated[list[Label] | None, Query(description="`key=value`; may be given several times.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(description="`next` of the page before.", min_length=1, max_length=500)] = None,
    columns: Annotated[str | None, Query(description=_COLUMNS, min_length=1, max_length=1000)] = None,
) -> Any:
    """List jobs, newest last."""
    names = None if columns is None else _columns(columns)
    found, following = context.service.jobs(
        phases=set(phase) if phase else None,
        user=who.user if user == "me" else user,
        queue=queue,
        labels=_labels(label or []),
        after=cursor,
        limit=limit,
    )
    if names is not None:
        return answer({"columns": {name: [_part(each, name) for each in found] for name in names}, "next": following})
    return answer({"items": found, "next": following})


def _columns(given: str) -> list[str]:
    names = list(dict.fromkeys(given.split(",")))
    faults = [
        Fault("columns", f"jobs have no field {name!r}{did_you_mean(name, JOB_COLUMNS)}")
        for name in names
        if name not in JOB_COLUMNS
    ]
    if faults:
        raise BadInput(faults)
    return names


def _part(job: Json, name: str) -> Any:
    outer, _, inner = name.partition(".")
    value = job.get(outer)
    return value.get(inner) if inner and value is not None else value


def _labels(given: list[str]) -> dict[str, str]:
    faults = [Fault("label", f"{each!r} must be key=value") for each in given if "=" not in each[1:]]
    if faults:
        raise BadInput(faults)
    return dict(each.split("=", 1) for each in given)


@router.get("/{name}", response_model=JobView, responses={304: {"description": "It has not changed."}})
async def job(
    context: Ctx,
    who: Viewer,
    name: Name,
    if_none_match: Annotated[str | None, Header(description="The ETag of the job as you know it.")] = None,
) -> Any:
    """Get one job, by id, prefix, last four characters, or workload."""
    found = context.service.job(name, user=who.user)
    etag = _etag(context, found)
    if if_none_match is not None and names_tag(if_none_match, etag):
        return Response(status_code=304, headers={"ETag": etag})
    return answer(found, headers={"ETag": etag})


@router.patch("/{name}", response_model=JobView)
async def update(
    request: Request,
    context: Ctx,
    who: User,
    name: Name,
    changes: Update,
    if_match: IfMatch = None,
    force: Force = False,
) -> Any:
    """Change priority, queue, range, weight or preemptible of a job."""
    given = changes.model_dump(exclude_unset=True)
    if not given:
        raise BadInput.one("name at least one of priority, queue, min, max, weight, preemptible")
    note(request, " ".join(f"{key}={value}" for key, value in given.items()))
    async with _writing(context, who, name, if_match) as job_id:
        changed = await context.service.update(job_id, given, force=force)
        return answer(changed, headers={"ETag": _etag(context, changed)})


@router.delete("/{name}", response_model=JobView)
async def cancel(context: Ctx, who: User, name: Name, if_match: IfMatch = None) -> Any:
    """Cancel a job."""
    async with _writing(context, who, name, if_match) as job_id:
        return answer(await context.service.cancel(job_id))


@router.post("/{name}/suspend", response_model=JobView)
async def suspend(context: Ctx, who: User, name: Name, if_match: IfMatch = None, force: Force = False) -> Any:
    """Stop a job until it is resumed; 409 with the code `unsaved` where that loses work, unless forced."""
    async with _writing(context, who, name, if_match) as job_id:
        return answer(await context.service.suspend(job_id, force=force))


@router.post("/{name}/resume", response_model=JobView)
async def resume(context: Ctx, who: User, name: Name, if_match: IfMatch = None) -> Any:
    """Let a suspended job go on."""
    async with _writing(context, who, name, if_match) as job_id:
        return answer(await context.service.resume(job_id))


@router.post("/{name}/scale", response_model=JobView)
async def scale(
    request: Request,
    context: Ctx,
    who: User,
    name: Name,
    size: Scale,
    if_match: IfMatch = None,
    force: Force = False,
) -> Any:
    """Fix a job at a number of workers, until its range is changed; `message` says when it has them."""
    note(request, f"workers={size.workers}")
    async with _writing(context, who, name, if_match) as job_id:
        return answer(await context.service.scale(job_id, size.workers, force=force))


@router.get("/{name}/explain")
async def explain(context: Ctx, who: Viewer, name: Name) -> dict[str, Any]:
    """Why a job waits or has its size, its position, and when it should start and end."""
    return await context.service.explain(context.service.job(name, user=who.user)["id"])


@router.get("/{name}/curve", response_model=CurveView)
async def curve(context: Ctx, who: Viewer, name: Name) -> Any:
    """How fast a job is by GPU type and number of workers, measured and believed, and what resizing it costs."""
    return context.service.curve(context.service.job(name, user=who.user)["id"])


@router.get(
    "/{name}/logs",
    response_class=Response,
    responses={
        200: {
            "description": "Lines of output, one JSON object each.",
            "content": {
                NDJSON: {"schema": {"type": "string"}},
                SSE: {"schema": {"type": "string"}},
            },
        }
    },
)
async def logs(
    context: Ctx,
    who: Viewer,
    name: Name,
    worker: Annotated[str | None, Query(description="Only this worker.", max_length=253)] = None,
    tail: Annotated[int | None, Query(ge=0, le=LARGEST, description="The last lines only.")] = None,
    since: Annotated[Seconds | None, Query(description="The last seconds only.")] = None,
    follow: Annotated[bool, Query(description="Go on as lines come, until the job is over.")] = False,
    previous: Annotated[bool, Query(description="Of the workers before the last restart.")] = False,
    accept: Annotated[str, Header()] = "",
) -> Response:
    """What the workers of a job say: lines of JSON, or server-sent events where those are accepted."""
    job_id = context.service.job(name, user=who.user)["id"]
    begin = None if since is None else time.time() - since
    lines = context.service.logs(job_id, worker=worker, tail=tail, since=begin, follow=follow, previous=previous)
    if SSE in accept:
        stream = Stream(context, lines, write=event_line, media_type=SSE, beat=b":\n\n")
    else:
        stream = Stream(context, lines, write=line, media_type=NDJSON, beat=b"\n")
    return await stream.tried()


# --------------------------------------------------------------------------------------------------------------- inside
@asynccontextmanager
async def _writing(context: Context, who: Principal, name: str, if_match: str | None) -> AsyncIterator[str]:
    """The id of a job that may be changed now; the lock makes a version and the write that asked for it one step."""
    job_id = context.service.job(name, user=who.user)["id"]
    async with context.writing(job_id):
        found = context.service.job(job_id)
        own(who, found)
        if if_match is not None and not names_version(if_match, context.service.version(job_id)):
            raise Problem(412, f"{job_id} has changed since; get it again and look")
        yield job_id


def _etag(context: Context, found: Json) -> str:
    # Warnings are of the submission, not of the job.
    return tag(context.service.version(found["id"]), {name: each for name, each in found.items() if name != "warnings"})
