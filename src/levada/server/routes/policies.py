"""/api/v1/policies: who decides."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from levada.errors import BadInput, did_you_mean
from levada.server.body import StrictRoute
from levada.server.context import Context, Ctx
from levada.server.gate import Operator, Viewer, note
from levada.server.models import ChangedPolicyView, CurrentPolicyView, Page, PolicyView, RateLimit, SetPolicy

router = APIRouter(prefix="/api/v1/policies", tags=["policies"], route_class=StrictRoute)


@router.get("", response_model=Page[PolicyView])
async def policies(context: Ctx, who: Viewer) -> Any:
    """List the policies at hand."""
    return {"items": context.service.policies()}


@router.get("/current", response_model=CurrentPolicyView)
async def policy(context: Ctx, who: Viewer) -> Any:
    """Get the policy that decides."""
    return context.service.policy()


@router.put("/current", response_model=ChangedPolicyView)
async def set_policy(
    request: Request,
    context: Ctx,
    who: Operator,
    wanted: SetPolicy,
    dry_run: Annotated[bool, Query(description="Change nothing; `warnings` tell what would happen.")] = False,
) -> Any:
    """Let another policy decide; `warnings` tell which running jobs it stops or shrinks."""
    note(request, wanted.name + (" (dry run)" if dry_run else ""))
    name = known(context, wanted.name, "name")
    return await context.service.set_policy(name, wanted.options, dry_run=dry_run)


@router.put("/rate-limit", response_model=CurrentPolicyView)
async def set_rate_limit(request: Request, context: Ctx, who: Operator, limit: RateLimit) -> Any:
    """Set the least time between two decisions."""
    note(request, f"{limit.seconds:g} s")
    return await context.service.set_rate_limit(limit.seconds)


def known(context: Context, name: str, path: str) -> str:
    """A name that is a policy's here; never a file to be run, which names may be on the command line."""
    names = [each for one in context.service.policies() for each in (one["name"], *one.get("aliases", ()))]
    if name not in names:
        raise BadInput.one(f"there is no policy {name!r}" + did_you_mean(name, names, "see `levada policy ls`"), path)
    return name
