"""A database that is used for months stays small, a start needs little of it, and users find what they were promised."""

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
from levada.live import loop, trimming
from levada.live.recover import recover
from levada.live.store import Changes, Deed, HistoryLine, JobRow, Lease, LeaseLost, Spare, Store, tables
from levada.live.store.keys import KeyStore
from levada.live.trimming import Keep, Trimming
from tests.live.house import House, damage_snapshots, document, house
from tests.live.rehearsal import Stage
from tests.live.test_store import lease_of, with_store
from tests.patience import WAIT_S

_DAY_S = 86_400.0


async def count(store: Store, table: Any) -> int:
    return await store.database.read(
        lambda connection: connection.execute(select(func.count()).select_from(table)).scalar_one()
    )


async def turns_of(store: Store) -> list[int]:
    return [sequence async for sequence, _, _ in store.entries(0)]


async def filled(store: Store, turns: int, snapshots: tuple[int, ...]) -> Lease:
    """A log of so many turns, with snapshots after some."""
    lease = await lease_of(store)
    for turn in range(1, turns + 1):
        lease = await store.append(lease, Changes(at=float(turn), entry=b"turn %d" % turn))
        if turn in snapshots:
            await store.save_snapshot(lease, float(turn), b"state")
    return lease


def test_turns_go_in_portions_and_only_those_that_two_snapshots_stand_for(url: str) -> None:
    async def story(store: Store) -> None:
        lease = await filled(store, 12, (8,))
        assert await store.trim(lease, Spare(turn=8), 5) == 0
        lease = await store.append(lease, Changes(at=13.0, entry=b"turn 13"))
        await store.save_snapshot(lease, 13.0, b"state")
        assert await store.trim(lease, Spare(turn=13), 5) == 0
        assert await store.trim(lease, Spare(turn=8), 5) == 5
        assert await turns_of(store) == list(range(6, 14))
        assert await store.trim(lease, Spare(turn=8), 5) == 3
        assert await store.trim(lease, Spare(turn=8), 5) == 0
        assert await turns_of(store) == list(range(9, 14))
        assert await store.first_entry() == 9

    with_store(url, story)


def test_who_has_lost_the_lease_trims_nothing(url: str) -> None:
    async def story(store: Store) -> None:
        lease = await filled(store, 6, (3, 6))
        assert await store.acquire("another", 10**12, 15.0) is not None
        with pytest.raises(LeaseLost):
            await store.trim(lease, Spare(turn=3, history_before=1e12, jobs_before=1e12, audit_before=1e12), 500)
        with pytest.raises(LeaseLost):
            await store.shrink(lease)
        assert await turns_of(store) == list(range(1, 7))

    with_store(url, story)


def test_history_audit_and_jobs_go_by_their_age_and_jobs_in_lists_stay(url: str) -> None:
    async def story(store: Store) -> None:
        lease, keys = await lease_of(store), KeyStore(store.database)
        lines = [HistoryLine(id=at, at=float(at), job=None, type="note", text="x") for at in range(1, 10)]
        jobs = [JobRow(id=f"j{at}", number=at, user="ann", submitted=0.0, about=b"{}") for at in range(4)]
        lease = await store.append(lease, Changes(at=1.0, entry=b"x", history=lines, jobs=jobs))
        ends = [(0, 2.0, b"{}"), (1, 2.0, b"{}"), (2, 90.0, b"{}")]
        lease = await store.append(lease, Changes(at=2.0, entry=b"y", ended=ends))
        await store.forget(lease, 95.0, requests_before=0.0, jobs=[(0, "j0"), (2, "j2")])
        for _ in range(3):
            await keys.audit(Deed(user="ann", role="user", method="POST", path="/", status=200))
        while await store.trim(lease, Spare(history_before=6.0, jobs_before=50.0, audit_before=0.0), 2):
            pass
        assert [line.id for line in await store.history()] == [6, 7, 8, 9]
        numbers = await store.database.read(
            lambda connection: connection.execute(select(tables.jobs.c.number)).scalars().all()
        )
        assert sorted(numbers) == [1, 2, 3]
        assert len(await keys.audits(10)) == 3
        while await store.trim(lease, Spare(history_before=1e12, jobs_before=50.0, audit_before=1e12), 2):
            pass
        # The newest stay, so that no number comes twice.
        assert [line.id for line in await store.history()] == [9]
        assert len(await keys.audits(10)) == 1

    with_store(url, story)


def test_ids_of_events_never_come_again_though_their_jobs_are_forgotten(url: str) -> None:
    async def story(store: Store) -> None:
        lease = await lease_of(store)
        job = JobRow(id="a", number=0, user="ann", submitted=0.0, about=b"{}")
        lines = [HistoryLine(id=at, at=1.0, job="a", type="note", text="x") for at in (1, 2)]
        lease = await store.append(lease, Changes(at=1.0, entry=b"x", jobs=[job], history=lines))
        for _ in range(2):
            await store.forget(lease, 2.0, requests_before=0.0, jobs=[(0, "a")])
            assert await store.history() == []
            assert await store.last_history() == 2

    with_store(url, story)


# --- with a server ----------------------------------------------------------------------------------------------------


def trimmer(up: House, **keep: float) -> Trimming:
    return Trimming(up.live.loop, Keep(**keep))


async def work(up: House, jobs: int) -> None:
    """Jobs come, run and end."""
    for _ in range(jobs):
        (view,) = await up.service.submit([document()], user="ann", key=None)
        await up.until(lambda: up.phase(view["id"]) == "Running")  # noqa: B023
        up.backend.finish(view["id"])
        await up.until(lambda: up.phase(view["id"]) == "Succeeded")  # noqa: B023


def test_a_server_starts_from_what_trimming_leaves(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SNAPSHOT_TURNS", 20)

    async def story() -> None:
        stage = Stage()
        async with house(url, stage) as up:
            (kept,) = await up.service.submit([document("kept")], user="ann", key=None)
            await work(up, 25)
            told = await up.service.history(job=kept["id"], after=0, limit=1000)
            assert await trimmer(up).once() > 20
            assert (await turns_of(up.live.store))[0] > 20
            await up.settle()
            await up.kill()
        async with house(url, stage) as up:
            assert up.phase(kept["id"]) == "Running"
            assert await up.service.history(job=kept["id"], after=0, limit=1000) == told
            assert len([op for op in stage.taken if op.job == kept["id"]]) == 1
            await work(up, 1)

    asyncio.run(story())


def test_a_damaged_newest_snapshot_is_made_up_for_by_the_one_before_and_the_log(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SNAPSHOT_TURNS", 20)

    async def story() -> None:
        stage = Stage()
        async with house(url, stage) as up:
            (kept,) = await up.service.submit([document("kept")], user="ann", key=None)
            await work(up, 25)
            await trimmer(up).once()
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
        async with house(url, stage) as up:
            assert up.phase(kept["id"]) == "Running"
            assert len([op for op in stage.taken if op.job == kept["id"]]) == 1
            await work(up, 10)
            # One that is damaged stands for no turn.
            await trimmer(up).once()
            await up.kill()
        async with house(url, stage) as up:
            assert up.phase(kept["id"]) == "Running"

    asyncio.run(story())


def test_a_log_that_was_trimmed_and_no_snapshot_says_what_to_do(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SNAPSHOT_TURNS", 20)

    async def story() -> None:
        async with house(url) as up:
            await work(up, 20)
            await trimmer(up).once()
        await damage_snapshots(url)
        store = await Store.open(url)
        try:
            first = await store.first_entry()
            with pytest.raises(LevadaError, match=rf"damaged\).*begins with turn {first}.*put back a copy") as told:
                await recover(store, first)
            assert "\n" not in str(told.value)
        finally:
            await store.close()

    asyncio.run(story())


def test_who_resumes_from_an_event_that_is_gone_is_told_and_goes_on(url: str) -> None:
    async def story() -> None:
        async with house(url) as up:
            await work(up, 3)
            last = up.service.last_event()
            old = text("UPDATE history SET at = 1 WHERE id <= 5")
            await up.live.store.database.write(lambda connection: connection.execute(old))
            assert await trimmer(up).once() == 5
            gap, *rest = await up.service.history(job=None, after=2, limit=1000)
            assert (gap["type"], gap["id"], gap["job"]) == ("gap", 5, None)
            assert "no longer kept" in gap["text"]
            assert [line["id"] for line in rest] == list(range(6, last + 1))
            assert [line["id"] for line in await up.service.history(job=None, after=2, limit=2)] == [5, 6]
            # Who begins at the beginning, or has missed nothing, hears nothing of it.
            for after in (0, 5, 7):
                assert all(
                    line["type"] != "gap" for line in await up.service.history(job=None, after=after, limit=1000)
                )
            seen = []
            async for line in up.service.watch(after=2, job=None):
                seen.append(line["id"])
                if line["id"] == last:
                    break
            assert seen == list(range(5, last + 1))

    asyncio.run(story())


async def size_of(store: Store, path: Path) -> int:
    """Of the file, with all that is still in the journal beside it."""
    await store.database.write(lambda each: each.execute(text("PRAGMA wal_checkpoint(TRUNCATE)")).all())
    return path.stat().st_size


def test_thousands_of_turns_leave_a_file_of_the_same_size(sqlite_url: str) -> None:
    path, kept = Path(sqlite_url.removeprefix("sqlite:///")), 200

    async def story(store: Store) -> None:
        lease, sizes = await lease_of(store), []
        for turn in range(1, 4001):
            line = HistoryLine(id=turn, at=float(turn), job=None, type="note", text="x" * 100)
            lease = await store.append(lease, Changes(at=float(turn), entry=os.urandom(1000), history=[line]))
            if turn % kept == 0:
                await store.save_snapshot(lease, float(turn), os.urandom(20_000))
                while await store.trim(lease, Spare(turn=turn - 2 * kept, history_before=turn - kept), 50):
                    pass
            if turn % 1000 == 0:
                sizes.append(await size_of(store, path))
        assert await count(store, tables.log) == 2 * kept
        assert max(sizes) < 1.1 * sizes[0], sizes

    with_store(sqlite_url, story)


def test_a_server_keeps_its_log_short_by_itself(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SNAPSHOT_TURNS", 30)
    monkeypatch.setattr("levada.live.live._TIDY_S", 0.05)
    monkeypatch.setattr(trimming, "_EVERY_S", 0.05)
    monkeypatch.setattr(trimming, "_PAUSE_S", 0.0)
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    # Nothing of them is in lists afterwards.
    brief = document(ttl="0s", gpusPerWorker=0)

    async def lap(up: House, turns: int) -> int:
        store, end = up.live.store, up.live.loop.lease.sequence + turns
        while up.live.loop.lease.sequence < end:
            views = await up.service.submit([brief] * 4, user="ann", key=None)
            await up.until(lambda: all(view["id"] in up.backend.stage.runs for view in views))  # noqa: B023
            for view in views:
                up.backend.finish(view["id"])
        await up.until(lambda: not up.live.loop.records.by_id)
        async with asyncio.timeout(WAIT_S):
            while await count(store, tables.log) > 150:
                await asyncio.sleep(0.01)
        return await size_of(store, path)

    async def story() -> None:
        async with house(sqlite_url) as up:
            sizes = [await lap(up, 180) for _ in range(3)]
            # Jobs that are over are kept for their accounts; what they take is all that grows.
            row = "SELECT sum(length(about) + length(result)) FROM jobs"
            jobs = await up.live.store.database.read(lambda connection: connection.execute(text(row)).scalar_one())
            assert sizes[-1] - sizes[0] < 2.5 * jobs

    asyncio.run(story())


def test_room_that_is_free_is_given_back_to_the_disk(sqlite_url: str) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))

    async def story(store: Store) -> None:
        lease = await filled(store, 3, ())
        for _ in range(20):
            lease = await store.append(lease, Changes(at=1.0, entry=os.urandom(1 << 20)))
        await store.save_snapshot(lease, 1.0, b"state")
        last = lease.sequence
        lease = await store.append(lease, Changes(at=2.0, entry=b"x"))
        await store.save_snapshot(lease, 2.0, b"state")
        assert await store.trim(lease, Spare(turn=last), 500) == last
        while await store.shrink(lease):
            pass
        await store.database.write(lambda each: each.execute(text("PRAGMA wal_checkpoint(TRUNCATE)")).all())
        assert path.stat().st_size < 8 << 20
        # Some stays for what comes.
        assert await store.database.read(lambda each: each.execute(text("PRAGMA freelist_count")).scalar_one()) > 500

    with_store(sqlite_url, story)


_TRIM = """
import asyncio, sys
from levada.live import trimming
from levada.live.live import Live
from levada.live.store import Store
from tests.live.rehearsal import Rehearsal, Stage

trimming._PORTION = 3

async def story():
    live = Live(await Store.open(sys.argv[1]), Rehearsal(Stage()))
    await live.open()
    trim = live.store.trim

    async def told(*words):
        gone = await trim(*words)
        print(gone, flush=True)
        return gone

    live.store.trim = told
    await trimming.Trimming(live.loop, trimming.Keep()).once()

asyncio.run(story())
"""


def test_a_kill_in_the_middle_of_trimming_leaves_a_log_that_is_whole(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SNAPSHOT_TURNS", 40)
    stage = Stage()

    async def before() -> tuple[str, int]:
        async with house(url, stage) as up:
            (kept,) = await up.service.submit([document("kept")], user="ann", key=None)
            await work(up, 30)
            await up.settle()
            await up.kill()
            return str(kept["id"]), up.live.loop.lease.sequence

    job, written = asyncio.run(before())
    for portions in (1, 4, 2):
        child = subprocess.Popen([sys.executable, "-c", _TRIM, url], stdout=subprocess.PIPE)
        assert child.stdout is not None
        for _ in itertools.islice(child.stdout, portions):
            pass
        child.send_signal(signal.SIGKILL)
        child.wait(15)
        child.stdout.close()

    async def after() -> None:
        store = await Store.open(url)
        turns = await turns_of(store)
        assert turns[0] > 1
        assert turns == list(range(turns[0], turns[-1] + 1))
        assert turns[-1] >= written
        oldest = await store.database.read(
            lambda each: each.execute(select(func.min(tables.snapshots.c.sequence))).scalar_one()
        )
        assert turns[0] <= oldest + 1
        found = await recover(store, turns[-1])
        assert found.engine.query.job(job) is not None
        assert not found.differing
        await store.close()

    asyncio.run(after())


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"events": 3600.0}, "a day or more"),
        ({"events": float("nan")}, "a day or more"),
        ({"evnets": 9e9}, "did you mean events"),
        ({"logs": 9e9}, "events, jobs, audit can be kept"),
    ],
)
def test_times_that_cannot_be_are_one_line(given: dict[str, float], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        Keep.of(given)


def test_what_is_kept_by_default_is_what_the_docs_say() -> None:
    assert msgspec.to_builtins(Keep()) == {"events": 90 * _DAY_S, "jobs": 400 * _DAY_S, "audit": 400 * _DAY_S}
