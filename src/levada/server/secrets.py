"""The secrets of a server: its owner's token, and the key that signs the tokens of workers.

Both are made by the server that has the lease, so that two that start at once make one of each, and one that may not
act makes none.
"""

from __future__ import annotations

import contextlib
import getpass
import secrets

import msgspec

from levada.errors import NotFound
from levada.live.store import Lease, Store
from levada.live.store.keys import KeyStore
from levada.server.home import TOKEN, Home
from levada.server.keys import StoredKeys
from levada.server.ports import Role

_WORKER_KEY, _OWNER_TOKENS = "worker_key", "owner_tokens"
#: Owners' tokens of one store, for servers that take turns, each with a folder of its own. The oldest is revoked.
_MOST_OWNERS = 4


class Secrets:
    """Known after `prepare`."""

    def __init__(self, home: Home, store: Store) -> None:
        self._home, self._store = home, store
        self.keys = StoredKeys(KeyStore(store.database))
        #: The token of the machine's owner, an admin: kept beside the server, where only they can read it.
        self.token = ""
        #: The same after a restart: workers live on.
        self.worker_key = b""

    async def prepare(self, lease: Lease) -> None:
        """Finds or makes them, for who has the *lease*."""
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
            self.token = await self._new_owner(lease)
            self._home.write(TOKEN, self.token)

    async def _new_owner(self, lease: Lease) -> str:
        """A new token of the owner; those of folders that are no longer used do not pile up."""
        known = await self._store.setting(_OWNER_TOKENS)
        made: list[str] = [] if known is None else msgspec.json.decode(known, type=list[str])
        token_id, token = await self.keys.create(getpass.getuser(), Role.ADMIN, None)
        made.append(token_id)
        for old in made[:-_MOST_OWNERS]:
            with contextlib.suppress(NotFound):  # somebody revoked it
                await self.keys.revoke(old)
        await self._store.set_setting(_OWNER_TOKENS, msgspec.json.encode(made[-_MOST_OWNERS:]).decode(), lease)
        return token
