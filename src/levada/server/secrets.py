"""Credentials of a server: API tokens, owner's token, key of worker tokens.

The server that has the lease creates the owner's token and the key. So two servers that start at the same time create
one of each, and a standby creates none.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
from typing import cast

import msgspec

from levada.api.types import AuditView, TokenView
from levada.errors import NotFound
from levada.live.store import AuditEntry, Store, StoreLease
from levada.live.store.audit import AuditLog
from levada.live.store.database import Database
from levada.live.store.tokens import TokenStore
from levada.live.views import moment
from levada.server.interfaces import Principal, Role
from levada.server.state_dir import TOKEN, StateFolder

_WORKER_KEY, _OWNER_TOKENS = "worker_key", "owner_tokens"
#: Limit of owner tokens per store: servers that share a store each have a state directory. The oldest is revoked.
_MAX_OWNER_TOKENS = 4


def _owner() -> str:
    """Return the name of the user of this process; its uid if it has no name, e.g. in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


class StoredKeys:
    """`Keys` of a store: converts roles to `Role` and times to text."""

    def __init__(self, database: Database) -> None:
        self._tokens, self._audit_log = TokenStore(database), AuditLog(database)

    async def create(self, user: str, role: Role, expires_s: float | None) -> tuple[str, str]:
        """Create a token; return its id and its secret, which is not stored."""
        return await self._tokens.create(user, role.word, expires_s)

    async def find(self, secret: str) -> Principal | None:
        """Return the owner of a secret; None if it is unknown, expired or revoked."""
        owner = await self._tokens.find(secret)
        if owner is None:
            return None
        user, role, token_id = owner
        return Principal(user, Role.of(role), token_id)

    async def ls(self) -> list[TokenView]:
        """Return all tokens that are not revoked."""
        times = ("created", "expires", "last_used")
        tokens = await self._tokens.ls()
        return [cast(TokenView, {**token, **{name: moment(token[name]) for name in times}}) for token in tokens]

    async def revoke(self, token_id: str) -> None:
        """Revoke a token; NotFound."""
        await self._tokens.revoke(token_id)

    async def audit(self, audit_entry: AuditEntry) -> None:
        """Store an audit entry, also for a refused write."""
        await self._audit_log.append(audit_entry)

    async def audits(self, limit: int) -> list[AuditView]:
        """Return the last audit entries, newest last."""
        names = ("user", "role", "method", "path", "status", "detail")
        rows = await self._audit_log.last(limit)
        return [cast(AuditView, {"time": moment(row["at"]), **{name: row[name] for name in names}}) for row in rows]


class Secrets:
    """The owner's token and the worker key; empty before `prepare`."""

    def __init__(self, home: StateFolder, store: Store) -> None:
        self._home, self._store = home, store
        self.keys = StoredKeys(store.database)
        #: Token of the machine's owner, an admin; stored in the state directory, which only the owner can read.
        self.token = ""
        #: Unchanged after a restart, because workers keep running.
        self.worker_key = b""

    async def prepare(self, lease: StoreLease) -> None:
        """Load or create both; the caller has the *lease*."""
        key = await self._store.setting(_WORKER_KEY)
        if key is None:
            key = secrets.token_hex(32)
            await self._store.set_setting(_WORKER_KEY, key, lease)
        self.worker_key = bytes.fromhex(key)
        try:
            self.token = self._home.path(TOKEN).read_text().strip()
        except OSError:
            self.token = ""
        if not self.token or await self.keys.find(self.token) is None:
            self.token = await self._new_owner_token(lease)
            self._home.write(TOKEN, self.token)

    async def _new_owner_token(self, lease: StoreLease) -> str:
        """Create an owner's token and revoke the oldest ones beyond the limit."""
        stored = await self._store.setting(_OWNER_TOKENS)
        token_ids: list[str] = [] if stored is None else msgspec.json.decode(stored, type=list[str])
        token_id, token = await self.keys.create(_owner(), Role.ADMIN, None)
        token_ids.append(token_id)
        for old in token_ids[:-_MAX_OWNER_TOKENS]:
            with contextlib.suppress(NotFound):  # an admin has revoked it
                await self.keys.revoke(old)
        token_ids = token_ids[-_MAX_OWNER_TOKENS:]
        await self._store.set_setting(_OWNER_TOKENS, msgspec.json.encode(token_ids).decode(), lease)
        return token
