"""Guarantees of the store on SQLite and PostgreSQL: atomicity, one leader, durability."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from levada.errors import BadInput, LevadaError
from levada.live.store import (
    AuditEntry,
    Changes,
    HistoryLine,
    JobRow,
    LeaseLost,
    RequestRow,
    Store,
    StoreError,
    StoreLease,
)
from levada.live.store.audit import AuditLog
from levada.live.store.database import Database
from levada.live.store.tokens import TokenStore


@asynccontextmanager
async def open_store(url: str) -> AsyncIterator[Store]:
    store = await Store.open(url)
    try:
        yield store
    finally:
        await store.close()


def changes(at: float = 1.0, **fields: object) -> Changes:
    return Changes(at=at, **{"entry": b"turn", **fields})  # type: ignore[arg-type]


def _audit_entry(path: str) -> AuditEntry:
    return AuditEntry(user="ann", role="user", method="POST", path=path, status=201)


async def lease_of(store: Store, holder: str = "me", now: float = 0.0) -> StoreLease:
    lease = await store.acquire(holder, now, 10.0)
    assert lease is not None
    return lease


async def test_appended_entries_are_read_in_order(url: str) -> None:
    async with open_store(url) as store:
        lease = await lease_of(store)
        job = JobRow(id="a", number=0, user="ann", submitted=1.5, about=b'{"x": 1}')
        line = HistoryLine(id=1, at=1.0, job="a", type="phase", text="It runs.", data={"phase": "Running"})
        lease = await store.append(lease, changes(jobs=[job], history=[line]))
        lease = await store.append(lease, changes(2.0, entry=b"\x00two", ended=[(0, 2.0, b'{"y": 2}')]))
        assert lease.sequence == 2
        assert [entry async for entry in store.entries(0)] == [(1, 1.0, b"turn"), (2, 2.0, b"\x00two")]
        assert [entry async for entry in store.entries(1)] == [(2, 2.0, b"\x00two")]
        (row,) = await store.jobs(0.0)
        assert (row.id, row.about, row.ended, row.result) == ("a", b'{"x": 1}', 2.0, b'{"y": 2}')
        assert await store.jobs(3.0) == []
        assert await store.history(job="a") == [line]
        assert await store.last_history() == 1
    async with open_store(url) as store:  # after a restart
        assert len([entry async for entry in store.entries(0)]) == 2
        assert await store.last_history() == 1


async def test_a_repeated_append_is_stored_once(url: str) -> None:
    async with open_store(url) as store:
        lease = await lease_of(store)
        after = await store.append(lease, changes())
        # Like after a commit without a confirmation.
        assert await store.append(lease, changes()) == after
        with pytest.raises(LeaseLost):
            await store.append(lease, changes(entry=b"other"))
        assert len([entry async for entry in store.entries(0)]) == 1


async def test_only_the_lease_holder_can_write(url: str) -> None:
    async with open_store(url) as store:
        first = await lease_of(store)
        assert await store.acquire("you", 5.0, 10.0) is None
        first = await store.append(first, changes())
        await store.renew(first, 8.0, 10.0)
        assert await store.acquire("you", 15.0, 10.0) is None
        second = await lease_of(store, "you", 18.5)
        assert second.epoch == first.epoch + 1
        assert second.sequence == 1
        with pytest.raises(LeaseLost):
            await store.append(first, changes())
        with pytest.raises(LeaseLost):
            await store.renew(first, 19.0, 10.0)
        await store.append(second, changes())
        await store.release(msgspec_replace(second))
        assert await store.acquire("me", 19.0, 10.0) is not None


def msgspec_replace(lease: StoreLease) -> StoreLease:
    return StoreLease(epoch=lease.epoch, sequence=lease.sequence + 1, holder=lease.holder)


async def test_concurrent_lease_requests_have_one_winner(url: str) -> None:
    async with open_store(url) as store:
        got = await asyncio.gather(*(store.acquire(f"s{n}", 0.0, 10.0) for n in range(8)), return_exceptions=True)
        assert sum(isinstance(result, StoreLease) for result in got) == 1


async def test_a_failed_append_leaves_nothing(url: str) -> None:
    async with open_store(url) as store:
        lease = await lease_of(store)
        job = JobRow(id="a", number=0, user="ann", submitted=1.0, about=b"{}")
        lease = await store.append(lease, changes(jobs=[job]))
        with pytest.raises(Exception, match=r"(?i)unique"):
            await store.append(lease, changes(entry=b"twice", jobs=[job]))
        assert [body async for _, _, body in store.entries(0)] == [b"turn"]
        await store.append(lease, changes(entry=b"next"))


async def test_snapshots_are_listed_newest_first_and_limited(url: str) -> None:
    async with open_store(url) as store:
        lease = await lease_of(store)
        for sequence in range(1, 7):
            lease = msgspec.structs.replace(lease, sequence=sequence)
            await store.save_snapshot(lease, float(sequence), bytes([sequence]) * 100_000)
        snapshots = [(sequence, body[:1]) async for sequence, body in store.snapshots()]
        assert snapshots == [(6, b"\x06"), (5, b"\x05"), (4, b"\x04")]


async def test_idempotency_keys_are_stored_and_expire(url: str) -> None:
    async with open_store(url) as store:
        lease = await lease_of(store)
        row = RequestRow(user="ann", key="k", digest="d", answer=b'["a"]', at=1.0)
        await store.append(lease, changes(requests=[row]))
        assert await store.request("ann", "k") == row
        assert await store.request("bob", "k") is None
        await store.forget(lease, 3.0, requests_before=2.0, jobs=[])
        assert await store.request("ann", "k") is None


async def test_tokens_are_hashed_expire_and_are_revoked(url: str) -> None:
    async with open_store(url) as store:
        tokens = TokenStore(store.database)
        token_id, secret = await tokens.create("ann", "user", None)
        assert await tokens.find(secret) == ("ann", "user", token_id)
        assert await tokens.find(secret + "x") is None
        _, over = await tokens.create("bob", "viewer", -1.0)
        assert await tokens.find(over) is None
        rows = await store.database.read(lambda connection: connection.execute(text("SELECT * FROM tokens")).all())
        assert secret not in str(rows)
        await tokens.revoke(token_id)
        assert await tokens.find(secret) is None
        with pytest.raises(LevadaError, match="no token"):
            await tokens.revoke(token_id)
        log = AuditLog(store.database)
        await log.append(_audit_entry("/api/v1/jobs"))
        assert [note["path"] for note in await log.last(10)] == ["/api/v1/jobs"]


class Delayed:
    """A real database with results that a test delays."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.answered, self.go = asyncio.Event(), asyncio.Event()

    async def read(self, work: Callable[[Any], Any]) -> Any:
        result = await self._database.read(work)
        self.answered.set()
        await self.go.wait()
        return result

    async def write(self, work: Callable[[Any], Any]) -> Any:
        return await self._database.write(work)


async def test_a_token_revoked_during_its_lookup_is_not_cached(url: str) -> None:
    async with open_store(url) as store:
        delayed = Delayed(store.database)
        tokens = TokenStore(delayed)  # type: ignore[arg-type]
        token_id, secret = await tokens.create("ann", "user", None)
        looking = asyncio.create_task(tokens.find(secret))
        await delayed.answered.wait()
        await tokens.revoke(token_id)
        delayed.go.set()
        await looking
        assert await tokens.find(secret) is None


async def test_a_cancelled_revoke_still_revokes_the_token(url: str) -> None:
    async with open_store(url) as store:
        tokens = TokenStore(store.database)
        token_id, secret = await tokens.create("ann", "user", None)
        revoking = asyncio.create_task(tokens.revoke(token_id))
        await asyncio.sleep(0)
        await tokens.find(secret)
        revoking.cancel()
        async with asyncio.timeout(10.0):
            while (owner := await tokens.find(secret)) is not None:
                await asyncio.sleep(0.01)
        assert owner is None


async def test_a_cancelled_note_does_not_block_others(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/levada.db") as store:
        log = AuditLog(store.database)
        await store.database.write(lambda connection: connection.execute(text("DROP TABLE audit")))
        notes = [asyncio.create_task(log.append(_audit_entry(path))) for path in ("/a", "/b")]
        await asyncio.sleep(0)
        notes[0].cancel()
        async with asyncio.timeout(10.0):
            with pytest.raises(LevadaError, match="no such table"):
                await notes[1]


async def shape(store: Store) -> str:
    wanted = text("SELECT version_num FROM alembic_version")
    return str(await store.database.read(lambda connection: connection.execute(wanted).scalar()))


async def test_jobs_of_the_first_database_schema_are_migrated(url: str) -> None:
    def as_it_was(connection: Connection) -> None:
        config = Config()
        config.set_main_option("script_location", "levada.live.store:migrations")
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(
            text("INSERT INTO jobs (id, number, \"user\", submitted, about) VALUES ('old', 7, 'ann', 1.5, '{}')")
        )

    database = Database(url)
    await database.write(as_it_was)
    await database.close()
    async with open_store(url) as store:
        assert await shape(store) == "0001", "another server may act on it"
        with pytest.raises(LeaseLost):
            await store.migrate(StoreLease(epoch=7, sequence=0, holder="other"))
        assert await shape(store) == "0001"
        await store.migrate(await lease_of(store))
        assert [(job.id, job.number, job.user) for job in await store.jobs(0.0)] == [("old", 7, "ann")]
        await store.append(await lease_of(store), changes(ended=[(7, 2.0, b"{}")]))
        assert [job.ended for job in await store.jobs(0.0)] == [2.0]
        assert [job.number for job in await store.past_jobs(["old"])] == [7]


async def test_a_newer_database_schema_is_rejected_and_unchanged(url: str) -> None:
    async with open_store(url) as store:
        change = text("UPDATE alembic_version SET version_num = '9999'")
        await store.database.write(lambda connection: connection.execute(change))
    with pytest.raises(LevadaError, match=r"newer Levada \(schema 9999\)"):
        await Store.open(url)


async def test_sqlite_commits_are_synced_to_disk(sqlite_url: str) -> None:
    async with open_store(sqlite_url) as store:
        for ask in (store.database.read, store.database.write):
            assert await ask(lambda connection: connection.execute(text("PRAGMA synchronous")).scalar()) == 2  # FULL
            assert await ask(lambda connection: connection.execute(text("PRAGMA journal_mode")).scalar()) == "wal"


async def test_a_file_that_is_not_a_database_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "levada.db"
    path.write_bytes(b"this is no database at all, however long one looks at it" * 100)
    with pytest.raises(StoreError, match="damaged"):
        await Store.open(f"sqlite:///{path}")
    with pytest.raises(StoreError, match="give the server write access"):
        await Store.open(f"sqlite:///{tmp_path}/nowhere/levada.db")
    with pytest.raises(BadInput, match="must begin with sqlite: or postgresql:"):
        await Store.open("mysql://x")
    with pytest.raises(StoreError, match="check that it runs"):
        await Store.open("postgresql://levada@127.0.0.1:1/x")
