"""/api/v1/jobs: submit, read, change and cancel jobs.

The ETag of a job is its version and a checksum of its view. `If-Match` compares versions only: progress, which a
running job reports every second, must not refuse a write. `If-None-Match` compares whole tags, so it sees progress.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any
from zlib import crc32

from fastapi import APIRouter, Body, Header, Query, Request, Response
from pydantic import Field

from levada.api.types import JOB_COLUMNS, CurveView, ExplanationView, JobColumnsView, JobView, PhaseName
from levada.errors import BadInput, Fault, did_you_mean
from levada.jobfile.limits import check_documents
from levada.jobfile.load import check_names
from levada.live.service.submissions import names_of
from levada.server.auth import User, Viewer, check_owner, note
from levada.server.context import Context, Ctx
from levada.server.interfaces import Principal
from levada.server.models import (
    LARGEST,
    Name,
    Page,
    Scale,
    Seconds,
    Update,
)
from levada.server.problems import Problem
from levada.server.request_body import StrictRoute
from levada.server.responses import answer, as_json
from levada.server.streams import NDJSON, SSE, ResponseStream, event_line, line

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"], route_class=StrictRoute)

IfMatch = Annotated[str | None, Header(description="ETag of the job; 412 if the job has changed since.")]
Force = Annotated[bool, Query(description="Restart or stop the job even if it loses unsaved work.")]
#: Only documented as a pattern: `_labels` has a better error message.
Label = Annotated[str, Field(json_schema_extra={"pattern": "^[^=\\u0000]+="})]
_COLUMNS = "Return columns instead of jobs: comma-separated fields, e.g. `id,phase,reason.text`; one list per field."
Documents = Annotated[Any, Body(description="A job file as JSON, or a list of them; all are accepted or none.")]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="The same key returns the same jobs.",
    ),
]

#: Fields that are not part of the ETag: times that always change, and warnings of the submission.
_UNTAGGED = frozenset({"waiting_s", "running_s", "gpu_seconds", "warnings"})


@router.post("", status_code=201, response_model=JobView | Page[JobView])
async def submit(
    request: Request,
    context: Ctx,
    caller: User,
    documents: Documents,
    key: Key = None,
) -> Any:
    """Submit jobs: one document returns its job, a list (or an array job) returns a page."""
    is_list = isinstance(documents, list)
    files = documents if is_list else [documents]
    if not files or not all(isinstance(file, dict) for file in files):
        raise BadInput.one("must be a job file as a JSON object, or a list of them")
    check_documents(len(files))
    check_names(files)
    request.state.audit_entry.status = 201
    jobs = await context.service.submissions.submit(
        files, user=caller.user, key=key, audit_entry=request.state.audit_entry
    )
    note(request, names_of([job["id"] for job in jobs]))
    if is_list or len(jobs) != 1:
        return answer({"items": jobs, "next": None}, 201)
    return answer(jobs[0], 201, {"Location": f"/api/v1/jobs/{jobs[0]['id']}", "ETag": _etag(context, jobs[0])})


@router.get("", response_model=Page[JobView] | JobColumnsView)
async def jobs(
    context: Ctx,
    caller: Viewer,
    phase: Annotated[list[PhaseName] | None, Query(description="Only jobs in this phase; may be repeated.")] = None,
    user: Annotated[str | None, Query(description="Only jobs of this user; `me` is yourself.", max_length=253)] = None,
    queue: Annotated[str | None, Query(max_length=253)] = None,
    label: Annotated[list[Label] | None, Query(description="`key=value`; may be repeated.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(description="`next` of the last page.", min_length=1, max_length=500)] = None,
    columns: Annotated[str | None, Query(description=_COLUMNS, min_length=1, max_length=1000)] = None,
) -> Any:
    """List jobs, newest last."""
    names = None if columns is None else _columns(columns)
    page, following = context.service.jobs.page(
        phases=set(phase) if phase else None,
        user=caller.user if user == "me" else user,
        queue=queue,
        labels=_labels(label or []),
        after=cursor,
        limit=limit,
    )
    if names is not None:
        return answer({"columns": {name: [_field(job, name) for job in page] for name in names}, "next": following})
    return answer({"items": page, "next": following})


def _columns(text: str) -> list[str]:
    names = list(dict.fromkeys(text.split(",")))
    faults = [
        Fault("columns", f"jobs have no field {name!r}{did_you_mean(name, JOB_COLUMNS)}")
        for name in names
        if name not in JOB_COLUMNS
    ]
    if faults:
        raise BadInput(faults)
    return names


def _field(job: Mapping[str, Any], name: str) -> Any:
    outer, _, inner = name.partition(".")
    value = job.get(outer)
    return value.get(inner) if inner and value is not None else value


def _labels(pairs: list[str]) -> dict[str, str]:
    faults = [Fault("label", f"{pair!r} must be key=value") for pair in pairs if "=" not in pair[1:]]
    if faults:
        raise BadInput(faults)
    return dict(pair.split("=", 1) for pair in pairs)


@router.get("/{name}", response_model=JobView, responses={304: {"description": "Not changed."}})
async def job(
    context: Ctx,
    caller: Viewer,
    name: Name,
    if_none_match: Annotated[str | None, Header(description="ETag of the job; 304 if it has not changed.")] = None,
) -> Any:
    """Get one job, by id, prefix, last four characters, or workload."""
    view = context.service.jobs.get(name, user=caller.user)
    etag = _etag(context, view)
    if if_none_match is not None and etag in _tags(if_none_match):
        return Response(status_code=304, headers={"ETag": etag})
    return answer(view, headers={"ETag": etag})


@router.patch("/{name}", response_model=JobView)
async def update(
    request: Request,
    context: Ctx,
    caller: User,
    name: Name,
    changes: Update,
    if_match: IfMatch = None,
    force: Force = False,
) -> Any:
    """Change priority, queue, range, weight or preemptible of a job."""
    fields = changes.model_dump(exclude_unset=True)
    if not fields:
        raise BadInput.one("give at least one of priority, queue, min, max, weight, preemptible")
    note(request, " ".join(f"{key}={value}" for key, value in fields.items()))
    async with _locked(context, caller, name, if_match) as job_id:
        changed = await context.service.jobs.update(job_id, fields, force=force)
        return answer(changed, headers={"ETag": _etag(context, changed)})


@router.delete("/{name}", response_model=JobView)
async def cancel(context: Ctx, caller: User, name: Name, if_match: IfMatch = None) -> Any:
    """Cancel a job."""
    async with _locked(context, caller, name, if_match) as job_id:
        return answer(await context.service.jobs.cancel(job_id))


@router.post("/{name}/suspend", response_model=JobView)
async def suspend(context: Ctx, caller: User, name: Name, if_match: IfMatch = None, force: Force = False) -> Any:
    """Stop a job until it is resumed; 409 with the code `unsaved` if that loses work, unless forced."""
    async with _locked(context, caller, name, if_match) as job_id:
        return answer(await context.service.jobs.suspend(job_id, force=force))


@router.post("/{name}/resume", response_model=JobView)
async def resume(context: Ctx, caller: User, name: Name, if_match: IfMatch = None) -> Any:
    """Queue a suspended job again."""
    async with _locked(context, caller, name, if_match) as job_id:
        return answer(await context.service.jobs.resume(job_id))


@router.post("/{name}/scale", response_model=JobView)
async def scale(
    request: Request,
    context: Ctx,
    caller: User,
    name: Name,
    size: Scale,
    if_match: IfMatch = None,
    force: Force = False,
) -> Any:
    """Fix a job at a number of workers until its range is changed; `message` says when it takes effect."""
    note(request, f"workers={size.workers}")
    async with _locked(context, caller, name, if_match) as job_id:
        return answer(await context.service.jobs.scale(job_id, size.workers, force=force))


@router.get("/{name}/explain")
async def explain(context: Ctx, caller: Viewer, name: Name) -> ExplanationView:
    """Explain why a job waits or has its size; with its position and a forecast."""
    return await context.service.jobs.explain(context.service.jobs.get(name, user=caller.user)["id"])


@router.get("/{name}/curve", response_model=CurveView)
async def curve(context: Ctx, caller: Viewer, name: Name) -> Any:
    """Get the speed of a job by GPU type and workers, measured and fitted, and the costs of resizing."""
    return context.service.jobs.curve(context.service.jobs.get(name, user=caller.user)["id"])


@router.get(
    "/{name}/logs",
    response_class=Response,
    responses={
        200: {
            "description": "Lines of output, one JSON object per line.",
            "content": {
                NDJSON: {"schema": {"type": "string"}},
                SSE: {"schema": {"type": "string"}},
            },
        }
    },
)
async def logs(
    context: Ctx,
    caller: Viewer,
    name: Name,
    worker: Annotated[str | None, Query(description="Only output of this worker.", max_length=253)] = None,
    tail: Annotated[int | None, Query(ge=0, le=LARGEST, description="Only the last lines.")] = None,
    since: Annotated[Seconds | None, Query(description="Only the last seconds.")] = None,
    follow: Annotated[bool, Query(description="Continue until the job has ended.")] = False,
    previous: Annotated[bool, Query(description="Output of the workers before the last restart.")] = False,
    accept: Annotated[str, Header()] = "",
) -> Response:
    """Get the output of the workers: lines of JSON, or server-sent events if the client accepts them."""
    job_id = context.service.jobs.get(name, user=caller.user)["id"]
    begin = None if since is None else time.time() - since
    lines = context.service.jobs.logs(job_id, worker=worker, tail=tail, since=begin, follow=follow, previous=previous)
    if SSE in accept:
        stream = ResponseStream(context, lines, write=event_line, media_type=SSE, beat=b":\n\n")
    else:
        stream = ResponseStream(context, lines, write=line, media_type=NDJSON, beat=b"\n")
    return await stream.probed()


# -------------------------------------------------------------------------------------------------------------- helpers
@asynccontextmanager
async def _locked(context: Context, caller: Principal, name: str, if_match: str | None) -> AsyncIterator[str]:
    """Lock a job that *caller* may change and yield its id; 412 if its version differs from *if_match*."""
    job_id = context.service.jobs.get(name, user=caller.user)["id"]
    async with context.write_lock(job_id):
        check_owner(caller, context.service.jobs.get(job_id))
        if if_match is not None and not _has_version(if_match, context.service.jobs.version(job_id)):
            raise Problem(412, f"{job_id} has changed since; read it again")
        yield job_id


def _etag(context: Context, job: JobView) -> str:
    view = {name: value for name, value in job.items() if name not in _UNTAGGED}
    return f'"{context.service.jobs.version(job["id"])}.{crc32(as_json(view)):08x}"'


def _has_version(if_match: str, version: str) -> bool:
    return if_match.strip() == "*" or any(tag.strip('"').rpartition(".")[0] == version for tag in _tags(if_match))


def _tags(header: str) -> set[str]:
    """Return the ETags of a header; a compressing proxy marks them as weak."""
    return {tag.strip().removeprefix("W/") for tag in header.split(",")}
