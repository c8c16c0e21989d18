"""Opens the database, brings it to this version's shape, and turns its troubles into sentences."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.script.revision import ResolutionError
from alembic.util import CommandError
from sqlalchemy import Connection, event, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from levada.errors import BadInput, LevadaError

#: How long a statement waits for another writer of the same file.
_BUSY_S = 10.0
#: So much room on its disk is for what becomes of jobs that were taken: none is taken into it.
_RESERVE_BYTES = 2 << 20


class StoreTrouble(LevadaError):
    """The database does not take or give what it should; nothing was lost, and the same may work later."""


async def open_database(url: str) -> AsyncEngine:
    """The database at *url*, with all tables of this version."""
    engine = _engine(url)
    try:
        if engine.dialect.name == "sqlite" and engine.url.database:
            # Here first: a connection of SQLAlchemy's that fails leaves a thread that outlives this call.
            await asyncio.to_thread(_look_at, engine.url.database)
        async with engine.connect() as connection:
            await connection.run_sync(_migrate, url)
            await connection.commit()
    except BaseException as broken:
        await engine.dispose()
        if isinstance(broken, SQLAlchemyError | sqlite3.Error | OSError):
            raise trouble(broken, url) from broken
        raise
    return engine


def shown(url: str) -> str:
    """*url* without its password."""
    return make_url(url).render_as_string(hide_password=True)


#: One lock per file of SQLite: it has one writer at a time, and lets the others sleep for far too long.
_writing: WeakKeyDictionary[AsyncEngine, asyncio.Lock] = WeakKeyDictionary()


@asynccontextmanager
async def writing(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A transaction that writes; whoever else of this process writes waits for their turn."""
    if engine.dialect.name != "sqlite":
        async with transaction(engine) as connection:
            yield connection
        return
    async with _writing.setdefault(engine, asyncio.Lock()), transaction(engine) as connection:
        yield connection


@asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """All or nothing; raises StoreTrouble where the database refuses."""
    try:
        async with engine.begin() as connection:
            yield connection
    except IntegrityError:
        raise  # a fault of ours, which trying again does not mend
    except (SQLAlchemyError, sqlite3.Error, OSError) as broken:
        raise trouble(broken, str(engine.url)) from broken


def check_room(engine: AsyncEngine) -> None:
    """Raises StoreTrouble where the disk of a database of this machine is nearly full."""
    path = engine.url.database
    if engine.dialect.name != "sqlite" or not path or not os.path.exists(path):
        return
    disk = os.statvfs(path)
    if disk.f_bavail * disk.f_frsize < _RESERVE_BYTES:
        raise StoreTrouble(f"database {shown(str(engine.url))}: its disk is nearly full; make room there")


def trouble(broken: BaseException, url: str) -> StoreTrouble:
    """What is wrong with the database, in one line that says what to do."""
    cause = broken.orig if isinstance(broken, DBAPIError) else broken
    said = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
    low = said.lower()
    if "is full" in low or "no space" in low:
        advice = "make room on its disk; the server goes on by itself then"
    elif "readonly" in low or "read-only" in low or "permission" in low or "unable to open" in low:
        advice = "let the server write there, or name another place with --state or --store"
    elif "not a database" in low or "malformed" in low:
        advice = "it is damaged: put back a copy of it, or name another place with --state or --store"
    elif "connect" in low or "refused" in low or isinstance(cause, OSError):
        advice = "is it up, and are address, user and password right?"
    else:
        advice = "see the server's log"
    return StoreTrouble(f"database {shown(url)}: {said}; {advice}")


def _engine(url: str) -> AsyncEngine:
    try:
        parsed = make_url(url)
        drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}
        kind = parsed.drivername.partition("+")[0]
        if kind not in drivers:
            raise BadInput.one(f"--store {shown(url)}: must begin with sqlite: or postgresql:")
        parsed = parsed.set(drivername=drivers[kind])
        if kind == "sqlite":
            engine = create_async_engine(parsed, connect_args={"timeout": _BUSY_S})
            event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        else:
            engine = create_async_engine(parsed, pool_pre_ping=True)
    except (ArgumentError, NoSuchModuleError) as broken:
        raise BadInput.one(f"--store {url}: {broken}; e.g. sqlite:////var/lib/levada.db") from None
    except ModuleNotFoundError as broken:
        raise LevadaError(f"PostgreSQL needs {broken.name}: pip install 'levada[postgres]'") from None
    return engine


def _look_at(path: str) -> None:
    """Raises sqlite3.Error where *path* is no database, or none that can be written to."""
    with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_S)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("SELECT count(*) FROM sqlite_master")


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """Readers beside one writer, and nothing said to be written that is not on the disk."""
    cursor = connection.cursor()
    try:
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.close()
    except BaseException:
        # Nobody else would, and its thread would outlive the loop.
        connection.close()
        raise


def _migrate(connection: Connection, url: str) -> None:
    if connection.dialect.name == "postgresql":
        # Two servers that start at once must not both make the tables.
        connection.execute(text("SELECT pg_advisory_xact_lock(7264001)"))
    config = Config()
    config.set_main_option("script_location", "levada.live.store:migrations")
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if inspect(connection).has_table("alembic_version"):
        there = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        if there is not None and there not in known:
            raise LevadaError(
                f"database {shown(url)} was written by a newer Levada (shape {there}); "
                "install that version again, or name another place with --state or --store"
            )
    try:
        command.upgrade(config, "head")
    except (CommandError, ResolutionError) as broken:
        raise LevadaError(f"database {shown(url)}: {broken}") from broken
