"""/healthz, /readyz, /metrics: for those who look after the server."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from levada import __version__
from levada.server.body import StrictRoute
from levada.server.context import Ctx
from levada.server.meter import Meter
from levada.server.models import HealthView
from levada.server.ports import Principal
from levada.server.problems import Problem

router = APIRouter(tags=["health"], route_class=StrictRoute)


@router.get("/healthz")
async def healthz() -> HealthView:
    """Tell that the server is there."""
    return HealthView(status="ok", version=__version__)


@router.get("/readyz", responses={503: {"description": "It cannot act yet, or any more."}})
async def readyz(context: Ctx) -> HealthView:
    """Tell whether the server can act."""
    if context.stopping.is_set():
        raise Problem(503, "the server stops")
    if why := context.service.ready():
        raise Problem(503, why, headers={"Retry-After": "1"})
    return HealthView(status="ready", version=__version__)


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"description": "For Prometheus.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request, context: Ctx) -> Response:
    """Tell what Prometheus wants to know. On loopback only what it says of single jobs needs a token."""
    known = isinstance(request.state.who, Principal)
    if not context.open_metrics and not known:
        raise Problem(403, "the token of a viewer is needed")
    meter: Meter = request.app.state.meter
    return await meter.answer(named=known)
