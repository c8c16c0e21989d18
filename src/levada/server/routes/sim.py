"""/api/v1/sim: forecasts and allocations; nothing changes."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

from fastapi import APIRouter, Body

from levada.api.types import WhatIfView
from levada.errors import BadInput
from levada.jobfile.load import check_names
from levada.server.auth import User, Viewer
from levada.server.context import Context, Ctx
from levada.server.interfaces import Json
from levada.server.models import Page, WhatIf
from levada.server.request_body import StrictRoute
from levada.server.routes.policies import check_policy

router = APIRouter(prefix="/api/v1/sim", tags=["sim"], route_class=StrictRoute)

#: Limit of jobs in a case, which bounds the CPU time.
_MAX_JOBS = 500
#: One case at a time, in a thread that decisions of the server do not use.
_THREAD = ThreadPoolExecutor(1, "levada-allocate")


@router.get("")
async def questions(caller: Viewer) -> Page[dict[str, Any]]:
    """List the endpoints."""
    texts = {
        "whatif": "Forecast jobs as if they were submitted now.",
        "allocate": "Compute the allocation of one policy for a case.",
    }
    return Page(
        items=[{"method": "POST", "path": f"{router.prefix}/{name}", "text": text} for name, text in texts.items()]
    )


@router.post("/whatif")
async def whatif(context: Ctx, caller: User, body: WhatIf) -> WhatIfView:
    """Forecast jobs as if they were submitted now."""
    check_names(body.documents)
    policy = None if body.policy is None else check_policy(context, body.policy, "policy")
    return await context.service.submissions.whatif(body.documents, user=caller.user, policy=policy)


@router.post("/allocate")
async def allocate(
    context: Ctx,
    caller: Viewer,
    case: Annotated[Json, Body(description="A case, as for `levada allocate -f`.")],
) -> dict[str, Any]:
    """Compute the allocation of one policy for each job of a case."""
    return await allocation_for(context, case)


async def allocation_for(context: Context, case: Json) -> Json:
    """Decide a case in a thread; raises BadInput."""
    # Late import: numpy and the policies are slow to import.
    from levada.allocate.decide import decide

    name = case.get("policy")
    if isinstance(name, str):
        check_policy(context, name, "policy")
    jobs = case.get("jobs")
    if isinstance(jobs, list) and len(jobs) > _MAX_JOBS:
        raise BadInput.one(f"at most {_MAX_JOBS} over HTTP; use `levada allocate`", "jobs")
    return await asyncio.get_running_loop().run_in_executor(_THREAD, decide, case)
