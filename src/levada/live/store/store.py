"""The store: lease, log, snapshots, jobs, history, submission keys, settings.

All changes of one turn of the engine are one transaction, fenced by the epoch of the lease.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, bindparam, delete, func, insert, select, update

from levada.errors import LevadaError
from levada.live.store import tables
from levada.live.store.database import Database
from levada.live.store.retention import Expired, shrink, trim
from levada.live.store.values import HistoryLine, JobRow, RequestRow

#: Rows per query of the log, and values per statement.
_PAGE = 1000
#: Number of stored snapshots; more than one, because the newest may be damaged.
_MAX_SNAPSHOTS = 3

#: Setting with the permanent id of the database.
STORE_ID = "id"
#: Setting with the id of the newest history line that was removed.
_LAST_LINE = "last line"

# Statements are built once, because an append is the most frequent operation.
_SWAP = update(tables.lease).where(
    tables.lease.c.epoch == bindparam("known_epoch"), tables.lease.c.sequence == bindparam("known_sequence")
)
_END_JOBS = update(tables.jobs).where(tables.jobs.c.number == bindparam("ended_job"))
_EDIT_JOBS = update(tables.jobs).where(tables.jobs.c.number == bindparam("edited_job"))
_FORGET_JOBS = update(tables.jobs).where(tables.jobs.c.number == bindparam("forgotten_job"))
_FORGET_LINES = delete(tables.history).where(tables.history.c.job == bindparam("forgotten_job"))
#: Changes nothing, matches only the current lease, and locks its row until the transaction ends.
_HOLD = update(tables.lease).where(tables.lease.c.epoch == bindparam("known_epoch")).values(epoch=tables.lease.c.epoch)
_ADD_ENTRY, _ADD_JOBS = insert(tables.log), insert(tables.jobs)
_ADD_LINES, _ADD_REQUESTS, _ADD_AUDIT_ROWS = insert(tables.history), insert(tables.requests), insert(tables.audit)


class LeaseLost(LevadaError):
    """Another server has taken the lease; this one must stop acting at once."""


class StoreLease(msgspec.Struct, frozen=True, kw_only=True):
    """The lease of the leader after its last append; an append names epoch and sequence."""

    epoch: int
    sequence: int
    holder: str


class Changes(msgspec.Struct, kw_only=True):
    """Everything that one turn of the engine stores."""

    at: float
    #: The log entry; None if nothing must be replayed.
    entry: bytes | None = None
    jobs: Sequence[JobRow] = ()
    #: (job number, end time, result as JSON)
    ended: Sequence[tuple[int, float, bytes]] = ()
    #: (job number, new `JobDetails` as JSON)
    edited: Sequence[tuple[int, bytes]] = ()
    history: Sequence[HistoryLine] = ()
    requests: Sequence[RequestRow] = ()
    #: Rows of the audit log, see `AuditEntry.row`.
    audit_rows: Sequence[Mapping[str, Any]] = ()
    #: Settings by name.
    settings: Mapping[str, str] = {}


class Store:
    """Access to one database; all methods may raise StoreError."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @staticmethod
    async def open(url: str) -> Store:
        """Open the store at *url*; before `migrate` only the lease may be used. Raises BadInput or LevadaError."""
        return Store(await Database.open(url))

    async def migrate(self, lease: StoreLease) -> None:
        """Upgrade the schema; requires the lease, so that no other server uses the old one. Raises LeaseLost."""
        await self.database.migrate(lambda connection: _check(connection, lease))

    async def close(self) -> None:
        """Close the database."""
        await self.database.close()

    def check_room(self) -> None:
        """Raise StoreError if the free disk space is reserved for jobs that were already accepted."""
        self.database.check_room()

    # --- lease ------------------------------------------------------------------------------------------------

    async def acquire(self, holder: str, now: float, lasts_s: float, *, above: int = 0) -> StoreLease | None:
        """Acquire the lease with a new epoch greater than *above*; None while another server holds it."""
        row = tables.lease.c

        def take(connection: Connection) -> StoreLease | None:
            current = connection.execute(select(row.epoch, row.holder, row.until)).one()
            if current.until > now and current.holder != holder:
                return None
            epoch = max(current.epoch, above) + 1
            acquired = connection.execute(
                update(tables.lease)
                .where(row.epoch == current.epoch, row.until == current.until)
                .values(epoch=epoch, holder=holder, until=now + lasts_s)
                # Read it here: the previous holder may have appended since the select.
                .returning(row.sequence)
            ).one_or_none()
            return None if acquired is None else StoreLease(epoch=epoch, sequence=acquired.sequence, holder=holder)

        return await self.database.write(take)

    async def holder(self) -> tuple[str, float]:
        """Return the present or last holder of the lease, and when it expires."""
        query = select(tables.lease.c.holder, tables.lease.c.until)
        lease = await self.database.read(lambda connection: connection.execute(query).one())
        return lease.holder, lease.until

    async def renew(self, lease: StoreLease, now: float, lasts_s: float) -> None:
        """Extend the lease by *lasts_s* seconds; raises LeaseLost."""
        await self._set_expiry(lease, until=now + lasts_s)

    async def release(self, lease: StoreLease) -> None:
        """Release the lease, so that the next server need not wait until it expires."""
        await self._set_expiry(lease, until=0.0)

    async def _set_expiry(self, lease: StoreLease, until: float) -> None:
        change = update(tables.lease).where(tables.lease.c.epoch == lease.epoch).values(until=until)
        if await self.database.write(lambda connection: connection.execute(change).rowcount) != 1:
            raise LeaseLost("another server has taken over this store")

    # --- log ----------------------------------------------------------------------------------------------------

    async def append(self, lease: StoreLease, changes: Changes) -> StoreLease:
        """Store all of *changes* or nothing; returns the lease with the next sequence, raises LeaseLost."""
        sequence = lease.sequence + 1
        swap = {"known_epoch": lease.epoch, "known_sequence": lease.sequence, "sequence": sequence}

        def write(connection: Connection) -> None:
            if connection.execute(_SWAP, swap).rowcount != 1:
                if _is_logged(connection, lease, changes):
                    return
                raise LeaseLost("another server has taken over this store")
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
            if changes.audit_rows:
                connection.execute(_ADD_AUDIT_ROWS, list(changes.audit_rows))
            for name, value in changes.settings.items():
                _put_setting(connection, name, value)

        await self.database.write(write)
        return msgspec.structs.replace(lease, sequence=sequence)

    async def is_appended(self, lease: StoreLease, changes: Changes) -> bool:
        """Whether an append with *lease* that got no answer was committed; raises LeaseLost.

        Locks the row that the append writes, and so waits for a commit in progress.
        """

        def query(connection: Connection) -> bool:
            epoch = connection.execute(select(tables.lease.c.epoch).with_for_update()).scalar_one()
            if epoch != lease.epoch:
                raise LeaseLost("another server has taken over this store")
            return _is_logged(connection, lease, changes)

        return await self.database.write(query)

    async def entries(self, after: int) -> AsyncIterator[tuple[int, float, bytes]]:
        """Yield the log after this sequence number: (sequence, time, body)."""
        row = tables.log.c
        while True:
            entries = select(row.sequence, row.at, row.body).where(row.sequence > after)
            page = await self._rows(entries.order_by(row.sequence).limit(_PAGE))
            for sequence, at, body in page:
                yield sequence, at, bytes(body)
                after = sequence
            if len(page) < _PAGE:
                return

    async def first_entry(self) -> int:
        """Return the sequence number of the oldest stored turn; 0 without turns."""
        ((oldest,),) = await self._rows(select(func.min(tables.log.c.sequence)))
        return oldest or 0

    async def save_snapshot(self, lease: StoreLease, at: float, body: bytes) -> None:
        """Store a snapshot of the state after the last turn of *lease*; keeps the newest 3. Raises LeaseLost."""
        row, sequence = tables.snapshots.c, lease.sequence

        def save(connection: Connection) -> None:
            _check(connection, lease)
            connection.execute(delete(tables.snapshots).where(row.sequence == sequence))
            connection.execute(insert(tables.snapshots), {"sequence": sequence, "at": at, "body": body})
            newest = select(row.sequence).order_by(row.sequence.desc()).limit(_MAX_SNAPSHOTS)
            sequences = connection.execute(newest).scalars().all()
            connection.execute(delete(tables.snapshots).where(row.sequence < min(sequences)))

        await self.database.write(save)

    async def snapshots(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield snapshots, newest first: (sequence, body)."""
        row = tables.snapshots.c
        for (sequence,) in await self._rows(select(row.sequence).order_by(row.sequence.desc())):
            for (body,) in await self._rows(select(row.body).where(row.sequence == sequence)):
                yield sequence, bytes(body)

    async def trim(self, lease: StoreLease, expired: Expired, limit: int) -> int:
        """Remove up to *limit* expired rows per table; returns their number. Raises LeaseLost."""

        def work(connection: Connection) -> int:
            _check(connection, lease)
            return trim(connection, expired, limit)

        return await self.database.write(work)

    async def shrink(self, lease: StoreLease) -> int:
        """Return unused pages of the database file to the disk; returns their number. Raises LeaseLost."""

        def work(connection: Connection) -> int:
            _check(connection, lease)
            return shrink(connection)

        return await self.database.write(work)

    # --- jobs, history, requests --------------------------------------------------------------------------------------

    async def jobs(self, ended_after: float) -> list[JobRow]:
        """Return active jobs, and ended ones since *ended_after* that are still listed, by number."""
        row = tables.jobs.c
        listed = row.ended.is_(None) | ((row.ended > ended_after) & row.forgotten.is_(None))
        return [_job(job) for job in await self._rows(select(tables.jobs).where(listed).order_by(row.number))]

    async def past_jobs(self, ids: Sequence[str]) -> list[JobRow]:
        """Return ended jobs with these ids, including unlisted ones, by number."""
        row = tables.jobs.c
        jobs: list[JobRow] = []
        for part in _chunks(ids):
            query = select(tables.jobs).where(row.id.in_(part), row.ended.is_not(None)).order_by(row.number)
            jobs += [_job(job) for job in await self._rows(query)]
        return jobs

    async def results(self, since: float) -> list[tuple[str, bytes]]:
        """Return (user, result) of all jobs that ended since *since*, for usage accounting."""
        row = tables.jobs.c
        rows = await self._rows(select(row.user, row.result).where(row.ended >= since))
        return [(user, result.encode()) for user, result in rows if result is not None]

    async def history(self, *, job: str | None = None, after: int = 0, limit: int = 1000) -> list[HistoryLine]:
        """Return history lines after this id, oldest first."""
        row = tables.history.c
        query = select(tables.history).where(row.id > after).order_by(row.id).limit(limit)
        if job is not None:
            query = query.where(row.job == job)
        lines = await self._rows(query)
        return [HistoryLine(**{**line._mapping, "data": msgspec.json.decode(line.data)}) for line in lines]

    async def first_history(self) -> int:
        """Return the id of the oldest stored history line; 0 without lines."""
        ((oldest,),) = await self._rows(select(func.min(tables.history.c.id)))
        return oldest or 0

    async def last_history(self) -> int:
        """Return the id of the newest history line ever stored; 0 without lines."""
        ((newest,),) = await self._rows(select(func.max(tables.history.c.id)))
        return max(newest or 0, int(await self.setting(_LAST_LINE) or 0))

    async def request(self, user: str, key: str) -> RequestRow | None:
        """Return the submission with this key."""
        row = tables.requests.c
        rows = await self._rows(select(tables.requests).where(row.user == user, row.key == key))
        return RequestRow(**{**rows[0]._mapping, "answer": rows[0].answer.encode()}) if rows else None

    async def keys_and_setting(self, name: str) -> tuple[set[tuple[str, str]], str | None]:
        """Return (user, key) of all stored submissions and one setting, in one read."""
        row, setting = tables.requests.c, tables.settings.c

        def query(connection: Connection) -> tuple[set[tuple[str, str]], str | None]:
            keys = {(user, key) for user, key in connection.execute(select(row.user, row.key))}
            return keys, connection.execute(select(setting.value).where(setting.name == name)).scalar_one_or_none()

        return await self.database.read(query)

    async def forget(
        self, lease: StoreLease, at: float, *, requests_before: float, jobs: Sequence[tuple[int, str]]
    ) -> None:
        """Remove submission keys from before *requests_before*, and list these jobs (number, id) no longer."""

        def drop(connection: Connection) -> None:
            _check(connection, lease)
            connection.execute(delete(tables.requests).where(tables.requests.c.at < requests_before))
            if jobs:
                newest = connection.execute(select(func.max(tables.history.c.id))).scalar()
                if newest is not None:
                    # Ids must not be reused: clients continue after the last id that they have seen.
                    _put_setting(connection, _LAST_LINE, str(newest))
                connection.execute(_FORGET_JOBS, [{"forgotten_job": number, "forgotten": at} for number, _ in jobs])
                connection.execute(_FORGET_LINES, [{"forgotten_job": job} for _, job in jobs])

        await self.database.write(drop)

    # --- settings ------------------------------------------------------------------------------------------------

    async def setting(self, name: str) -> str | None:
        """Return a setting by name."""
        rows = await self._rows(select(tables.settings.c.value).where(tables.settings.c.name == name))
        return rows[0].value if rows else None

    async def set_setting(self, name: str, value: str, lease: StoreLease | None = None) -> None:
        """Store a setting; with *lease*, raises LeaseLost if it was lost."""

        def put(connection: Connection) -> None:
            if lease is not None:
                _check(connection, lease)
            _put_setting(connection, name, value)

        await self.database.write(put)

    async def identity(self) -> str:
        """Return the permanent id of the database; the first caller creates it."""
        id_setting = select(tables.settings.c.value).where(tables.settings.c.name == STORE_ID)

        def find_or_create(connection: Connection) -> str:
            connection.execute(select(tables.lease.c.epoch).with_for_update())  # one server at a time
            known: str | None = connection.execute(id_setting).scalar()
            if known is None:
                known = secrets.token_hex(8)
                _put_setting(connection, STORE_ID, known)
            return known

        return await self.database.write(find_or_create)

    async def _rows(self, query: Select[*tuple[Any, ...]]) -> Sequence[Any]:
        return await self.database.read(lambda connection: connection.execute(query).all())


def _put_setting(connection: Connection, name: str, value: str) -> None:
    connection.execute(delete(tables.settings).where(tables.settings.c.name == name))
    connection.execute(insert(tables.settings), {"name": name, "value": value})


def _check(connection: Connection, lease: StoreLease) -> None:
    if connection.execute(_HOLD, {"known_epoch": lease.epoch}).rowcount != 1:
        raise LeaseLost("another server has taken over this store")


def _is_logged(connection: Connection, lease: StoreLease, changes: Changes) -> bool:
    """Whether exactly this append is in the log."""
    row = tables.log.c
    query = select(row.body).where(row.sequence == lease.sequence + 1, row.epoch == lease.epoch)
    body = connection.execute(query).scalar_one_or_none()
    return body is not None and changes.entry is not None and bytes(body) == changes.entry


def _write_jobs(connection: Connection, changes: Changes) -> None:
    if changes.jobs:
        rows = [{**_plain(job), "about": job.about.decode(), "result": None} for job in changes.jobs]
        connection.execute(_ADD_JOBS, rows)
    if changes.edited:
        edits = [{"edited_job": job, "about": about.decode()} for job, about in changes.edited]
        connection.execute(_EDIT_JOBS, edits)
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


def _chunks(values: Sequence[str]) -> Iterator[Sequence[str]]:
    """Split values, because a statement takes about 10,000 at most."""
    return (values[begin : begin + _PAGE] for begin in range(0, len(values), _PAGE))


def _plain(value: msgspec.Struct) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__struct_fields__}
