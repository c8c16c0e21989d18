"""/api/v1/me, /tokens, /users, /audit: who may do what, and who did."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from levada.errors import NotFound
from levada.server.body import StrictRoute
from levada.server.context import Ctx
from levada.server.gate import Admin, Viewer, note
from levada.server.models import AuditView, MeView, Name, NewToken, NewTokenView, Page, TokenView, UserView
from levada.server.ports import Role

router = APIRouter(prefix="/api/v1", tags=["people"], route_class=StrictRoute)


@router.get("/me", response_model=MeView)
async def me(who: Viewer) -> Any:
    """Tell who you are."""
    return {"user": who.user, "role": who.role.word}


@router.get("/tokens", response_model=Page[TokenView])
async def tokens(context: Ctx, who: Admin) -> Any:
    """List all tokens, without their secrets."""
    return {"items": await context.keys.ls()}


@router.post("/tokens", status_code=201, response_model=NewTokenView)
async def create_token(request: Request, context: Ctx, who: Admin, wanted: NewToken) -> Any:
    """Make a token. Its secret is told only now."""
    user = wanted.user or who.user
    token_id, secret = await context.keys.create(user, Role.of(wanted.role), wanted.expires_s)
    note(request, f"{token_id}: {wanted.role} for {user}")
    return {"id": token_id, "token": secret, "user": user, "role": wanted.role}


@router.delete("/tokens/{token_id}", status_code=204)
async def revoke_token(context: Ctx, who: Admin, token_id: Name) -> None:
    """End a token."""
    await context.keys.revoke(token_id)


@router.get("/users", response_model=Page[UserView])
async def users(context: Ctx, who: Admin) -> Any:
    """List everybody who has a token."""
    highest: dict[str, Role] = {}
    count: dict[str, int] = {}
    for token in await context.keys.ls():
        name, role = token["user"], Role.of(token["role"])
        highest[name] = max(role, highest.get(name, role))
        count[name] = count.get(name, 0) + 1
    return {"items": [{"name": name, "role": highest[name].word, "tokens": count[name]} for name in sorted(count)]}


@router.delete("/users/{name}", status_code=204)
async def revoke_user(request: Request, context: Ctx, who: Admin, name: Name) -> None:
    """End all tokens of a user."""
    ids = [token["id"] for token in await context.keys.ls() if token["user"] == name]
    if not ids:
        raise NotFound(f"{name} has no tokens; GET /api/v1/users lists who has")
    for token_id in ids:
        await context.keys.revoke(token_id)
    note(request, " ".join(ids))


@router.get("/audit", response_model=Page[AuditView])
async def audit(context: Ctx, who: Admin, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Any:
    """List who changed what, newest last."""
    return {"items": await context.keys.audits(limit)}
