"""What nobody needs any more goes: a few rows at a time, so that no turn waits for long."""

from __future__ import annotations

import msgspec
from sqlalchemy import Column, Connection, Table, delete, func, select

from levada.live.store import tables

#: Free pages that a file of SQLite keeps for what comes; the rest is given back to its disk.
_SPARE_PAGES = 1024
#: Pages that are given back at a time.
_PAGES = 256
#: No turn goes unless so many snapshots can stand for it.
_SNAPSHOTS = 2


class Spare(msgspec.Struct, frozen=True, kw_only=True):
    """What is not needed any more: turns up to one, and what is older than so."""

    turn: int = 0
    history_before: float = 0.0
    jobs_before: float = 0.0
    audit_before: float = 0.0


def trim(connection: Connection, spare: Spare, most: int) -> int:
    """Removes *most* rows of each kind that are *spare*; how many went."""
    gone = _turns(connection, spare.turn, most)
    gone += _oldest(connection, tables.history, tables.history.c.id, spare.history_before, most)
    gone += _oldest(connection, tables.audit, tables.audit.c.id, spare.audit_before, most)
    return gone + _jobs(connection, spare.jobs_before, most)


def _turns(connection: Connection, last: int, most: int) -> int:
    kept = select(func.count()).select_from(tables.snapshots).where(tables.snapshots.c.sequence >= last)
    row = tables.log.c
    first = connection.execute(select(func.min(row.sequence))).scalar()
    if first is None or first > last or connection.execute(kept).scalar_one() < _SNAPSHOTS:
        return 0
    return connection.execute(delete(tables.log).where(row.sequence <= min(last, first + most - 1))).rowcount


def _oldest(connection: Connection, table: Table, by: Column[int], before: float, most: int) -> int:
    """Rows come in the order of *by*, so that the first ones are the oldest; the newest stays, for its number."""
    first = connection.execute(select(by, table.c.at).order_by(by).limit(most + 1)).all()
    old = [number for number, at in first[:-1] if at < before]
    return connection.execute(delete(table).where(by <= max(old))).rowcount if old else 0


def _jobs(connection: Connection, before: float, most: int) -> int:
    """Jobs that are out of all lists, and whose use nobody reckons up any more."""
    row = tables.jobs.c
    old = select(row.number).where(row.ended < before, row.forgotten.is_not(None)).order_by(row.ended).limit(most)
    numbers = connection.execute(old).scalars().all()
    return connection.execute(delete(tables.jobs).where(row.number.in_(numbers))).rowcount if numbers else 0


def shrink(connection: Connection) -> int:
    """Gives room that a file of SQLite does not use back to its disk; how many pages. PostgreSQL sees to itself.

    A file that an older version made has no way to do this; what is free in it is used again all the same.
    """
    if connection.dialect.name != "sqlite":
        return 0

    def free() -> int:
        return int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one())

    before = free()
    if before <= _SPARE_PAGES:
        return 0
    # A page goes with each step of the statement, so that all of them have to be taken.
    cursor = connection.connection.cursor()
    cursor.execute(f"PRAGMA incremental_vacuum({min(_PAGES, before - _SPARE_PAGES)})")
    cursor.fetchall()
    cursor.close()
    return before - free()
