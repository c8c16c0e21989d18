"""Credentials of a server: created once, by the leader."""

from __future__ import annotations

from pathlib import Path

import pytest

from levada.live.store import LeaseLost, Store
from levada.server.secrets import Secrets
from levada.server.state_dir import StateFolder


def home(folder: Path) -> StateFolder:
    state = StateFolder(folder)
    state.make()
    return state


async def test_owner_tokens_of_one_store_are_limited(tmp_path: Path) -> None:
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
    assert (again.token, len(await again.keys.ls())) == (secret.token, 4), "a directory with a token keeps it"
    assert keys == {again.worker_key}
    await store.close()


async def test_a_server_without_the_lease_creates_none(tmp_path: Path) -> None:
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
