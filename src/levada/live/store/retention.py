"""Deletion of expired rows in small batches, so that no turn waits for long."""

from __future__ import annotations

import msgspec
from sqlalchemy import Column, Connection, Table, delete, func, select

from levada.live.store import tables

#: Free pages that a SQLite file keeps; the rest is returned to the disk.
_SPARE_PAGES = 1024
#: Pages that one call returns.
_PAGES = 256
#: Snapshots that must cover a turn before it is removed.
_SNAPSHOTS = 2


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """What may be removed: turns up to a sequence number, other rows older than a time."""

    turn: int = 0
    history_before: float = 0.0
    jobs_before: float = 0.0
    audit_before: float = 0.0


def trim(connection: Connection, expired: Expired, limit: int) -> int:
    """Remove up to *limit* expired rows per table; returns their number."""
    removed = _turns(connection, expired.turn, limit)
    removed += _oldest(connection, tables.history, tables.history.c.id, expired.history_before, limit)
    removed += _oldest(connection, tables.audit, tables.audit.c.id, expired.audit_before, limit)
    return removed + _jobs(connection, expired.jobs_before, limit)


def _turns(connection: Connection, last: int, limit: int) -> int:
    snapshots = select(func.count()).select_from(tables.snapshots).where(tables.snapshots.c.sequence >= last)
    row = tables.log.c
    first = connection.execute(select(func.min(row.sequence))).scalar()
    if first is None or first > last or connection.execute(snapshots).scalar_one() < _SNAPSHOTS:
        return 0
    return connection.execute(delete(tables.log).where(row.sequence <= min(last, first + limit - 1))).rowcount


def _oldest(connection: Connection, table: Table, by: Column[int], before: float, limit: int) -> int:
    """Remove old rows in the order of *by*, which is the order of time; the newest row stays, for its id."""
    first = connection.execute(select(by, table.c.at).order_by(by).limit(limit + 1)).all()
    old = [number for number, at in first[:-1] if at < before]
    return connection.execute(delete(table).where(by <= max(old))).rowcount if old else 0


def _jobs(connection: Connection, before: float, limit: int) -> int:
    """Remove unlisted jobs whose usage is past its retention time."""
    row = tables.jobs.c
    old = select(row.number).where(row.ended < before, row.forgotten.is_not(None)).order_by(row.ended).limit(limit)
    numbers = connection.execute(old).scalars().all()
    return connection.execute(delete(tables.jobs).where(row.number.in_(numbers))).rowcount if numbers else 0


def shrink(connection: Connection) -> int:
    """Return unused pages of a SQLite file to the disk; returns their number, 0 for PostgreSQL.

    A file created by an older version does not support this, but reuses its free pages.
    """
    if connection.dialect.name != "sqlite":
        return 0

    def free() -> int:
        return int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one())

    before = free()
    if before <= _SPARE_PAGES:
        return 0
    # The statement frees one page per step, so all its rows must be fetched.
    cursor = connection.connection.cursor()
    cursor.execute(f"PRAGMA incremental_vacuum({min(_PAGES, before - _SPARE_PAGES)})")
    cursor.fetchall()
    cursor.close()
    return before - free()
