"""The keys of a store as the HTTP layer knows them: roles with an order, times as text."""

from __future__ import annotations

from levada.live.store import Deed
from levada.live.store.keys import KeyStore
from levada.live.views import moment
from levada.server.ports import Json, Principal, Role


class StoredKeys:
    """Keys that are kept in a store."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store

    async def create(self, user: str, role: Role, expires_s: float | None) -> tuple[str, str]:
        """A new token's id and secret; the secret is told only now."""
        return await self._store.create(user, role.word, expires_s)

    async def find(self, secret: str) -> Principal | None:
        """Who has this secret."""
        found = await self._store.find(secret)
        if found is None:
            return None
        user, role, token_id = found
        return Principal(user, Role.of(role), token_id)

    async def ls(self) -> list[Json]:
        """All tokens that are not revoked."""
        times = ("created", "expires", "last_used")
        return [{**token, **{name: moment(token[name]) for name in times}} for token in await self._store.ls()]

    async def revoke(self, token_id: str) -> None:
        """Ends a token; NotFound."""
        await self._store.revoke(token_id)

    async def audit(self, deed: Deed) -> None:
        """Notes a write, also one that was refused."""
        await self._store.audit(deed)

    async def audits(self, limit: int) -> list[Json]:
        """The last notes, newest last."""
        names = ("user", "role", "method", "path", "status", "detail")
        rows = await self._store.audits(limit)
        return [{"time": moment(row["at"]), **{name: row[name] for name in names}} for row in rows]
