"""The log with its lease, snapshots, jobs and history: all that a turn of the engine changes, in one transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, bindparam, delete, func, insert, select, update

from levada.errors import LevadaError
from levada.live.store import tables
from levada.live.store.database import Database
from levada.live.store.trim import Spare, shrink, trim
from levada.live.store.values import HistoryLine, JobRow, RequestRow

#: Rows of the log that are read at a time.
_PAGE = 1000
#: Snapshots that are kept: the newest might be damaged.
_KEPT_SNAPSHOTS = 3

#: The setting that remembers the newest line of history when it goes.
_LAST_LINE = "last line"

# Made once: an append is the most frequent thing that happens to a store.
_SWAP = update(tables.lease).where(
    tables.lease.c.epoch == bindparam("known_epoch"), tables.lease.c.sequence == bindparam("known_sequence")
)
_END_JOBS = update(tables.jobs).where(tables.jobs.c.number == bindparam("ended_job"))
_FORGET_JOBS = update(tables.jobs).where(tables.jobs.c.number == bindparam("forgotten_job"))
_FORGET_LINES = delete(tables.history).where(tables.history.c.job == bindparam("forgotten_job"))
#: Changes nothing, and finds a row only for who has the lease; nobody else can take it before this is over.
_STILL = update(tables.lease).where(tables.lease.c.epoch == bindparam("known_epoch")).values(epoch=tables.lease.c.epoch)
_ADD_ENTRY, _ADD_JOBS = insert(tables.log), insert(tables.jobs)
_ADD_LINES, _ADD_REQUESTS, _ADD_DEEDS = insert(tables.history), insert(tables.requests), insert(tables.audit)


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
    #: (number, when, result as JSON)
    ended: Sequence[tuple[int, float, bytes]] = ()
    history: Sequence[HistoryLine] = ()
    requests: Sequence[RequestRow] = ()
    #: Lines of the audit log, as `Deed.row` makes them.
    deeds: Sequence[Mapping[str, Any]] = ()
    #: Single values, by name.
    settings: Mapping[str, str] = {}


class Store:
    """One database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @staticmethod
    async def open(url: str) -> Store:
        """The store at *url*. Only its lease may be asked for before `migrate`. Raises BadInput or LevadaError."""
        return Store(await Database.open(url))

    async def migrate(self, lease: Lease) -> None:
        """Brings it to this version's shape: for who has the lease, so that nobody acts on the old one. LeaseLost."""
        await self.database.migrate(lambda connection: _check(connection, lease))

    async def close(self) -> None:
        """Lets go of the database."""
        await self.database.close()

    def check_room(self) -> None:
        """Raises StoreTrouble where the disk has room only for what becomes of jobs that were taken already."""
        self.database.check_room()

    # --- the lease ------------------------------------------------------------------------------------------------

    async def acquire(self, holder: str, now: float, lasts_s: float, *, above: int = 0) -> Lease | None:
        """The lease, with a new epoch that is *above* another; None while somebody else has it."""
        row = tables.lease.c

        def take(connection: Connection) -> Lease | None:
            there = connection.execute(select(row.epoch, row.holder, row.until)).one()
            if there.until > now and there.holder != holder:
                return None
            epoch = max(there.epoch, above) + 1
            taken = connection.execute(
                update(tables.lease)
                .where(row.epoch == there.epoch, row.until == there.until)
                .values(epoch=epoch, holder=holder, until=now + lasts_s)
                # As it is by now: whoever had it may have used it until this moment.
                .returning(row.sequence)
            ).one_or_none()
            return None if taken is None else Lease(epoch=epoch, sequence=taken.sequence, holder=holder)

        return await self.database.write(take)

    async def holder(self) -> tuple[str, float]:
        """Who has, or had, the lease, and up to when."""
        wanted = select(tables.lease.c.holder, tables.lease.c.until)
        there = await self.database.read(lambda connection: connection.execute(wanted).one())
        return there.holder, there.until

    async def renew(self, lease: Lease, now: float, lasts_s: float) -> None:
        """Keeps the lease; raises LeaseLost."""
        await self._touch(lease, until=now + lasts_s)

    async def release(self, lease: Lease) -> None:
        """Gives the lease back, so that the next one need not wait."""
        await self._touch(lease, until=0.0)

    async def _touch(self, lease: Lease, until: float) -> None:
        change = update(tables.lease).where(tables.lease.c.epoch == lease.epoch).values(until=until)
        if await self.database.write(lambda connection: connection.execute(change).rowcount) != 1:
            raise LeaseLost("another server acts on this store now")

    # --- the log ----------------------------------------------------------------------------------------------------

    async def append(self, lease: Lease, changes: Changes) -> Lease:
        """Writes all of *changes* or nothing, and gives back the lease as it is after it; raises LeaseLost."""
        sequence = lease.sequence + 1
        swap = {"known_epoch": lease.epoch, "known_sequence": lease.sequence, "sequence": sequence}

        def write(connection: Connection) -> None:
            if connection.execute(_SWAP, swap).rowcount != 1:
                if _is_written(connection, lease, changes):
                    return
                raise LeaseLost("another server acts on this store now")
            if changes.entry is not None:
                entry = {"sequence": sequence, "epoch": lease.epoch, "at": changes.at, "body": changes.entry}
                connection.execute(_ADD_ENTRY, entry)
            _write_jobs(connection, changes)
            if changes.history:
                lines = [{**_plain(line), "data": msgspec.json.encode(line.data).decode()} for line in changes.history]
                connection.execute(_ADD_LINES, lines)
            if changes.requests:
                rows = [{**_plain(row), "answer": row.answer.decode()} for row in changes.requests]
                connection.execute(_ADD_REQUESTS, rows)
            if changes.deeds:
                connection.execute(_ADD_DEEDS, list(changes.deeds))
            for name, value in changes.settings.items():
                _put_setting(connection, name, value)

        await self.database.write(write)
        return msgspec.structs.replace(lease, sequence=sequence)

    async def is_appended(self, lease: Lease, changes: Changes) -> bool:
        """Whether an append with *lease* whose answer was lost was committed; raises LeaseLost.

        Waits for the row that the append writes: a commit that is still under way is not missed.
        """

        def look(connection: Connection) -> bool:
            epoch = connection.execute(select(tables.lease.c.epoch).with_for_update()).scalar_one()
            if epoch != lease.epoch:
                raise LeaseLost("another server acts on this store now")
            return _is_written(connection, lease, changes)

        return await self.database.write(look)

    async def entries(self, after: int) -> AsyncIterator[tuple[int, float, bytes]]:
        """The log after that sequence number: (sequence, at, body)."""
        row = tables.log.c
        while True:
            wanted = select(row.sequence, row.at, row.body).where(row.sequence > after)
            page = await self._rows(wanted.order_by(row.sequence).limit(_PAGE))
            for sequence, at, body in page:
                yield sequence, at, bytes(body)
                after = sequence
            if len(page) < _PAGE:
                return

    async def first_entry(self) -> int:
        """The sequence number of the oldest turn that is kept; 0 where there is none."""
        ((oldest,),) = await self._rows(select(func.min(tables.log.c.sequence)))
        return oldest or 0

    async def save_snapshot(self, lease: Lease, at: float, body: bytes) -> None:
        """Keeps the state after the last turn of *lease*; old ones go. Raises LeaseLost."""
        row, sequence = tables.snapshots.c, lease.sequence

        def save(connection: Connection) -> None:
            _check(connection, lease)
            connection.execute(delete(tables.snapshots).where(row.sequence == sequence))
            connection.execute(insert(tables.snapshots), {"sequence": sequence, "at": at, "body": body})
            newest = select(row.sequence).order_by(row.sequence.desc()).limit(_KEPT_SNAPSHOTS)
            kept = connection.execute(newest).scalars().all()
            connection.execute(delete(tables.snapshots).where(row.sequence < min(kept)))

        await self.database.write(save)

    async def snapshots(self) -> AsyncIterator[tuple[int, bytes]]:
        """Snapshots, the newest first: (sequence, body)."""
        row = tables.snapshots.c
        for (sequence,) in await self._rows(select(row.sequence).order_by(row.sequence.desc())):
            for (body,) in await self._rows(select(row.body).where(row.sequence == sequence)):
                yield sequence, bytes(body)

    async def trim(self, lease: Lease, spare: Spare, most: int) -> int:
        """Removes *most* rows of each kind that are *spare*; how many went. Raises LeaseLost."""

        def work(connection: Connection) -> int:
            _check(connection, lease)
            return trim(connection, spare, most)

        return await self.database.write(work)

    async def shrink(self, lease: Lease) -> int:
        """Gives some room that is not used back to the disk; how many pages. Raises LeaseLost."""

        def work(connection: Connection) -> int:
            _check(connection, lease)
            return shrink(connection)

        return await self.database.write(work)

    # --- jobs, history, requests --------------------------------------------------------------------------------------

    async def jobs(self, ended_after: float) -> list[JobRow]:
        """Jobs that are not over, or have ended since then and are not forgotten, by number."""
        row = tables.jobs.c
        there = row.ended.is_(None) | ((row.ended > ended_after) & row.forgotten.is_(None))
        return [_job(each) for each in await self._rows(select(tables.jobs).where(there).order_by(row.number))]

    async def past_jobs(self, ids: Sequence[str]) -> list[JobRow]:
        """Jobs of these ids that have ended, forgotten ones too, by number."""
        row = tables.jobs.c
        found: list[JobRow] = []
        for some in _parts(ids):
            wanted = select(tables.jobs).where(row.id.in_(some), row.ended.is_not(None)).order_by(row.number)
            found += [_job(each) for each in await self._rows(wanted)]
        return found

    async def results(self, since: float) -> list[tuple[str, bytes]]:
        """(user, result) of all jobs that ended since then, for accounts of use."""
        row = tables.jobs.c
        found = await self._rows(select(row.user, row.result).where(row.ended >= since))
        return [(user, result.encode()) for user, result in found if result is not None]

    async def history(self, *, job: str | None = None, after: int = 0, limit: int = 1000) -> list[HistoryLine]:
        """Lines after that id, the oldest first."""
        row = tables.history.c
        wanted = select(tables.history).where(row.id > after).order_by(row.id).limit(limit)
        if job is not None:
            wanted = wanted.where(row.job == job)
        found = await self._rows(wanted)
        return [HistoryLine(**{**each._mapping, "data": msgspec.json.decode(each.data)}) for each in found]

    async def first_history(self) -> int:
        """The id of the oldest line that is kept; 0 where there is none."""
        ((oldest,),) = await self._rows(select(func.min(tables.history.c.id)))
        return oldest or 0

    async def last_history(self) -> int:
        """The id of the newest line that there ever was; 0 where there was none."""
        ((newest,),) = await self._rows(select(func.max(tables.history.c.id)))
        return max(newest or 0, int(await self.setting(_LAST_LINE) or 0))

    async def request(self, user: str, key: str) -> RequestRow | None:
        """A submission that carried that key."""
        row = tables.requests.c
        found = await self._rows(select(tables.requests).where(row.user == user, row.key == key))
        return RequestRow(**{**found[0]._mapping, "answer": found[0].answer.encode()}) if found else None

    async def keys_and_setting(self, name: str) -> tuple[set[tuple[str, str]], str | None]:
        """(user, key) of all submissions that carried one and are remembered; and a single value, in one read."""
        row, setting = tables.requests.c, tables.settings.c

        def look(connection: Connection) -> tuple[set[tuple[str, str]], str | None]:
            keys = {(user, key) for user, key in connection.execute(select(row.user, row.key))}
            return keys, connection.execute(select(setting.value).where(setting.name == name)).scalar_one_or_none()

        return await self.database.read(look)

    async def forget(self, lease: Lease, at: float, *, requests_before: float, jobs: Sequence[tuple[int, str]]) -> None:
        """Drops keys of submissions that nobody will repeat any more, and the past of these jobs (number, id)."""

        def drop(connection: Connection) -> None:
            _check(connection, lease)
            connection.execute(delete(tables.requests).where(tables.requests.c.at < requests_before))
            if jobs:
                newest = connection.execute(select(func.max(tables.history.c.id))).scalar()
                if newest is not None:
                    # Its number must not come again: whoever has seen it goes on after it.
                    _put_setting(connection, _LAST_LINE, str(newest))
                connection.execute(_FORGET_JOBS, [{"forgotten_job": number, "forgotten": at} for number, _ in jobs])
                connection.execute(_FORGET_LINES, [{"forgotten_job": job} for _, job in jobs])

        await self.database.write(drop)

    # --- single values ------------------------------------------------------------------------------------------------

    async def setting(self, name: str) -> str | None:
        """A value by its name."""
        found = await self._rows(select(tables.settings.c.value).where(tables.settings.c.name == name))
        return found[0].value if found else None

    async def set_setting(self, name: str, value: str, lease: Lease | None = None) -> None:
        """Keeps a value; raises LeaseLost where only who has the *lease* may say it, and it is gone."""

        def put(connection: Connection) -> None:
            if lease is not None:
                _check(connection, lease)
            _put_setting(connection, name, value)

        await self.database.write(put)

    async def _rows(self, wanted: Select[*tuple[Any, ...]]) -> Sequence[Any]:
        return await self.database.read(lambda connection: connection.execute(wanted).all())


def _put_setting(connection: Connection, name: str, value: str) -> None:
    connection.execute(delete(tables.settings).where(tables.settings.c.name == name))
    connection.execute(insert(tables.settings), {"name": name, "value": value})


def _check(connection: Connection, lease: Lease) -> None:
    if connection.execute(_STILL, {"known_epoch": lease.epoch}).rowcount != 1:
        raise LeaseLost("another server acts on this store now")


def _is_written(connection: Connection, lease: Lease, changes: Changes) -> bool:
    """Whether this very append was committed before, and only the answer got lost."""
    row = tables.log.c
    wanted = select(row.body).where(row.sequence == lease.sequence + 1, row.epoch == lease.epoch)
    body = connection.execute(wanted).scalar_one_or_none()
    return body is not None and changes.entry is not None and bytes(body) == changes.entry


def _write_jobs(connection: Connection, changes: Changes) -> None:
    if changes.jobs:
        rows = [{**_plain(job), "about": job.about.decode(), "result": None} for job in changes.jobs]
        connection.execute(_ADD_JOBS, rows)
    if changes.ended:
        ends = [{"ended_job": job, "ended": at, "result": result.decode()} for job, at, result in changes.ended]
        connection.execute(_END_JOBS, ends)


def _job(row: Any) -> JobRow:
    result = None if row.result is None else row.result.encode()
    about = row.about.encode()
    return JobRow(
        id=row.id,
        number=row.number,
        user=row.user,
        submitted=row.submitted,
        ended=row.ended,
        about=about,
        result=result,
    )


def _parts(values: Sequence[str]) -> Iterator[Sequence[str]]:
    """A statement takes some ten thousand values at most."""
    return (values[begin : begin + _PAGE] for begin in range(0, len(values), _PAGE))


def _plain(value: msgspec.Struct) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__struct_fields__}
