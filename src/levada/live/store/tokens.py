"""API tokens, hashed at rest."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from typing import Any

from sqlalchemy import insert, select, update

from levada.errors import NotFound
from levada.live.store import tables
from levada.live.store.database import Database

#: Prefix of secrets, so that scanners recognize a leaked one.
_PREFIX = "lvd_"


class TokenStore:
    """Tokens of one store; roles are strings here."""

    def __init__(self, database: Database) -> None:
        self._database = database
        #: Cache of tokens by digest, so that a busy client costs no query; cleared at every change.
        self._known: dict[str, tuple[str, str, str, float | None]] = {}
        #: Number of changes: a row that was read before a change must not enter the cache after it.
        self._changes = 0
        self._used: dict[str, float] = {}

    async def create(self, user: str, role: str, expires_s: float | None) -> tuple[str, str]:
        """Create a token and return its id and secret; the secret is not stored."""
        token_id, secret = secrets.token_hex(6), _PREFIX + secrets.token_urlsafe(32)
        now = time.time()
        row = {
            "id": token_id,
            "user": user,
            "role": role,
            "digest": _digest(secret),
            "created": now,
            "expires": None if expires_s is None else now + expires_s,
            "revoked": None,
        }
        await self._database.write(lambda connection: connection.execute(insert(tables.tokens), row))
        return token_id, secret

    async def find(self, secret: str) -> tuple[str, str, str] | None:
        """Return (user, role, token id) of a secret; None if it is unknown, expired or revoked.

        The lookup compares digests of 256 random bits, so its timing reveals nothing about the secret.
        """
        digest = _digest(secret)
        known = self._known.get(digest)
        if known is None:
            changes = self._changes
            row = tables.tokens.c
            query = select(row.user, row.role, row.id, row.expires).where(row.digest == digest, row.revoked.is_(None))
            token = await self._database.read(lambda connection: connection.execute(query).one_or_none())
            if token is None:
                return None
            known = (token.user, token.role, token.id, token.expires)
            if changes == self._changes:
                self._known[digest] = known
        user, role, token_id, expires = known
        if expires is not None and expires <= time.time():
            return None
        self._used[token_id] = time.time()
        return user, role, token_id

    async def ls(self) -> list[dict[str, Any]]:
        """Return all tokens that are not revoked."""
        row = tables.tokens.c
        query = select(tables.tokens).where(row.revoked.is_(None)).order_by(row.created)
        rows = await self._database.read(lambda connection: connection.execute(query).mappings().all())
        names = ("id", "user", "role", "created", "expires")
        return [{**{name: row[name] for name in names}, "last_used": self._used.get(row["id"])} for row in rows]

    async def revoke(self, token_id: str) -> None:
        """Revoke a token; NotFound."""
        # A client that disconnects must not prevent the clearing of the cache.
        if await asyncio.shield(self._revoke(token_id)) != 1:
            raise NotFound(f"there is no token {token_id}; `levada token ls` lists them")

    async def _revoke(self, token_id: str) -> int:
        row = tables.tokens.c
        change = update(tables.tokens).where(row.id == token_id, row.revoked.is_(None)).values(revoked=time.time())
        try:
            return await self._database.write(lambda connection: connection.execute(change).rowcount)
        finally:
            # Also after an error: the commit may have succeeded.
            self._changes += 1
            self._known.clear()


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
