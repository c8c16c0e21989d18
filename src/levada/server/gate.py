"""Who asks: a token is looked at before anything else is, and every write goes to the audit log."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from levada.errors import LevadaError
from levada.live.store import Deed
from levada.server import worker_token
from levada.server.context import Context
from levada.server.ports import Json, Principal, Role, Worker
from levada.server.problems import Problem, of_error, response

_LOG = logging.getLogger("levada.server")
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
#: All that needs a token. Everything else is public: health, the description of the API, the files of the UI.
_GUARDED = ("/api/v1/", "/training", "/algorithm", "/ratelimit", "/allocation")


class Gate:
    """Lets in whoever has a token, and writes down what they change, refusals too."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            token = bearer(scope)
            who = await find(self._context, token)
        except LevadaError as error:
            await of_error(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["who"] = who
        if who is None and self._guarded(scope["path"]):
            needed = "a token is needed: Authorization: Bearer TOKEN"
            detail = f"{'this token is not known, or over' if token else needed}; `levada token create` makes one"
            refused = response(401, detail, headers={"WWW-Authenticate": "Bearer"})
            await refused(scope, receive, send)
            return
        if isinstance(who, Principal) and scope["method"] not in _SAFE:
            deed = Deed(user=who.user, role=who.role.word, method=scope["method"], path=scope["path"])
            scope["state"]["deed"] = deed
            send = self._audited(deed, send)
        await self._app(scope, receive, send)

    def _guarded(self, path: str) -> bool:
        return path.startswith(_GUARDED) or (path == "/metrics" and not self._context.open_metrics)

    def _audited(self, deed: Deed, send: Send) -> Send:
        async def audited(message: Message) -> None:
            # Before the answer: who has it can find what it did in the log.
            if message["type"] == "http.response.start" and not deed.written:
                deed.status = message["status"]
                await write_down(self._context, deed)
            await send(message)

        return audited


async def write_down(context: Context, deed: Deed) -> None:
    """Puts what somebody did into the audit log."""
    try:
        await context.keys.audit(deed)
    except LevadaError as error:
        # It is done; only the server's own log is left to tell.
        _LOG.error("no audit entry: %s %s by %s: %s", deed.method, deed.path, deed.user, error)
    except Exception:
        _LOG.exception("no audit entry: %s %s by %s", deed.method, deed.path, deed.user)


def note(request: Request, detail: str) -> None:
    """What the audit log shall say about this request."""
    request.state.deed.detail = detail


def bearer(scope: Scope) -> str | None:
    """The token of a request."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, token = value.decode("latin-1").partition(" ")
            return token.strip() if kind.lower() == "bearer" else None
    return None


async def find(context: Context, token: str | None) -> Principal | Worker | None:
    """Who has this token."""
    if not token:
        return None
    return worker_token.check(context.worker_key, token) or await context.keys.find(token)


async def until_over(context: Context, token: str | None) -> None:
    """Returns when nobody has this token any more: what goes on for longer than a request ends with it."""
    while True:
        await asyncio.sleep(context.tuning.beat_s)
        try:
            if await find(context, token) is None:
                return
        except LevadaError:
            pass  # a store that is away for a moment ends nobody's stream


# ------------------------------------------------------------------------------------------------------ what routes ask

_scheme = HTTPBearer(auto_error=False, scheme_name="token", description="A token of `levada token create`.")


class _AtLeast:
    """The principal of a request, who has this role or a higher one."""

    def __init__(self, role: Role) -> None:
        self._role = role

    async def __call__(self, request: Request, _: Annotated[object, Depends(_scheme)]) -> Principal:
        who = request.state.who
        if isinstance(who, Worker):
            raise Problem(403, "this token is a worker's, for reports of its own job; set LEVADA_TOKEN to one of yours")
        if not isinstance(who, Principal) or who.role < self._role:
            raise Problem(403, f"this needs the role {self._role.word}; yours is {who.role.word}")
        return who


Viewer = Annotated[Principal, Depends(_AtLeast(Role.VIEWER))]
User = Annotated[Principal, Depends(_AtLeast(Role.USER))]
Operator = Annotated[Principal, Depends(_AtLeast(Role.OPERATOR))]
Admin = Annotated[Principal, Depends(_AtLeast(Role.ADMIN))]


async def _worker(request: Request, _: Annotated[object, Depends(_scheme)]) -> Worker:
    who = request.state.who
    if not isinstance(who, Worker):
        raise Problem(403, "this is for workers, with the LEVADA_TOKEN they were started with")
    return who


OfWorker = Annotated[Worker, Depends(_worker)]


def own(who: Principal, job: Json) -> None:
    """Refuses a user who would change a job of somebody else."""
    if who.role < Role.OPERATOR and job["user"] != who.user:
        raise Problem(403, f"{job['id']} belongs to {job['user']}; only they and operators may change it")
