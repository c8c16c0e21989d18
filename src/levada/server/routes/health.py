"""/healthz, /readyz, /metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from levada import __version__
from levada.api.types import HealthView
from levada.server.context import Ctx
from levada.server.interfaces import Principal
from levada.server.metrics_middleware import MetricsMiddleware
from levada.server.problems import Problem
from levada.server.request_body import StrictRoute

router = APIRouter(tags=["health"], route_class=StrictRoute)


@router.get("/healthz")
async def healthz() -> HealthView:
    """Report that the server is running."""
    return {"status": "ok", "version": __version__}


@router.get("/readyz", responses={503: {"description": "Not ready, or stopping."}})
async def readyz(context: Ctx) -> HealthView:
    """Report whether the server is ready."""
    if context.stopping.is_set():
        raise Problem(503, "the server is stopping")
    if why := context.service.ready():
        raise Problem(503, why, headers={"Retry-After": "1"})
    return {"status": "ready", "version": __version__}


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {
            "description": "Prometheus text format.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    },
)
async def metrics(request: Request, context: Ctx) -> Response:
    """Return metrics for Prometheus. On loopback only series of single jobs need a token."""
    has_token = isinstance(request.state.caller, Principal)
    if not context.open_metrics and not has_token:
        raise Problem(403, "a token with role viewer (or higher) is required")
    meter: MetricsMiddleware = request.app.state.meter
    return await meter.answer(named=has_token)
