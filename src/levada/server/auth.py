"""Authentication by token, authorization by role, and the audit log of all writes."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from levada.api.types import JobView
from levada.errors import LevadaError
from levada.live.store import AuditEntry
from levada.server import worker_token
from levada.server.context import Context
from levada.server.interfaces import Principal, Role, WorkerIdentity
from levada.server.problems import Problem, error_response, response

_LOG = logging.getLogger("levada.server")
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
#: Paths that need a token. Others are public: health, the OpenAPI document, files of the UI.
_GUARDED = ("/api/v1/", "/training", "/algorithm", "/ratelimit", "/allocation")
#: Paths that also accept tokens that a cluster issued to workers.
_WORKERS = "/api/v1/worker/"


class Authentication:
    """Middleware that identifies the caller and writes the audit log, also for refused writes."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            token = bearer(scope)
            caller = await authenticate(self._context, token)
            if caller is None and token and scope["path"].startswith(_WORKERS):
                caller = await _worker_of_cluster(self._context, token)
        except LevadaError as error:
            await error_response(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        if caller is None and self._is_guarded(scope["path"]):
            why = "the token is unknown, expired or revoked" if token else "a token is needed (Authorization: Bearer)"
            detail = f"{why}; create one with `levada token create`"
            await response(401, detail, headers={"WWW-Authenticate": "Bearer"})(scope, receive, send)
            return
        if isinstance(caller, Principal) and scope["method"] not in _READS:
            audit_entry = AuditEntry(
                user=caller.user, role=caller.role.word, method=scope["method"], path=scope["path"]
            )
            scope["state"]["audit_entry"] = audit_entry
            send = self._audited(audit_entry, send)
        await self._app(scope, receive, send)

    def _is_guarded(self, path: str) -> bool:
        return path.startswith(_GUARDED) or (path == "/metrics" and not self._context.open_metrics)

    def _audited(self, audit_entry: AuditEntry, send: Send) -> Send:
        async def audited(message: Message) -> None:
            # Before the response, so that a client that has it can find the entry.
            if message["type"] == "http.response.start" and not audit_entry.written:
                audit_entry.status = message["status"]
                await write_audit(self._context, audit_entry)
            await send(message)

        return audited


async def write_audit(context: Context, audit_entry: AuditEntry) -> None:
    """Add an entry to the audit log; an error goes to the server's log, because the write is already done."""
    try:
        await context.keys.audit(audit_entry)
    except LevadaError as error:
        _LOG.error(
            "cannot write audit entry: %s %s by %s: %s", audit_entry.method, audit_entry.path, audit_entry.user, error
        )
    except Exception:
        _LOG.exception("cannot write audit entry: %s %s by %s", audit_entry.method, audit_entry.path, audit_entry.user)


def note(request: Request, detail: str) -> None:
    """Set the detail of this request in the audit log."""
    request.state.audit_entry.detail = detail


def bearer(scope: Scope) -> str | None:
    """Return the token of a request."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, token = value.decode("latin-1").partition(" ")
            return token.strip() if kind.lower() == "bearer" else None
    return None


async def authenticate(context: Context, token: str | None) -> Principal | WorkerIdentity | None:
    """Return the owner of a token; None if it is not valid."""
    if not token:
        return None
    return worker_token.check(context.worker_key, token) or await context.keys.find(token)


async def _worker_of_cluster(context: Context, token: str) -> WorkerIdentity | None:
    """Return the worker to which a cluster issued *token*, e.g. as a service-account token (a JWT)."""
    identity = await context.service.workers.identify(token) if token.count(".") == 2 else None
    return None if identity is None else WorkerIdentity(*identity)


async def until_revoked(context: Context, token: str | None) -> None:
    """Return when a token is no longer valid; streams and connections of agents end then."""
    while True:
        await asyncio.sleep(context.tuning.beat_s)
        try:
            if await authenticate(context, token) is None:
                return
        except LevadaError:
            pass  # the store is unavailable: streams continue


# ------------------------------------------------------------------------------------------- dependencies of routes

_scheme = HTTPBearer(auto_error=False, scheme_name="token", description="Token created by `levada token create`.")


class _AtLeast:
    """Returns the principal of a request if it has at least this role."""

    def __init__(self, role: Role) -> None:
        self._role = role

    async def __call__(self, request: Request, _: Annotated[object, Depends(_scheme)]) -> Principal:
        caller = request.state.caller
        if isinstance(caller, WorkerIdentity):
            raise Problem(
                403,
                "worker tokens can only report on their own job; set LEVADA_TOKEN to your own token",
            )
        if not isinstance(caller, Principal) or caller.role < self._role:
            raise Problem(403, f"this needs the role {self._role.word}; yours is {caller.role.word}")
        return caller


Viewer = Annotated[Principal, Depends(_AtLeast(Role.VIEWER))]
User = Annotated[Principal, Depends(_AtLeast(Role.USER))]
Operator = Annotated[Principal, Depends(_AtLeast(Role.OPERATOR))]
Admin = Annotated[Principal, Depends(_AtLeast(Role.ADMIN))]


async def _worker(request: Request, _: Annotated[object, Depends(_scheme)]) -> WorkerIdentity:
    caller = request.state.caller
    if not isinstance(caller, WorkerIdentity):
        raise Problem(403, "only workers can use this, with the LEVADA_TOKEN of their environment")
    return caller


WorkerCaller = Annotated[WorkerIdentity, Depends(_worker)]


def check_owner(caller: Principal, job: JobView) -> None:
    """Raise 403 if a user who is not an operator changes another user's job."""
    if caller.role < Role.OPERATOR and job["user"] != caller.user:
        raise Problem(403, f"{job['id']} belongs to {job['user']}; only its owner and operators can change it")
