"""The ASGI app of the API."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from levada.compat.voda import routes as voda
from levada.server import openapi, problems
from levada.server.allowed_hosts import AllowedHosts
from levada.server.auth import Authentication
from levada.server.context import Context
from levada.server.limits import RequestLimits
from levada.server.metrics_middleware import MetricsMiddleware
from levada.server.routes import cluster, events, health, jobs, policies, sim, users, workers

_ROUTERS = (jobs, cluster, policies, events, sim, users, workers, health, voda)


class Api(FastAPI):
    """A FastAPI app with the OpenAPI document of `openapi.describe`."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        return openapi.describe(self)


def api(context: Context) -> Api:
    """Return the app with all routes, without middleware."""
    app = Api(
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: f"{route.tags[0]}.{route.name}",
    )
    app.state.context = context
    app.state.all_routes = [route for module in _ROUTERS for route in module.router.routes]
    problems.register(app)
    for module in _ROUTERS:
        app.include_router(module.router)
    return app


def make(
    context: Context, meter: MetricsMiddleware, *, ui: Path | None = None, hosts: Sequence[str] | None = None
) -> ASGIApp:
    """Return the app with its middleware; *ui*: directory served at `/`; *hosts*: the only accepted Host names."""
    routes = api(context)
    routes.state.meter = meter
    if ui is not None:
        from starlette.staticfiles import StaticFiles

        routes.mount("/", StaticFiles(directory=ui, html=True))
    # Order of the middleware: metrics, Host check, limits, authentication.
    app: ASGIApp = RequestLimits(Authentication(routes, context), context.tuning)
    return meter.metered(app if hosts is None else AllowedHosts(app, hosts))
