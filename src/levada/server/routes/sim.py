"""/api/v1/sim: questions that change nothing."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

from fastapi import APIRouter, Body

from levada.errors import BadInput
from levada.jobfile.load import check_names
from levada.server.body import StrictRoute
from levada.server.context import Context, Ctx
from levada.server.gate import User, Viewer
from levada.server.models import Page, WhatIf
from levada.server.ports import Json
from levada.server.routes.policies import known

router = APIRouter(prefix="/api/v1/sim", tags=["sim"], route_class=StrictRoute)

#: Of a case, so that a question cannot keep the server from its work for long.
_MOST_JOBS = 500
#: One question at a time, on a thread that the server's own decisions do not wait for.
_THREAD = ThreadPoolExecutor(1, "levada-allocate")


@router.get("")
async def questions(who: Viewer) -> Page[dict[str, Any]]:
    """List what can be asked here."""
    asked = {
        "whatif": "What would become of jobs if they were submitted now.",
        "allocate": "What one policy would give to each job of a case.",
    }
    return Page(
        items=[{"method": "POST", "path": f"{router.prefix}/{name}", "text": text} for name, text in asked.items()]
    )


@router.post("/whatif")
async def whatif(context: Ctx, who: User, question: WhatIf) -> dict[str, Any]:
    """Tell what would become of jobs if they were submitted now."""
    check_names(question.documents)
    policy = None if question.policy is None else known(context, question.policy, "policy")
    return await context.service.whatif(question.documents, user=who.user, policy=policy)


@router.post("/allocate")
async def allocate(
    context: Ctx,
    who: Viewer,
    case: Annotated[Json, Body(description="A case as `levada allocate -f` takes it.")],
) -> dict[str, Any]:
    """Tell what one policy would give to each job of a case."""
    return await answer(context, case)


async def answer(context: Context, case: Json) -> Json:
    """The answer to a case, found beside the loop; raises BadInput."""
    # Imported late: numpy and the policies take their time.
    from levada.cases.decide import decide

    name = case.get("policy")
    if isinstance(name, str):
        known(context, name, "policy")
    jobs = case.get("jobs")
    if isinstance(jobs, list) and len(jobs) > _MOST_JOBS:
        raise BadInput.one(f"may be {_MOST_JOBS} at most over HTTP; use `levada allocate`", "jobs")
    return await asyncio.get_running_loop().run_in_executor(_THREAD, decide, case)
