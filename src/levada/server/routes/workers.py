"""/api/v1/worker and /api/v1/agents: what workers and the supervisors of other machines need."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from levada.live.store import Deed
from levada.server.body import StrictRoute
from levada.server.context import Context, Ctx
from levada.server.gate import OfWorker, bearer, find, until_over, write_down
from levada.server.models import JobView, WorkerReport
from levada.server.ports import Principal, Role
from levada.server.problems import Problem

router = APIRouter(prefix="/api/v1", tags=["workers"], route_class=StrictRoute)

#: WebSocket's code for a refusal.
_POLICY_VIOLATION = 1008


@router.post("/worker/report")
async def report(context: Ctx, who: OfWorker, said: WorkerReport) -> dict[str, Any]:
    """Tell how far a worker is. Needs the worker's own token."""
    if said.job not in (None, who.job):
        raise Problem(403, f"this token is of {who.job}; it cannot report for {said.job}")
    told = said.model_dump(exclude_none=True, exclude={"job", "generation"})
    return await context.service.worker_report(who, told)


@router.get("/worker/job", response_model=JobView)
async def job(context: Ctx, who: OfWorker) -> Any:
    """Get the worker's own job. Needs the worker's own token."""
    return context.service.worker_job(who)


@router.websocket("/agents/connect")
async def connect(websocket: WebSocket) -> None:
    """Join another machine's supervisor to this server; texts both ways. Needs an operator's token."""
    context: Context = websocket.app.state.context
    token = bearer(websocket.scope)
    who = await find(context, token)
    allowed = isinstance(who, Principal) and who.role >= Role.OPERATOR
    if isinstance(who, Principal):
        where = f"from {websocket.client.host}" if websocket.client else ""
        asked = Deed(user=who.user, role=who.role.word, method="GET", path=websocket.url.path)
        asked.status, asked.detail = 101 if allowed else 403, where
        await write_down(context, asked)
    if not allowed:
        await websocket.close(_POLICY_VIOLATION, "the token of an operator is needed")
        return
    await websocket.accept()
    socket = _Socket(websocket)
    serving = asyncio.create_task(context.service.serve_agent(socket))
    over = asyncio.create_task(until_over(context, token))
    try:
        await asyncio.wait([serving, over], return_when=asyncio.FIRST_COMPLETED)
        if over.done():
            with contextlib.suppress(RuntimeError, WebSocketDisconnect):
                await websocket.close(_POLICY_VIOLATION, "its token has ended: join again with another one")
    finally:
        over.cancel()
        serving.cancel()
        await asyncio.gather(serving, over, return_exceptions=True)
        await socket.close()
    if not serving.cancelled():
        serving.result()


class _Socket:
    """A WebSocket as the service sees it."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> str | None:
        try:
            return await self._websocket.receive_text()
        except (WebSocketDisconnect, RuntimeError, KeyError):
            # The others: it was closed on our side meanwhile, or the message was bytes.
            return None

    async def send(self, text: str) -> None:
        try:
            await self._websocket.send_text(text)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise ConnectionError("the agent has gone") from error

    async def close(self, why: str = "") -> None:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await self._websocket.close(reason=why or None)
