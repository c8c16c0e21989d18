"""Retention: the database stays small, a start is fast, promised data stays."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import func, select, text, update

from levada.errors import BadInput, LevadaError
from levada.live import loop, retention
from levada.live.recover import recover
from levada.live.retention import Keep, RetentionTask
from levada.live.store import AuditEntry, Changes, Expired, HistoryLine, JobRow, LeaseLost, Store, StoreLease, tables
from levada.live.store.audit import AuditLog
from tests.live.fake_backend import FakeMachines
from tests.live.live_server import LiveServer, damage_snapshots, document, live_server
from tests.live.test_store import lease_of, open_store
from tests.timeouts import WAIT_S

_DAY_S = 86_400.0


async def count(store: Store, table: Any) -> int:
    return await store.database.read(
        lambda connection: connection.execute(select(func.count()).select_from(table)).scalar_one()
    )


async def turns_of(store: Store) -> list[int]:
    return [sequence async for sequence, _, _ in store.entries(0)]


async def filled(store: Store, turns: int, snapshots: tuple[int, ...]) -> StoreLease:
    """Write a log of this many turns, with snapshots after some."""
    lease = await lease_of(store)
    for turn in range(1, turns + 1):
        lease = await store.append(lease, Changes(at=float(turn), entry=b"turn %d" % turn))
        if turn in snapshots:
            await store.save_snapshot(lease, float(turn), b"state")
    return lease


async def test_log_entries_covered_by_two_snapshots_are_trimmed_in_batches(url: str) -> None:
    async with open_store(url) as store:
        lease = await filled(store, 12, (8,))
        assert await store.trim(lease, Expired(turn=8), 5) == 0
        lease = await store.append(lease, Changes(at=13.0, entry=b"turn 13"))
        await store.save_snapshot(lease, 13.0, b"state")
        assert await store.trim(lease, Expired(turn=13), 5) == 0
        assert await store.trim(lease, Expired(turn=8), 5) == 5
        assert await turns_of(store) == list(range(6, 14))
        assert await store.trim(lease, Expired(turn=8), 5) == 3
        assert await store.trim(lease, Expired(turn=8), 5) == 0
        assert await turns_of(store) == list(range(9, 14))
        assert await store.first_entry() == 9


async def test_without_the_lease_nothing_is_trimmed(url: str) -> None:
    async with open_store(url) as store:
        lease = await filled(store, 6, (3, 6))
        assert await store.acquire("another", 10**12, 15.0) is not None
        with pytest.raises(LeaseLost):
            await store.trim(lease, Expired(turn=3, history_before=1e12, jobs_before=1e12, audit_before=1e12), 500)
        with pytest.raises(LeaseLost):
            await store.shrink(lease)
        assert await turns_of(store) == list(range(1, 7))


async def test_history_audit_and_jobs_expire_by_age_and_listed_jobs_stay(url: str) -> None:
    async with open_store(url) as store:
        lease, log = await lease_of(store), AuditLog(store.database)
        lines = [HistoryLine(id=at, at=float(at), job=None, type="note", text="x") for at in range(1, 10)]
        jobs = [JobRow(id=f"j{at}", number=at, user="ann", submitted=0.0, about=b"{}") for at in range(4)]
        lease = await store.append(lease, Changes(at=1.0, entry=b"x", history=lines, jobs=jobs))
        ends = [(0, 2.0, b"{}"), (1, 2.0, b"{}"), (2, 90.0, b"{}")]
        lease = await store.append(lease, Changes(at=2.0, entry=b"y", ended=ends))
        await store.forget(lease, 95.0, requests_before=0.0, jobs=[(0, "j0"), (2, "j2")])
        for _ in range(3):
            await log.append(AuditEntry(user="ann", role="user", method="POST", path="/", status=200))
        while await store.trim(lease, Expired(history_before=6.0, jobs_before=50.0, audit_before=0.0), 2):
            pass
        assert [line.id for line in await store.history()] == [6, 7, 8, 9]
        numbers = await store.database.read(
            lambda connection: connection.execute(select(tables.jobs.c.number)).scalars().all()
        )
        assert sorted(numbers) == [1, 2, 3]
        assert len(await log.last(10)) == 3
        while await store.trim(lease, Expired(history_before=1e12, jobs_before=50.0, audit_before=1e12), 2):
            pass
        # The newest entries stay, so that no number is reused.
        assert [line.id for line in await store.history()] == [9]
        assert len(await log.last(10)) == 1


async def test_event_ids_are_never_reused(url: str) -> None:
    async with open_store(url) as store:
        lease = await lease_of(store)
        job = JobRow(id="a", number=0, user="ann", submitted=0.0, about=b"{}")
        lines = [HistoryLine(id=at, at=1.0, job="a", type="note", text="x") for at in (1, 2)]
        lease = await store.append(lease, Changes(at=1.0, entry=b"x", jobs=[job], history=lines))
        for _ in range(2):
            await store.forget(lease, 2.0, requests_before=0.0, jobs=[(0, "a")])
            assert await store.history() == []
            assert await store.last_history() == 2


# --- with a server ----------------------------------------------------------------------------------------------------


def retention_task(up: LiveServer, **keep: float) -> RetentionTask:
    return RetentionTask(up.live.loop, Keep(**keep))


async def work(up: LiveServer, jobs: int) -> None:
    """Submit jobs and run them to their end."""
    for _ in range(jobs):
        (view,) = await up.service.submissions.submit([document()], user="ann", key=None)
        await up.until(lambda: up.phase(view["id"]) == "Running")  # noqa: B023
        up.backend.finish(view["id"])
        await up.until(lambda: up.phase(view["id"]) == "Succeeded")  # noqa: B023


async def test_a_server_starts_from_a_trimmed_log(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SNAPSHOT_TURNS", 20)

    machines = FakeMachines()
    async with live_server(url, machines) as up:
        (running,) = await up.service.submissions.submit([document("running")], user="ann", key=None)
        await work(up, 25)
        events = await up.service.history.events(job=running["id"], after=0, limit=1000)
        assert await retention_task(up).once() > 20
        assert (await turns_of(up.live.store))[0] > 20
        await up.settle()
        await up.kill()
    async with live_server(url, machines) as up:
        assert up.phase(running["id"]) == "Running"
        assert await up.service.history.events(job=running["id"], after=0, limit=1000) == events
        assert len([op for op in machines.taken if op.job == running["id"]]) == 1
        await work(up, 1)


async def test_a_damaged_newest_snapshot_falls_back_to_the_one_before(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SNAPSHOT_TURNS", 20)

    machines = FakeMachines()
    async with live_server(url, machines) as up:
        (running,) = await up.service.submissions.submit([document("running")], user="ann", key=None)
        await work(up, 25)
        await retention_task(up).once()
        await up.settle()
        await up.kill()
    store = await Store.open(url)
    newest = await store.database.read(
        lambda connection: connection.execute(select(func.max(tables.snapshots.c.sequence))).scalar_one()
    )
    row = tables.snapshots.c
    spoil = update(tables.snapshots).where(row.sequence == newest).values(body=b"levada snapshot 1 x\nspoilt")
    await store.database.write(lambda connection: connection.execute(spoil))
    await store.close()
    async with live_server(url, machines) as up:
        assert up.phase(running["id"]) == "Running"
        assert len([op for op in machines.taken if op.job == running["id"]]) == 1
        await work(up, 10)
        # A damaged snapshot covers no turn.
        await retention_task(up).once()
        await up.kill()
    async with live_server(url, machines) as up:
        assert up.phase(running["id"]) == "Running"


async def test_a_trimmed_log_without_a_snapshot_says_what_to_do(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SNAPSHOT_TURNS", 20)

    async with live_server(url) as up:
        await work(up, 20)
        await retention_task(up).once()
    await damage_snapshots(url)
    store = await Store.open(url)
    try:
        first = await store.first_entry()
        with pytest.raises(LevadaError, match=rf"damaged\).*begins with turn {first}.*restore a backup") as caught:
            await recover(store, first)
        assert "\n" not in str(caught.value)
    finally:
        await store.close()


async def test_a_watch_from_a_trimmed_event_reports_the_gap_and_continues(url: str) -> None:
    async with live_server(url) as up:
        await work(up, 3)
        last = up.service.history.last_event()
        old = text("UPDATE history SET at = 1 WHERE id <= 5")
        await up.live.store.database.write(lambda connection: connection.execute(old))
        assert await retention_task(up).once() == 5
        gap, *rest = await up.service.history.events(job=None, after=2, limit=1000)
        assert (gap["type"], gap["id"], gap["job"]) == ("gap", 5, None)
        assert "removed by retention" in gap["text"]
        assert [line["id"] for line in rest] == list(range(6, last + 1))
        assert [line["id"] for line in await up.service.history.events(job=None, after=2, limit=2)] == [5, 6]
        # A watch from the start, or without missed events, reports no gap.
        for after in (0, 5, 7):
            assert all(
                line["type"] != "gap" for line in await up.service.history.events(job=None, after=after, limit=1000)
            )
        seen = []
        async for line in up.service.history.watch(after=2, job=None):
            seen.append(line["id"])
            if line["id"] == last:
                break
        assert seen == list(range(5, last + 1))


async def size_of(store: Store, path: Path) -> int:
    """The size of the database file after a checkpoint of its journal."""
    await store.database.write(lambda connection: connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)")).all())
    return path.stat().st_size


async def test_the_database_file_does_not_grow_over_thousands_of_entries(sqlite_url: str) -> None:
    path, running = Path(sqlite_url.removeprefix("sqlite:///")), 200

    async with open_store(sqlite_url) as store:
        lease, sizes = await lease_of(store), []
        for turn in range(1, 4001):
            line = HistoryLine(id=turn, at=float(turn), job=None, type="note", text="x" * 100)
            lease = await store.append(lease, Changes(at=float(turn), entry=os.urandom(1000), history=[line]))
            if turn % running == 0:
                await store.save_snapshot(lease, float(turn), os.urandom(20_000))
                while await store.trim(lease, Expired(turn=turn - 2 * running, history_before=turn - running), 50):
                    pass
            if turn % 1000 == 0:
                sizes.append(await size_of(store, path))
        assert await count(store, tables.log) == 2 * running
        assert max(sizes) < 1.1 * sizes[0], sizes


async def test_a_server_trims_its_log_automatically(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SNAPSHOT_TURNS", 30)
    monkeypatch.setattr("levada.live.live._CLEANUP_S", 0.05)
    monkeypatch.setattr(retention, "_EVERY_S", 0.05)
    monkeypatch.setattr(retention, "_PAUSE_S", 0.0)
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    # These jobs are not listed afterwards.
    brief = document(ttl="0s", gpusPerWorker=0)

    async def lap(up: LiveServer, turns: int) -> int:
        store, end = up.live.store, up.live.loop.lease.sequence + turns
        while up.live.loop.lease.sequence < end:
            views = await up.service.submissions.submit([brief] * 4, user="ann", key=None)
            await up.until(lambda: all(view["id"] in up.backend.machines.runs for view in views))  # noqa: B023
            for view in views:
                up.backend.finish(view["id"])
        await up.until(lambda: not up.live.loop.records.by_id)
        async with asyncio.timeout(WAIT_S):
            while await count(store, tables.log) > 150:
                await asyncio.sleep(0.01)
        return await size_of(store, path)

    async with live_server(sqlite_url) as up:
        sizes = [await lap(up, 180) for _ in range(3)]
        # Ended jobs are kept for accounting; only their rows grow.
        row = "SELECT sum(length(about) + length(result)) FROM jobs"
        jobs = await up.live.store.database.read(lambda connection: connection.execute(text(row)).scalar_one())
        assert sizes[-1] - sizes[0] < 2.5 * jobs


async def test_free_pages_are_returned_to_the_disk(sqlite_url: str) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))

    async with open_store(sqlite_url) as store:
        lease = await filled(store, 3, ())
        for _ in range(20):
            lease = await store.append(lease, Changes(at=1.0, entry=os.urandom(1 << 20)))
        await store.save_snapshot(lease, 1.0, b"state")
        last = lease.sequence
        lease = await store.append(lease, Changes(at=2.0, entry=b"x"))
        await store.save_snapshot(lease, 2.0, b"state")
        assert await store.trim(lease, Expired(turn=last), 500) == last
        while await store.shrink(lease):
            pass
        await store.database.write(lambda connection: connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)")).all())
        assert path.stat().st_size < 8 << 20
        # Some free pages stay for reuse.
        assert (
            await store.database.read(lambda connection: connection.execute(text("PRAGMA freelist_count")).scalar_one())
            > 500
        )


_TRIM = """
import asyncio, sys
from levada.live import retention
from levada.live.live import Live
from levada.live.store import Store
from tests.live.fake_backend import FakeBackend, FakeMachines

retention._BATCH = 3

async def main():
    live = Live(await Store.open(sys.argv[1]), FakeBackend(FakeMachines()))
    await live.open()
    trim = live.store.trim

    async def printing_trim(*arguments):
        removed = await trim(*arguments)
        print(removed, flush=True)
        return removed

    live.store.trim = printing_trim
    await retention.RetentionTask(live.loop, retention.Keep()).once()

asyncio.run(main())
"""


async def test_a_kill_during_trimming_leaves_a_consistent_log(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SNAPSHOT_TURNS", 40)
    machines = FakeMachines()
    async with live_server(url, machines) as up:
        (running,) = await up.service.submissions.submit([document("running")], user="ann", key=None)
        await work(up, 30)
        await up.settle()
        await up.kill()
        job, written = running["id"], up.live.loop.lease.sequence
    for portions in (1, 4, 2):
        child = subprocess.Popen([sys.executable, "-c", _TRIM, url], stdout=subprocess.PIPE)
        assert child.stdout is not None
        for _ in itertools.islice(child.stdout, portions):
            pass
        child.send_signal(signal.SIGKILL)
        child.wait(15)
        child.stdout.close()

    store = await Store.open(url)
    turns = await turns_of(store)
    assert turns[0] > 1
    assert turns == list(range(turns[0], turns[-1] + 1))
    assert turns[-1] >= written
    oldest = await store.database.read(
        lambda connection: connection.execute(select(func.min(tables.snapshots.c.sequence))).scalar_one()
    )
    assert turns[0] <= oldest + 1
    recovered = await recover(store, turns[-1])
    assert recovered.engine.query.job(job) is not None
    assert not recovered.differing
    await store.close()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"events": 3600.0}, "a day or more"),
        ({"events": float("nan")}, "a day or more"),
        ({"evnets": 9e9}, "did you mean events"),
        ({"logs": 9e9}, "events, jobs, audit can be kept"),
    ],
)
def test_invalid_retention_times_are_one_line_errors(given: dict[str, float], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        Keep.of(given)


def test_default_retention_matches_the_docs() -> None:
    assert msgspec.to_builtins(Keep()) == {"events": 90 * _DAY_S, "jobs": 400 * _DAY_S, "audit": 400 * _DAY_S}
