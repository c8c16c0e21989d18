"""What the store promises, on SQLite and on PostgreSQL: all or nothing, one who acts, nothing forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from levada.errors import BadInput, LevadaError
from levada.live.store import Changes, Deed, HistoryLine, JobRow, Lease, LeaseLost, RequestRow, Store, StoreTrouble
from levada.live.store.database import Database
from levada.live.store.keys import KeyStore


def with_store(url: str, story: Callable[[Store], Awaitable[None]]) -> None:
    async def run() -> None:
        store = await Store.open(url)
        try:
            await story(store)
        finally:
            await store.close()

    asyncio.run(run())


def changes(at: float = 1.0, **fields: object) -> Changes:
    return Changes(at=at, **{"entry": b"turn", **fields})  # type: ignore[arg-type]


def _deed(path: str) -> Deed:
    return Deed(user="ann", role="user", method="POST", path=path, status=201)


async def lease_of(store: Store, holder: str = "me", now: float = 0.0) -> Lease:
    lease = await store.acquire(holder, now, 10.0)
    assert lease is not None
    return lease


def test_what_is_appended_comes_back_in_order(url: str) -> None:
    async def story(store: Store) -> None:
        lease = await lease_of(store)
        job = JobRow(id="a", number=0, user="ann", submitted=1.5, about=b'{"x": 1}')
        line = HistoryLine(id=1, at=1.0, job="a", type="phase", text="It runs.", data={"phase": "Running"})
        lease = await store.append(lease, changes(jobs=[job], history=[line]))
        lease = await store.append(lease, changes(2.0, entry=b"\x00two", ended=[(0, 2.0, b'{"y": 2}')]))
        assert lease.sequence == 2
        assert [entry async for entry in store.entries(0)] == [(1, 1.0, b"turn"), (2, 2.0, b"\x00two")]
        assert [entry async for entry in store.entries(1)] == [(2, 2.0, b"\x00two")]
        (found,) = await store.jobs(0.0)
        assert (found.id, found.about, found.ended, found.result) == ("a", b'{"x": 1}', 2.0, b'{"y": 2}')
        assert await store.jobs(3.0) == []
        assert await store.history(job="a") == [line]
        assert await store.last_history() == 1

    with_store(url, story)
    with_store(url, story_after)


async def story_after(store: Store) -> None:
    """After a restart of the program all of it is there."""
    assert len([entry async for entry in store.entries(0)]) == 2
    assert await store.last_history() == 1


def test_an_append_that_is_repeated_counts_once(url: str) -> None:
    async def story(store: Store) -> None:
        lease = await lease_of(store)
        after = await store.append(lease, changes())
        # As after a commit whose answer got lost.
        assert await store.append(lease, changes()) == after
        with pytest.raises(LeaseLost):
            await store.append(lease, changes(entry=b"other"))
        assert len([entry async for entry in store.entries(0)]) == 1

    with_store(url, story)


def test_only_one_acts_and_who_lost_the_lease_writes_nothing(url: str) -> None:
    async def story(store: Store) -> None:
        mine = await lease_of(store)
        assert await store.acquire("you", 5.0, 10.0) is None
        mine = await store.append(mine, changes())
        await store.renew(mine, 8.0, 10.0)
        assert await store.acquire("you", 15.0, 10.0) is None
        yours = await lease_of(store, "you", 18.5)
        assert yours.epoch == mine.epoch + 1
        assert yours.sequence == 1
        with pytest.raises(LeaseLost):
            await store.append(mine, changes())
        with pytest.raises(LeaseLost):
            await store.renew(mine, 19.0, 10.0)
        await store.append(yours, changes())
        await store.release(msgspec_replace(yours))
        assert await store.acquire("me", 19.0, 10.0) is not None

    with_store(url, story)


def msgspec_replace(lease: Lease) -> Lease:
    return Lease(epoch=lease.epoch, sequence=lease.sequence + 1, holder=lease.holder)


def test_many_who_want_the_lease_at_once_get_it_once(url: str) -> None:
    async def story(store: Store) -> None:
        got = await asyncio.gather(*(store.acquire(f"s{n}", 0.0, 10.0) for n in range(8)), return_exceptions=True)
        assert sum(isinstance(each, Lease) for each in got) == 1

    with_store(url, story)


def test_a_turn_that_cannot_be_written_whole_leaves_nothing(url: str) -> None:
    async def story(store: Store) -> None:
        lease = await lease_of(store)
        job = JobRow(id="a", number=0, user="ann", submitted=1.0, about=b"{}")
        lease = await store.append(lease, changes(jobs=[job]))
        with pytest.raises(Exception, match=r"(?i)unique"):
            await store.append(lease, changes(entry=b"twice", jobs=[job]))
        assert [body async for _, _, body in store.entries(0)] == [b"turn"]
        await store.append(lease, changes(entry=b"next"))

    with_store(url, story)


def test_snapshots_the_newest_first_and_only_a_few(url: str) -> None:
    async def story(store: Store) -> None:
        lease = await lease_of(store)
        for sequence in range(1, 7):
            lease = msgspec.structs.replace(lease, sequence=sequence)
            await store.save_snapshot(lease, float(sequence), bytes([sequence]) * 100_000)
        found = [(sequence, body[:1]) async for sequence, body in store.snapshots()]
        assert found == [(6, b"\x06"), (5, b"\x05"), (4, b"\x04")]

    with_store(url, story)


def test_keys_of_submissions_are_remembered_and_forgotten(url: str) -> None:
    async def story(store: Store) -> None:
        lease = await lease_of(store)
        row = RequestRow(user="ann", key="k", digest="d", answer=b'["a"]', at=1.0)
        await store.append(lease, changes(requests=[row]))
        assert await store.request("ann", "k") == row
        assert await store.request("bob", "k") is None
        await store.forget(lease, 3.0, requests_before=2.0, jobs=[])
        assert await store.request("ann", "k") is None

    with_store(url, story)


def test_tokens_are_hashed_expire_and_are_revoked(url: str) -> None:
    async def story(store: Store) -> None:
        keys = KeyStore(store.database)
        token_id, secret = await keys.create("ann", "user", None)
        assert await keys.find(secret) == ("ann", "user", token_id)
        assert await keys.find(secret + "x") is None
        _, over = await keys.create("bob", "viewer", -1.0)
        assert await keys.find(over) is None
        rows = await store.database.read(lambda connection: connection.execute(text("SELECT * FROM tokens")).all())
        assert secret not in str(rows)
        await keys.revoke(token_id)
        assert await keys.find(secret) is None
        with pytest.raises(LevadaError, match="no token"):
            await keys.revoke(token_id)
        await keys.audit(_deed("/api/v1/jobs"))
        assert [note["path"] for note in await keys.audits(10)] == ["/api/v1/jobs"]

    with_store(url, story)


class Delayed:
    """A real database whose answers and refusals a test holds back."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.answered, self.go = asyncio.Event(), asyncio.Event()

    async def read(self, work: Callable[[Any], Any]) -> Any:
        found = await self._database.read(work)
        self.answered.set()
        await self.go.wait()
        return found

    async def write(self, work: Callable[[Any], Any]) -> Any:
        return await self._database.write(work)


def test_a_token_that_is_revoked_while_it_is_looked_up_is_not_remembered(url: str) -> None:
    async def story(store: Store) -> None:
        delayed = Delayed(store.database)
        keys = KeyStore(delayed)  # type: ignore[arg-type]
        token_id, secret = await keys.create("ann", "user", None)
        looking = asyncio.create_task(keys.find(secret))
        await delayed.answered.wait()
        await keys.revoke(token_id)
        delayed.go.set()
        await looking
        assert await keys.find(secret) is None

    with_store(url, story)


def test_who_stops_waiting_for_a_revoke_does_not_keep_the_token_alive(url: str) -> None:
    async def story(store: Store) -> None:
        keys = KeyStore(store.database)
        token_id, secret = await keys.create("ann", "user", None)
        revoking = asyncio.create_task(keys.revoke(token_id))
        await asyncio.sleep(0)
        await keys.find(secret)
        revoking.cancel()
        async with asyncio.timeout(10.0):
            while await keys.find(secret) is not None:
                await asyncio.sleep(0.01)

    with_store(url, story)


def test_one_who_stops_waiting_for_a_note_does_not_keep_others_waiting(tmp_path: Path) -> None:
    async def story(store: Store) -> None:
        keys = KeyStore(store.database)
        await store.database.write(lambda connection: connection.execute(text("DROP TABLE audit")))
        notes = [asyncio.create_task(keys.audit(_deed(path))) for path in ("/a", "/b")]
        await asyncio.sleep(0)
        notes[0].cancel()
        async with asyncio.timeout(10.0):
            with pytest.raises(LevadaError, match="no such table"):
                await notes[1]

    with_store(f"sqlite:///{tmp_path}/levada.db", story)


async def shape(store: Store) -> str:
    wanted = text("SELECT version_num FROM alembic_version")
    return str(await store.database.read(lambda connection: connection.execute(wanted).scalar()))


def test_jobs_of_a_database_of_the_first_shape_are_kept(url: str) -> None:
    def as_it_was(connection: Connection) -> None:
        config = Config()
        config.set_main_option("script_location", "levada.live.store:migrations")
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(
            text("INSERT INTO jobs (id, number, \"user\", submitted, about) VALUES ('old', 7, 'ann', 1.5, '{}')")
        )

    async def first() -> None:
        database = Database(url)
        await database.write(as_it_was)
        await database.close()

    async def now(store: Store) -> None:
        assert await shape(store) == "0001", "another server may act on it"
        with pytest.raises(LeaseLost):
            await store.migrate(Lease(epoch=7, sequence=0, holder="nobody"))
        assert await shape(store) == "0001"
        await store.migrate(await lease_of(store))
        assert [(job.id, job.number, job.user) for job in await store.jobs(0.0)] == [("old", 7, "ann")]
        await store.append(await lease_of(store), changes(ended=[(7, 2.0, b"{}")]))
        assert [job.ended for job in await store.jobs(0.0)] == [2.0]
        assert [job.number for job in await store.past_jobs(["old"])] == [7]

    asyncio.run(first())
    with_store(url, now)


def test_a_database_of_a_newer_version_is_refused_and_stays_as_it_is(url: str) -> None:
    async def newer(store: Store) -> None:
        change = text("UPDATE alembic_version SET version_num = '9999'")
        await store.database.write(lambda connection: connection.execute(change))

    with_store(url, newer)
    with pytest.raises(LevadaError, match=r"newer Levada \(shape 9999\)"):
        asyncio.run(Store.open(url))


def test_what_sqlite_says_is_written_is_on_the_disk(sqlite_url: str) -> None:
    async def story(store: Store) -> None:
        for ask in (store.database.read, store.database.write):
            assert await ask(lambda connection: connection.execute(text("PRAGMA synchronous")).scalar()) == 2  # FULL
            assert await ask(lambda connection: connection.execute(text("PRAGMA journal_mode")).scalar()) == "wal"

    with_store(sqlite_url, story)


def test_what_is_no_database_says_so(tmp_path: Path) -> None:
    path = tmp_path / "levada.db"
    path.write_bytes(b"this is no database at all, however long one looks at it" * 100)
    with pytest.raises(StoreTrouble, match="damaged"):
        asyncio.run(Store.open(f"sqlite:///{path}"))
    with pytest.raises(StoreTrouble, match="let the server write there"):
        asyncio.run(Store.open(f"sqlite:///{tmp_path}/nowhere/levada.db"))
    with pytest.raises(BadInput, match="must begin with sqlite: or postgresql:"):
        asyncio.run(Store.open("mysql://x"))
    with pytest.raises(StoreTrouble, match="is it up"):
        asyncio.run(Store.open("postgresql://levada@127.0.0.1:1/x"))
