"""/api/v1/me, /tokens, /users, /audit."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from levada.api.types import AuditView, MeView, NewTokenView, TokenView, UserView
from levada.errors import NotFound
from levada.server.auth import Admin, Viewer, note
from levada.server.context import Ctx
from levada.server.interfaces import Role
from levada.server.models import Name, NewToken, Page
from levada.server.request_body import StrictRoute

router = APIRouter(prefix="/api/v1", tags=["people"], route_class=StrictRoute)


@router.get("/me", response_model=MeView)
async def me(caller: Viewer) -> Any:
    """Get your user and role."""
    return {"user": caller.user, "role": caller.role.word}


@router.get("/tokens", response_model=Page[TokenView])
async def tokens(context: Ctx, caller: Admin) -> Any:
    """List all tokens, without their secrets."""
    return {"items": await context.keys.ls()}


@router.post("/tokens", status_code=201, response_model=NewTokenView)
async def create_token(request: Request, context: Ctx, caller: Admin, body: NewToken) -> Any:
    """Create a token. Only this answer contains its secret."""
    user = body.user or caller.user
    token_id, secret = await context.keys.create(user, Role.of(body.role), body.expires_s)
    note(request, f"{token_id}: {body.role} for {user}")
    return {"id": token_id, "token": secret, "user": user, "role": body.role}


@router.delete("/tokens/{token_id}", status_code=204)
async def revoke_token(context: Ctx, caller: Admin, token_id: Name) -> None:
    """Revoke a token."""
    await context.keys.revoke(token_id)


@router.get("/users", response_model=Page[UserView])
async def users(context: Ctx, caller: Admin) -> Any:
    """List users with tokens."""
    highest: dict[str, Role] = {}
    count: dict[str, int] = {}
    for token in await context.keys.ls():
        name, role = token["user"], Role.of(token["role"])
        highest[name] = max(role, highest.get(name, role))
        count[name] = count.get(name, 0) + 1
    return {"items": [{"name": name, "role": highest[name].word, "tokens": count[name]} for name in sorted(count)]}


@router.delete("/users/{name}", status_code=204)
async def revoke_user(request: Request, context: Ctx, caller: Admin, name: Name) -> None:
    """Revoke all tokens of a user."""
    ids = [token["id"] for token in await context.keys.ls() if token["user"] == name]
    if not ids:
        raise NotFound(f"{name} has no tokens; GET /api/v1/users lists users with tokens")
    for token_id in ids:
        await context.keys.revoke(token_id)
    note(request, " ".join(ids))


@router.get("/audit", response_model=Page[AuditView])
async def audit(context: Ctx, caller: Admin, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Any:
    """List write requests, newest last."""
    return {"items": await context.keys.audits(limit)}
