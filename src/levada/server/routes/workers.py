"""/api/v1/worker and /api/v1/agents: reports of workers, connections of agents."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from levada.api.types import JobView, ReportAnswerView
from levada.live.store import AuditEntry
from levada.server.auth import WorkerCaller, authenticate, bearer, until_revoked, write_audit
from levada.server.context import Context, Ctx
from levada.server.interfaces import Principal, Role
from levada.server.models import WorkerReport
from levada.server.problems import Problem
from levada.server.request_body import StrictRoute

router = APIRouter(prefix="/api/v1", tags=["workers"], route_class=StrictRoute)

#: WebSocket close code: policy violation.
_POLICY_VIOLATION = 1008


@router.post("/worker/report")
async def report(context: Ctx, caller: WorkerCaller, body: WorkerReport) -> ReportAnswerView:
    """Report progress of a worker. Needs the worker's own token."""
    if body.job not in (None, caller.job):
        raise Problem(403, f"this token belongs to {caller.job}; it cannot report for {body.job}")
    fields = body.model_dump(exclude_none=True, exclude={"job", "generation"})
    return await context.service.workers.report(caller, fields)


@router.get("/worker/job", response_model=JobView)
async def job(context: Ctx, caller: WorkerCaller) -> Any:
    """Get the worker's own job. Needs the worker's own token."""
    return context.service.workers.job(caller)


@router.websocket("/agents/connect")
async def connect(websocket: WebSocket) -> None:
    """Connect the supervisor of another machine. Needs an operator's token."""
    context: Context = websocket.app.state.context
    token = bearer(websocket.scope)
    caller = await authenticate(context, token)
    allowed = isinstance(caller, Principal) and caller.role >= Role.OPERATOR
    if isinstance(caller, Principal):
        where = f"from {websocket.client.host}" if websocket.client else ""
        audit_entry = AuditEntry(user=caller.user, role=caller.role.word, method="GET", path=websocket.url.path)
        audit_entry.status, audit_entry.detail = 101 if allowed else 403, where
        await write_audit(context, audit_entry)
    if not allowed:
        await websocket.close(_POLICY_VIOLATION, "a token with role operator (or higher) is required")
        return
    await websocket.accept()
    socket = _Socket(websocket)
    serving = asyncio.create_task(context.service.workers.serve_agent(socket))
    revoked = asyncio.create_task(until_revoked(context, token))
    try:
        await asyncio.wait([serving, revoked], return_when=asyncio.FIRST_COMPLETED)
        if revoked.done():
            with contextlib.suppress(RuntimeError, WebSocketDisconnect):
                await websocket.close(_POLICY_VIOLATION, "the token has expired or was revoked; join with a new one")
    finally:
        revoked.cancel()
        serving.cancel()
        await asyncio.gather(serving, revoked, return_exceptions=True)
        await socket.close()
    if not serving.cancelled():
        serving.result()


class _Socket:
    """Adapts a WebSocket to `Socket`."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> str | None:
        try:
            return await self._websocket.receive_text()
        except (WebSocketDisconnect, RuntimeError, KeyError):
            # RuntimeError: closed by this side; KeyError: the message was binary.
            return None

    async def send(self, text: str) -> None:
        try:
            await self._websocket.send_text(text)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise ConnectionError("the agent has disconnected") from error

    async def close(self, why: str = "") -> None:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await self._websocket.close(reason=why or None)
