"""Tokens, hashed at rest, and the log of who wrote what."""

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
from levada.live.store.values import Deed

#: Secrets begin so, that one can be told when it turns up where it should not be.
_MARK = "lvd_"


class KeyStore:
    """Tokens and audit of one store; roles are words here."""

    def __init__(self, database: Database) -> None:
        self._database = database
        #: Digests that were found, so that a busy client costs no query each time; forgotten at every change.
        self._known: dict[str, tuple[str, str, str, float | None]] = {}
        #: How often tokens were changed: what was read before a change is not kept after it.
        self._changes = 0
        self._used: dict[str, float] = {}
        self._notes: list[tuple[dict[str, Any], asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def create(self, user: str, role: str, expires_s: float | None) -> tuple[str, str]:
        """A new token's id and secret; the secret is told only now."""
        token_id, secret = secrets.token_hex(6), _MARK + secrets.token_urlsafe(32)
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
        """(user, role, token id) of this secret; None for one that is unknown, over or revoked.

        What is compared is a digest of 256 random bits: how long it takes tells nothing of the secret.
        """
        digest = _digest(secret)
        known = self._known.get(digest)
        if known is None:
            changes = self._changes
            row = tables.tokens.c
            wanted = select(row.user, row.role, row.id, row.expires).where(row.digest == digest, row.revoked.is_(None))
            found = await self._database.read(lambda connection: connection.execute(wanted).one_or_none())
            if found is None:
                return None
            known = (found.user, found.role, found.id, found.expires)
            if changes == self._changes:
                self._known[digest] = known
        user, role, token_id, expires = known
        if expires is not None and expires <= time.time():
            return None
        self._used[token_id] = time.time()
        return user, role, token_id

    async def ls(self) -> list[dict[str, Any]]:
        """All tokens that are not revoked."""
        row = tables.tokens.c
        wanted = select(tables.tokens).where(row.revoked.is_(None)).order_by(row.created)
        rows = await self._database.read(lambda connection: connection.execute(wanted).mappings().all())
        names = ("id", "user", "role", "created", "expires")
        return [{**{name: each[name] for name in names}, "last_used": self._used.get(each["id"])} for each in rows]

    async def revoke(self, token_id: str) -> None:
        """Ends a token; NotFound."""
        # Who gives up waiting does not keep it from being forgotten once it is written.
        if await asyncio.shield(self._end(token_id)) != 1:
            raise NotFound(f"there is no token {token_id}; `levada token ls` lists them")

    async def _end(self, token_id: str) -> int:
        row = tables.tokens.c
        change = update(tables.tokens).where(row.id == token_id, row.revoked.is_(None)).values(revoked=time.time())
        try:
            return await self._database.write(lambda connection: connection.execute(change).rowcount)
        finally:
            # Also where it is not sure whether it was written.
            self._changes += 1
            self._known.clear()

    async def audit(self, deed: Deed) -> None:
        """Notes a write, also one that was refused."""
        row = deed.row(time.time())
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._notes.append((row, done))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_notes())
        await done

    async def _write_notes(self) -> None:
        """Those that came while others were written share one commit."""
        while self._notes:
            notes, self._notes = self._notes, []
            try:
                await self._note([row for row, _ in notes])
            except Exception as broken:
                for _, done in notes:
                    if not done.done():
                        done.set_exception(broken)
                continue
            for _, done in notes:
                if not done.done():
                    done.set_result(None)

    async def _note(self, rows: list[dict[str, Any]]) -> None:
        await self._database.write(lambda connection: connection.execute(insert(tables.audit), rows))

    async def audits(self, limit: int) -> list[dict[str, Any]]:
        """The last notes, newest last."""
        wanted = select(tables.audit).order_by(tables.audit.c.id.desc()).limit(limit)
        rows = await self._database.read(lambda connection: connection.execute(wanted).mappings().all())
        return [dict(each) for each in reversed(rows)]


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
