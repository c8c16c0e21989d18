"""The log with its lease, snapshots, jobs and history: all that a turn of the engine changes, in one transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec
from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from levada.errors import LevadaError
from levada.live.store import tables
from levada.live.store.database import check_room, open_database, transaction, writing
from levada.live.store.values import HistoryLine, JobRow, RequestRow

#: Rows of the log that are read at a time.
_PAGE = 1000
#: Snapshots that are kept: the newest might be damaged.
_KEPT_SNAPSHOTS = 3


class LeaseLost(LevadaError):
    """Somebody else acts now; whoever sees this must not."""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The right to act, as it was when it was last used: an append names both numbers."""

    epoch: int
    sequence: int
    holder: str


class Changes(msgspec.Struct, kw_only=True):
    """What one turn of the engine changes."""

    at: float
    #: The turn itself; None where nothing happened that must be replayed.
    entry: bytes | None = None
    jobs: Sequence[JobRow] = ()
    #: (id, when, result as JSON)
    ended: Sequence[tuple[str, float, bytes]] = ()
    history: Sequence[HistoryLine] = ()
    requests: Sequence[RequestRow] = ()


class Store:
    """One database."""

    def __init__(self, database: AsyncEngine) -> None:
        self.database = database

    @staticmethod
    async def open(url: str) -> Store:
        """The store at *url*, brought to this version's shape; raises BadInput or LevadaError."""
        return Store(await open_database(url))

    async def close(self) -> None:
        """Lets go of the database."""
        await self.database.dispose()

    def check_room(self) -> None:
        """Raises StoreTrouble where the disk has room only for what becomes of jobs that were taken already."""
        check_room(self.database)

    # --- the lease ------------------------------------------------------------------------------------------------

    async def acquire(self, holder: str, now: float, lasts_s: float) -> Lease | None:
        """The lease, with a new epoch; None while somebody else has it."""
        row = tables.lease.c
        async with writing(self.database) as connection:
            there = (await connection.execute(select(row.epoch, row.sequence, row.holder, row.until))).one()
            if there.until > now and there.holder != holder:
                return None
            taken = await connection.execute(
                update(tables.lease)
                .where(row.epoch == there.epoch, row.until == there.until)
                .values(epoch=there.epoch + 1, holder=holder, until=now + lasts_s)
            )
            if taken.rowcount != 1:
                return None
        return Lease(epoch=there.epoch + 1, sequence=there.sequence, holder=holder)

    async def holder(self) -> tuple[str, float]:
        """Who has, or had, the lease, and up to when."""
        async with transaction(self.database) as connection:
            there = (await connection.execute(select(tables.lease.c.holder, tables.lease.c.until))).one()
        return there.holder, there.until

    async def renew(self, lease: Lease, now: float, lasts_s: float) -> None:
        """Keeps the lease; raises LeaseLost."""
        async with writing(self.database) as connection:
            await self._touch(connection, lease, until=now + lasts_s)

    async def release(self, lease: Lease) -> None:
        """Gives the lease back, so that the next one need not wait."""
        async with writing(self.database) as connection:
            await self._touch(connection, lease, until=0.0)

    async def _touch(self, connection: AsyncConnection, lease: Lease, **values: float) -> None:
        row = tables.lease.c
        done = await connection.execute(update(tables.lease).where(row.epoch == lease.epoch).values(**values))
        if done.rowcount != 1:
            raise LeaseLost("another server acts on this store now")

    # --- the log ----------------------------------------------------------------------------------------------------

    async def append(self, lease: Lease, changes: Changes) -> Lease:
        """Writes all of *changes* or nothing, and gives back the lease as it is after it; raises LeaseLost."""
        row = tables.lease.c
        sequence = lease.sequence + 1
        async with writing(self.database) as connection:
            swapped = await connection.execute(
                update(tables.lease)
                .where(row.epoch == lease.epoch, row.sequence == lease.sequence)
                .values(sequence=sequence)
            )
            if swapped.rowcount != 1:
                if await self._is_written(connection, lease, changes):
                    return msgspec.structs.replace(lease, sequence=sequence)
                raise LeaseLost("another server acts on this store now")
            if changes.entry is not None:
                entry = {"sequence": sequence, "epoch": lease.epoch, "at": changes.at, "body": changes.entry}
                await connection.execute(insert(tables.log), entry)
            await self._write_jobs(connection, changes)
            if changes.history:
                lines = [{**_plain(line), "data": msgspec.json.encode(line.data).decode()} for line in changes.history]
                await connection.execute(insert(tables.history), lines)
            if changes.requests:
                rows = [{**_plain(row), "answer": row.answer.decode()} for row in changes.requests]
                await connection.execute(insert(tables.requests), rows)
        return msgspec.structs.replace(lease, sequence=sequence)

    async def _is_written(self, connection: AsyncConnection, lease: Lease, changes: Changes) -> bool:
        """Whether this very append was committed before, and only the answer got lost."""
        row = tables.log.c
        wanted = select(row.body).where(row.sequence == lease.sequence + 1, row.epoch == lease.epoch)
        body = (await connection.execute(wanted)).scalar_one_or_none()
        return body is not None and changes.entry is not None and bytes(body) == changes.entry

    async def _write_jobs(self, connection: AsyncConnection, changes: Changes) -> None:
        if changes.jobs:
            rows = [{**_plain(job), "about": job.about.decode(), "result": None} for job in changes.jobs]
            await connection.execute(insert(tables.jobs), rows)
        for job_id, at, result in changes.ended:
            row = tables.jobs.c
            await connection.execute(
                update(tables.jobs).where(row.id == job_id).values(ended=at, result=result.decode())
            )

    async def entries(self, after: int) -> AsyncIterator[tuple[int, float, bytes]]:
        """The log after that sequence number: (sequence, at, body)."""
        row = tables.log.c
        while True:
            async with transaction(self.database) as connection:
                wanted = select(row.sequence, row.at, row.body).where(row.sequence > after)
                page = (await connection.execute(wanted.order_by(row.sequence).limit(_PAGE))).all()
            for sequence, at, body in page:
                yield sequence, at, bytes(body)
                after = sequence
            if len(page) < _PAGE:
                return

    async def save_snapshot(self, sequence: int, at: float, body: bytes) -> None:
        """Keeps the state after that turn; old ones go."""
        row = tables.snapshots.c
        async with writing(self.database) as connection:
            await connection.execute(delete(tables.snapshots).where(row.sequence == sequence))
            await connection.execute(insert(tables.snapshots), {"sequence": sequence, "at": at, "body": body})
            newest = select(row.sequence).order_by(row.sequence.desc()).limit(_KEPT_SNAPSHOTS)
            kept = (await connection.execute(newest)).scalars().all()
            await connection.execute(delete(tables.snapshots).where(row.sequence < min(kept)))

    async def snapshots(self) -> AsyncIterator[tuple[int, bytes]]:
        """Snapshots, the newest first: (sequence, body)."""
        row = tables.snapshots.c
        async with transaction(self.database) as connection:
            found = (await connection.execute(select(row.sequence).order_by(row.sequence.desc()))).scalars().all()
        for sequence in found:
            async with transaction(self.database) as connection:
                body = (await connection.execute(select(row.body).where(row.sequence == sequence))).scalar()
            if body is not None:
                yield sequence, bytes(body)

    # --- jobs, history, requests --------------------------------------------------------------------------------------

    async def jobs(self, ended_after: float) -> list[JobRow]:
        """Jobs that are not over, or have ended since then, by number."""
        row = tables.jobs.c
        wanted = select(tables.jobs).where((row.ended.is_(None)) | (row.ended > ended_after)).order_by(row.number)
        async with transaction(self.database) as connection:
            found = (await connection.execute(wanted)).mappings().all()
        return [
            JobRow(
                **{
                    **each,
                    "about": each["about"].encode(),
                    "result": None if each["result"] is None else each["result"].encode(),
                }
            )
            for each in found
        ]

    async def results(self, since: float) -> list[tuple[str, bytes]]:
        """(user, result) of all jobs that ended since then, for accounts of use."""
        row = tables.jobs.c
        async with transaction(self.database) as connection:
            found = await connection.execute(select(row.user, row.result).where(row.ended >= since))
            return [(user, result.encode()) for user, result in found.all() if result is not None]

    async def history(self, *, job: str | None = None, after: int = 0, limit: int = 1000) -> list[HistoryLine]:
        """Lines after that id, the oldest first."""
        row = tables.history.c
        wanted = select(tables.history).where(row.id > after).order_by(row.id).limit(limit)
        if job is not None:
            wanted = wanted.where(row.job == job)
        async with transaction(self.database) as connection:
            found = (await connection.execute(wanted)).mappings().all()
        return [HistoryLine(**{**each, "data": msgspec.json.decode(each["data"])}) for each in found]

    async def last_history(self) -> int:
        """The id of the newest line; 0 where there is none."""
        async with transaction(self.database) as connection:
            return (await connection.execute(select(func.max(tables.history.c.id)))).scalar() or 0

    async def request(self, user: str, key: str) -> RequestRow | None:
        """A submission that carried that key."""
        row = tables.requests.c
        async with transaction(self.database) as connection:
            found = await connection.execute(select(tables.requests).where(row.user == user, row.key == key))
            each = found.mappings().one_or_none()
        return None if each is None else RequestRow(**{**each, "answer": each["answer"].encode()})

    async def keys(self) -> set[tuple[str, str]]:
        """(user, key) of all submissions that carried one and are remembered."""
        row = tables.requests.c
        async with transaction(self.database) as connection:
            return {(user, key) for user, key in (await connection.execute(select(row.user, row.key))).all()}

    async def forget(self, *, requests_before: float, jobs: Sequence[str] = ()) -> None:
        """Drops keys of submissions that nobody will repeat any more, and the past of these jobs."""
        async with writing(self.database) as connection:
            await connection.execute(delete(tables.requests).where(tables.requests.c.at < requests_before))
            if jobs:
                await connection.execute(delete(tables.history).where(tables.history.c.job.in_(jobs)))

    # --- single values ------------------------------------------------------------------------------------------------

    async def setting(self, name: str) -> str | None:
        """A value by its name."""
        async with transaction(self.database) as connection:
            found = await connection.execute(select(tables.settings.c.value).where(tables.settings.c.name == name))
            return found.scalar_one_or_none()

    async def set_setting(self, name: str, value: str) -> None:
        """Keeps a value."""
        async with writing(self.database) as connection:
            await connection.execute(delete(tables.settings).where(tables.settings.c.name == name))
            await connection.execute(insert(tables.settings), {"name": name, "value": value})


def _plain(value: msgspec.Struct) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__struct_fields__}
