"""/api/v1/policies."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from levada.api.types import CurrentPolicyView, PolicyView
from levada.errors import BadInput, did_you_mean
from levada.server.auth import Operator, Viewer, note
from levada.server.context import Context, Ctx
from levada.server.models import Page, RateLimit, SetPolicy
from levada.server.request_body import StrictRoute

router = APIRouter(prefix="/api/v1/policies", tags=["policies"], route_class=StrictRoute)


@router.get("", response_model=Page[PolicyView])
async def policies(context: Ctx, caller: Viewer) -> Any:
    """List the installed policies."""
    return {"items": context.service.cluster.policies()}


@router.get("/current", response_model=CurrentPolicyView)
async def policy(context: Ctx, caller: Viewer) -> Any:
    """Get the active policy."""
    return context.service.cluster.policy()


@router.put("/current", response_model=CurrentPolicyView)
async def set_policy(
    request: Request,
    context: Ctx,
    caller: Operator,
    body: SetPolicy,
    dry_run: Annotated[bool, Query(description="Change nothing; `warnings` lists the effects.")] = False,
) -> Any:
    """Switch the policy; `warnings` lists running jobs that it stops or shrinks."""
    note(request, body.name + (" (dry run)" if dry_run else ""))
    name = check_policy(context, body.name, "name")
    return await context.service.cluster.set_policy(name, body.options, dry_run=dry_run)


@router.put("/rate-limit", response_model=CurrentPolicyView)
async def set_rate_limit(request: Request, context: Ctx, caller: Operator, limit: RateLimit) -> Any:
    """Set the minimum time between two decisions."""
    note(request, f"{limit.seconds:g} s")
    return await context.service.cluster.set_rate_limit(limit.seconds)


def check_policy(context: Context, name: str, path: str) -> str:
    """Return *name* if it is an installed policy; BadInput otherwise. Files are not accepted over HTTP."""
    policies = context.service.cluster.policies()
    names = [known for policy in policies for known in (policy["name"], *policy["aliases"])]
    if name not in names:
        raise BadInput.one(f"there is no policy {name!r}" + did_you_mean(name, names, "see `levada policy ls`"), path)
    return name
