"""The whole API as one ASGI app."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from levada.server import openapi, problems
from levada.server.context import Context
from levada.server.gate import Gate
from levada.server.limits import Limits
from levada.server.meter import Meter
from levada.server.routes import cluster, happened, health, jobs, people, policies, sim, voda, workers

_ROUTERS = (jobs, cluster, policies, happened, sim, people, workers, health, voda)


class _Api(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """The description of the API."""
        return openapi.describe(self)


def make(context: Context, *, ui: Path | None = None) -> ASGIApp:
    """The app over a service; *ui* is a folder of files to serve at `/`."""
    api = _Api(openapi_url="/api/openapi.json", docs_url=None, redoc_url=None, redirect_slashes=False)
    meter = Meter(context.service)
    api.state.context = context
    api.state.meter = meter
    problems.register(api)
    for noun in _ROUTERS:
        api.include_router(noun.router)
    if ui is not None:
        from starlette.staticfiles import StaticFiles

        api.mount("/", StaticFiles(directory=ui, html=True))
    # From the outside in: count, bound, know who it is.
    return meter.metered(Limits(Gate(api, context), context))
