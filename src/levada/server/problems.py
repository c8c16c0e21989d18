"""Errors as problem+json: status, title, detail, code, and faults of a body."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from levada.api.types import ProblemView
from levada.errors import MOST_FAULTS, BadInput, Fault, InternalError, LevadaError, NotFound, Refused, Unresolved

MEDIA_TYPE = "application/problem+json"
_LOG = logging.getLogger("levada.server")

#: Codes for programs, by status; texts may change.
CODES: dict[int, str] = {
    400: "bad_request",
    401: "no_token",
    403: "not_allowed",
    404: "not_found",
    405: "no_such_method",
    408: "too_slow",
    409: "refused",
    412: "changed",
    413: "too_large",
    415: "not_json",
    421: "wrong_host",
    422: "bad_input",
    431: "too_large",
    500: "internal",
    503: "not_ready",
}


class Problem(HTTPException):
    """An error response, raised by a route or middleware."""

    def __init__(
        self, status: int, detail: str, *, bad: BadInput | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.bad = bad


def response(
    status: int,
    detail: str,
    *,
    code: str = "",
    bad: BadInput | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return an error response; with the faults of *bad*."""
    body: ProblemView = {
        "status": status,
        "title": HTTPStatus(status).phrase,
        "detail": detail,
        "code": code or CODES.get(status, "error"),
    }
    if bad is not None:
        body["errors"] = [{"path": fault.path, "text": fault.text} for fault in bad.faults]
        if bad.more:
            body["more"] = bad.more
    return Response(msgspec.json.encode(body), status, dict(headers or {}), MEDIA_TYPE)


def error_response(error: LevadaError) -> Response:
    """Return the response for an error of `levada.errors`."""
    if isinstance(error, BadInput):
        return response(422, str(error), bad=error)
    if isinstance(error, NotFound):
        return response(404, str(error))
    if isinstance(error, Refused):
        return response(409, str(error), code=error.code)
    if isinstance(error, InternalError):
        return response(500, str(error))
    # The server is unavailable: it starts, stops, or has lost its store.
    code = "unresolved" if isinstance(error, Unresolved) else ""
    return response(503, str(error), headers={"Retry-After": "1"}, code=code)


def register(app: FastAPI) -> None:
    """Register the handlers of all errors with *app*."""
    app.add_exception_handler(LevadaError, _levada)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(Exception, _unexpected)


async def _levada(request: Request, error: Exception) -> Response:
    assert isinstance(error, LevadaError)
    return error_response(error)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = str(error.detail)
    if error.status_code == 404 and not isinstance(error, Problem):
        detail = f"there is no {request.url.path}; see /api/openapi.json"
    headers = error.headers
    if error.status_code == 405:
        allowed = _methods(request)
        detail = f"{request.method} is not allowed for {request.url.path}; use {', '.join(allowed)}"
        headers = {"Allow": ", ".join(allowed)}
    bad = error.bad if isinstance(error, Problem) else None
    return response(error.status_code, detail, bad=bad, headers=headers)


def _methods(request: Request) -> list[str]:
    """Return the methods of a path; each method has its own route."""
    matching = [route for route in request.app.state.all_routes if route.matches(request.scope)[0] is not Match.NONE]
    methods = {method for route in matching for method in getattr(route, "methods", None) or ()}
    # A path without a route may be a file.
    return sorted(methods or {"GET", "HEAD"})


async def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    details = error.errors()
    return error_response(BadInput(map(_fault, details[:MOST_FAULTS]), max(0, len(details) - MOST_FAULTS)))


def _fault(detail: Mapping[str, Any]) -> Fault:
    """Convert an error of pydantic."""
    _, *keys = detail["loc"]
    path = ""
    for key in keys:
        path += f"[{key}]" if isinstance(key, int) else f".{key}" if path else str(key)
    text = str(detail["msg"])
    if detail["type"] == "missing":
        text = "is required"
    elif detail["type"] == "extra_forbidden":
        text = "is unknown"
    else:
        text = text[:1].lower() + text[1:]
    # Client input may contain unpaired surrogates, which cannot be encoded.
    return Fault(path.encode("utf-8", "replace").decode(), text.encode("utf-8", "replace").decode())


async def _unexpected(request: Request, error: Exception) -> Response:
    _LOG.error("internal error: %s %s", request.method, request.url.path, exc_info=error)
    return response(500, "internal error; see the log of the server")
