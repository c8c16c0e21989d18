"""HTTP routes and output format of VodaScheduler, with Levada's authentication.

Errors are plain text as in Voda, but have an error status.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from levada.api.types import JobView
from levada.errors import BadInput, LevadaError, NotFound, Refused
from levada.jobfile.limits import BODY
from levada.jobfile.text import parse_any
from levada.server.auth import Operator, User, Viewer, check_owner, note
from levada.server.context import Context, Ctx
from levada.server.interfaces import Json
from levada.server.problems import MEDIA_TYPE, Problem
from levada.server.request_body import StrictRoute, decoded, has_unstorable, parse_body, read_json
from levada.server.routes import sim
from levada.server.routes.policies import check_policy

_TEXT: Json = {"text/plain": {"schema": {"type": "string"}}}
_PROBLEM: Json = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemView"}}}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "Success.", "content": _TEXT},
    400: {"description": "Invalid request.", "content": _TEXT | _PROBLEM},
    401: {"description": "A token is required.", "content": _PROBLEM},
    403: {"description": "The token does not permit it.", "content": _PROBLEM},
    404: {"description": "No such job.", "content": _TEXT},
    408: {"description": "The body was sent too slowly.", "content": _PROBLEM},
    409: {"description": "Conflicts with the current state.", "content": _TEXT},
    413: {"description": "The body is too large.", "content": _PROBLEM},
    422: {"description": "Invalid query.", "content": _PROBLEM},
    503: {"description": "The server is unavailable.", "content": _TEXT},
}
router = APIRouter(tags=["voda"], route_class=StrictRoute, default_response_class=PlainTextResponse, responses=_ANSWERS)


def _body(media_type: str, schema: Json) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


_WIDTHS = (60, 10, 10, 25, 10, 10, 10)
_HEADER = ("NAME", "STATUS", "WORKERS", "SCHEDULER", "WAITING", "RUNNING", "TOTAL")
_STATUS = {"Pending": "Waiting", "Suspended": "Waiting", "Succeeded": "Completed", "Failed": "Failed"}
#: Levada has one scheduler for all GPU types.
_SCHEDULER = "default"


@router.post("/training", openapi_extra=_body("application/yaml", {"type": "string"}))
async def create(request: Request, context: Ctx, who: User) -> Response:
    """Create a training job from an MPIJob, in YAML or JSON."""
    try:
        documents = await parse_body(_documents, await request.body())
        jobs = await context.service.submissions.submit(documents, user=who.user, key=None)
    except LevadaError as error:
        return _error_response(error)
    note(request, " ".join(job["id"] for job in jobs[:10]))
    lines = [f"Training job created: {job['id']}\nView your logs by:\n    levada logs {job['id']}" for job in jobs]
    return PlainTextResponse("\n".join(lines))


@router.get("/training")
async def table(context: Ctx, who: Viewer) -> Response:
    """Show the table of jobs."""
    rows = [_row(job) async for job in _jobs(context)]
    return PlainTextResponse("".join(_format_row(row) + "\n" for row in [_HEADER, *sorted(rows)]))


@router.delete("/training", openapi_extra=_body("application/json", {"type": "string"}))
async def delete(request: Request, context: Ctx, who: User) -> Response:
    """Delete a training job; the body is its name, as JSON (or bare, as Voda's own command sends it)."""
    try:
        name = await _string(request)
        job = context.service.jobs.get(name, user=who.user)
        check_owner(who, job)
        await context.service.jobs.cancel(job["id"])
    except NotFound:
        return PlainTextResponse("not found", 404)
    except LevadaError as error:
        return _error_response(error)
    note(request, job["id"])
    return PlainTextResponse(f"Training job deleted: {job['id']}")


@router.put("/algorithm", openapi_extra=_body("application/json", {"type": "string"}))
async def algorithm(request: Request, context: Ctx, who: Operator) -> Response:
    """Change the scheduling algorithm; the body is its name, as JSON."""
    try:
        name = await _value(request)
        if not isinstance(name, str):
            raise BadInput.one("must be the name of an algorithm, as a JSON string")
        await context.service.cluster.set_policy(check_policy(context, name, ""), {})
    except LevadaError as error:
        return _error_response(error)
    note(request, name)
    return PlainTextResponse(f"Scheduler: {_SCHEDULER}\nScheduling Algorithm: {name}")


@router.put("/ratelimit", openapi_extra=_body("application/json", {"type": "integer", "minimum": 0}))
async def ratelimit(request: Request, context: Ctx, who: Operator) -> Response:
    """Set the minimum time between two decisions; the body is seconds, as JSON."""
    try:
        seconds = await _value(request)
        if isinstance(seconds, bool) or not isinstance(seconds, int) or not 0 <= seconds <= 86400:
            raise BadInput.one("must be whole seconds, from 0 to 86400")
        await context.service.cluster.set_rate_limit(seconds)
    except LevadaError as error:
        return _error_response(error)
    note(request, f"{seconds} s")
    return PlainTextResponse(f"Scheduler: {_SCHEDULER}\nRe-scheduling ratelimit (sec): {seconds}")


@router.post(
    "/allocation",
    openapi_extra=_body("application/json", {"type": "object"}),
    responses={200: {"description": "GPUs by job.", "content": {"application/json": {"schema": {"type": "object"}}}}},
    response_class=JSONResponse,
)
async def allocation(request: Request, context: Ctx, who: Viewer) -> Response:
    """Compute the allocation of an algorithm: `{"SchedulerID", "NumGpu", "AlgorithmName", "ReadyJobs"}`."""
    try:
        request_body = await _value(request)
        result = await sim.allocation_for(context, _case(request_body))
    except LevadaError as error:
        return _error_response(error)
    return JSONResponse({job: sum(gpus.values()) for job, gpus in result["allocations"].items()})


# --- helpers ---------------------------------------------------------------------------------------------------------
def _error_response(error: LevadaError) -> Response:
    if isinstance(error, BadInput):
        return PlainTextResponse(str(error), 400)
    if isinstance(error, NotFound):
        return PlainTextResponse(str(error), 404)
    return PlainTextResponse(str(error), 409 if isinstance(error, Refused) else 503)


def _documents(body: bytes) -> list[Json]:
    documents = [document for document in parse_any(decoded(body), BODY) if document]
    if not documents or not all(isinstance(document, dict) for document in documents):
        raise BadInput.one("must be an MPIJob in YAML or JSON")
    if has_unstorable(documents):
        raise BadInput.one("contains a null character or an unpaired surrogate")
    return documents


async def _value(request: Request) -> Any:
    try:
        return await read_json(request)
    except Problem as error:
        raise BadInput.one(str(error.detail)) from None


async def _string(request: Request) -> str:
    text = decoded(await request.body()).strip()
    if text and all(character.isalnum() or character in "-._" for character in text):
        return text
    value = await _value(request)
    if not isinstance(value, str) or not value:
        raise BadInput.one("must be the name of a job, as a JSON string")
    return value


async def _jobs(context: Context) -> AsyncIterator[JobView]:
    after: str | None = None
    while True:
        page, after = context.service.jobs.page(phases=None, user=None, queue=None, labels={}, after=after, limit=1000)
        for job in page:
            # Voda does not list deleted jobs.
            if job["phase"] != "Cancelled":
                yield job
        if after is None:
            return
        # Let other requests run between two pages.
        await asyncio.sleep(0)


def _row(job: JobView) -> tuple[str, ...]:
    waiting, running = round(job["waiting_s"]), round(job["running_s"])
    return (
        job["id"],
        _STATUS.get(job["phase"], "Running"),
        f"{job['gpus']:g}",
        job["gpu_type"] or "-",
        duration(waiting),
        duration(running),
        duration(waiting + running),
    )


def _format_row(row: tuple[str, ...]) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(row, _WIDTHS, strict=True))


def duration(seconds: int) -> str:
    """Whole seconds as Go prints them: 28s, 1m5s, 3h1m2s."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


_GPU = "gpu"


def _case(request_body: Any) -> Json:
    """Convert a request of Voda to a case; raises BadInput."""
    if not isinstance(request_body, dict):
        raise BadInput.one("must be an object with NumGpu, AlgorithmName and ReadyJobs")
    ready = request_body.get("ReadyJobs")
    if ready is None:
        ready = []
    if not isinstance(ready, list) or not all(isinstance(job, dict) for job in ready):
        raise BadInput.one("must be a list of jobs", "ReadyJobs")
    gpus = request_body.get("NumGpu")
    if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 0:
        raise BadInput.one("must be a number of GPUs", "NumGpu")
    jobs = [_case_job(job) for job in ready]
    return {"policy": request_body.get("AlgorithmName"), "cluster": {"gpus": {_GPU: gpus}}, "jobs": jobs}


def _case_job(job: Json) -> Json:
    config, times, info = (_object(job, key) for key in ("config", "time_metrics", "job_info"))
    case_job = {
        "id": job.get("job_name"),
        "priority": job.get("priority"),
        "submitted": _timestamp(job.get("submit_timestamp")),
        "first_started": _timestamp(times.get("first_start_timestamp")),
        "min": config.get("min_num_proc"),
        "max": config.get("max_num_proc"),
        "desired": config.get("num_proc") or None,
        "speedup": info.get("speedup"),
        "remaining_s": info.get("estimated_remainning_time_sec"),
    }
    return {key: value for key, value in case_job.items() if value is not None}


def _object(job: Json, key: str) -> Json:
    value = job.get(key)
    return value if isinstance(value, dict) else {}


def _timestamp(value: Any) -> Any:
    """Parse a time of Go to seconds; None for its minimum and maximum, which mean never."""
    if not isinstance(value, str):
        return value
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise BadInput.one(f"{value!r} is not a time", "submit_timestamp") from None
    return None if time.year in (1, 9999) else time.timestamp()
