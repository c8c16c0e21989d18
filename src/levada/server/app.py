"""The whole API as one ASGI app."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from levada.server import openapi, problems
from levada.server.context import Context
from levada.server.gate import Gate
from levada.server.hosts import Hosts
from levada.server.limits import Limits
from levada.server.meter import Meter
from levada.server.routes import cluster, happened, health, jobs, people, policies, sim, voda, workers

_ROUTERS = (jobs, cluster, policies, happened, sim, people, workers, health, voda)


class Api(FastAPI):
    """FastAPI's app, described in our words."""

    def openapi(self) -> dict[str, Any]:
        """The description of the API."""
        return openapi.describe(self)


def api(context: Context) -> Api:
    """All routes over a service, without the gate before them."""
    made = Api(
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: f"{route.tags[0]}.{route.name}",
    )
    made.state.context = context
    made.state.all_routes = [route for noun in _ROUTERS for route in noun.router.routes]
    problems.register(made)
    for noun in _ROUTERS:
        made.include_router(noun.router)
    return made


def make(context: Context, meter: Meter, *, ui: Path | None = None, hosts: Sequence[str] | None = None) -> ASGIApp:
    """The app over a service; *ui* is a folder of files to serve at `/`, *hosts* the only names it goes by."""
    routes = api(context)
    routes.state.meter = meter
    if ui is not None:
        from starlette.staticfiles import StaticFiles

        routes.mount("/", StaticFiles(directory=ui, html=True))
    # From the outside in: count, know for whom it is, bound, know who it is.
    app: ASGIApp = Limits(Gate(routes, context), context.tuning)
    return meter.metered(app if hosts is None else Hosts(app, hosts))
