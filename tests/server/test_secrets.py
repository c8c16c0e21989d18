"""The secrets of a server: made once, by who may act, and not more of them with each start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from levada.live.store import LeaseLost, Store
from levada.server.home import Home
from levada.server.secrets import Secrets


def home(folder: Path) -> Home:
    made = Home(folder)
    made.make()
    return made


def test_fresh_folders_on_one_store_leave_few_tokens_behind(tmp_path: Path) -> None:
    async def story() -> None:
        store = await Store.open(f"sqlite:///{tmp_path}/levada.db")
        lease = await store.acquire("me", 0.0, 1e9)
        assert lease is not None
        keys: set[bytes] = set()
        for number in range(6):
            secret = Secrets(home(tmp_path / str(number)), store)
            await secret.prepare(lease)
            keys.add(secret.worker_key)
            tokens = await secret.keys.ls()
            assert len(tokens) == min(number + 1, 4)
            assert await secret.keys.find(secret.token) is not None
        again = Secrets(home(tmp_path / "5"), store)
        await again.prepare(lease)
        assert (again.token, len(await again.keys.ls())) == (secret.token, 4), "a folder that has one keeps it"
        assert keys == {again.worker_key}
        await store.close()

    asyncio.run(story())


def test_who_has_lost_the_lease_makes_none(tmp_path: Path) -> None:
    async def story() -> None:
        store = await Store.open(f"sqlite:///{tmp_path}/levada.db")
        first = await store.acquire("one", 0.0, 1.0)
        second = await store.acquire("two", 2.0, 1.0)
        assert first is not None
        assert second is not None
        late = Secrets(home(tmp_path / "one"), store)
        with pytest.raises(LeaseLost):
            await late.prepare(first)
        assert await late.keys.ls() == []
        chosen = Secrets(home(tmp_path / "two"), store)
        await chosen.prepare(second)
        assert await store.setting("worker_key") == chosen.worker_key.hex()
        await store.close()

    asyncio.run(story())
