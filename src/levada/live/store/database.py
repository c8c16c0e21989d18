"""Opens the database, brings it to this version's shape, and turns its troubles into sentences.

A transaction is a plain function of a connection, so that all its statements run beside the loop with one wait:
in threads of this module for SQLite, in a greenlet over an asynchronous driver for PostgreSQL.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.script.revision import ResolutionError
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from levada.errors import BadInput, LevadaError

#: How long a statement waits for another writer of the same file.
_BUSY_S = 10.0
#: So much room on its disk is for what becomes of jobs that were taken: none is taken into it.
_RESERVE_BYTES = 2 << 20
#: Readers of a file of SQLite beside its one writer.
_READERS = 4

#: What a database says that is not there, or not now.
# asyncpg says "another operation is in progress" of a connection that broke in the middle of one.
_AWAY = ("connect", "refused", "shutting down", "starting up", "another operation")

T = TypeVar("T")


class StoreTrouble(LevadaError):
    """The database does not take or give what it should; nothing was lost, and the same may work later."""


class Unconfirmed(StoreTrouble):
    """The database was asked to commit and did not say that it had: whether it did must be looked up."""


class _CommitFailed(Exception):
    """A commit got no answer, or a bad one; the cause tells more."""


class Database:
    """One database of either kind."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = _engine(url)

    @staticmethod
    async def open(url: str) -> Database:
        """The database at *url*; one that is empty gets the tables of this version. Raises BadInput or LevadaError.

        Tables of an older version stay as they are until `migrate`: another server may act on them.
        """
        database = Database(url)
        try:
            await database.write(lambda connection: _prepare(connection, url))
        except BaseException:
            await database.close()
            raise
        return database

    async def migrate(self, check: Callable[[Connection], None]) -> None:
        """Brings the tables to this version's shape, in one transaction that *check* may refuse."""

        def work(connection: Connection) -> None:
            check(connection)
            _upgrade(connection, self.url)

        await self.write(work)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """What *work* finds, all at one moment; raises StoreTrouble where the database refuses."""
        return await self._spoken(self._engine.read(work))

    async def write(self, work: Callable[[Connection], T]) -> T:
        """All that *work* does, or nothing; raises StoreTrouble where the database refuses."""
        return await self._spoken(self._engine.write(work))

    async def close(self) -> None:
        """Lets go of it."""
        await self._engine.close()

    def check_room(self) -> None:
        """Raises StoreTrouble where the disk of a database of this machine is nearly full."""
        path = self._engine.path
        if path is None:
            return
        try:
            disk = os.statvfs(path)
        except FileNotFoundError:
            return
        if disk.f_bavail * disk.f_frsize < _RESERVE_BYTES:
            raise StoreTrouble(f"database {shown(self.url)}: its disk is nearly full; make room there")

    async def _spoken(self, work: Any) -> Any:
        try:
            return await work
        except IntegrityError:
            raise  # a fault of ours, which trying again does not mend
        except _CommitFailed as failed:
            cause = failed.__cause__
            if not isinstance(cause, SQLAlchemyError | sqlite3.Error | OSError):
                raise
            raise Unconfirmed(str(trouble(cause, self.url))) from cause
        except (SQLAlchemyError, sqlite3.Error, OSError) as broken:
            raise trouble(broken, self.url) from broken


class _Sqlite:
    """A file, with one thread that writes: it has one writer at a time, and lets others sleep for far too long."""

    def __init__(self, url: URL) -> None:
        self.path = url.database
        self._engine: Engine = create_engine(url, connect_args={"timeout": _BUSY_S}, hide_parameters=True)
        event.listen(self._engine, "connect", _prepare_sqlite)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store writes")
        # A database in memory is that of its thread.
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="store reads") if self.path else self._writer

    async def read(self, work: Callable[[Connection], T]) -> T:
        return await self._within(self._readers, work)

    async def write(self, work: Callable[[Connection], T]) -> T:
        return await self._within(self._writer, work)

    async def _within(self, threads: ThreadPoolExecutor, work: Callable[[Connection], T]) -> T:
        def run() -> T:
            with self._engine.connect() as connection:
                transaction = connection.begin()
                done = work(connection)
                try:
                    transaction.commit()
                except Exception as broken:
                    raise _CommitFailed from broken
                return done

        return await asyncio.get_running_loop().run_in_executor(threads, run)

    async def close(self) -> None:
        for threads in (self._readers, self._writer):
            await asyncio.to_thread(threads.shutdown)
        self._engine.dispose()


class _Postgres:
    """A server elsewhere, over an asynchronous driver."""

    path = None

    def __init__(self, url: URL) -> None:
        self._engine: AsyncEngine = create_async_engine(url, pool_pre_ping=True, hide_parameters=True)

    async def read(self, work: Callable[[Connection], T]) -> T:
        async with self._engine.connect() as connection:
            transaction = await connection.begin()
            done = await connection.run_sync(work)
            try:
                await transaction.commit()
            except Exception as broken:
                raise _CommitFailed from broken
            return done

    async def write(self, work: Callable[[Connection], T]) -> T:
        return await self.read(work)

    async def close(self) -> None:
        await self._engine.dispose()


def shown(url: str) -> str:
    """*url* without its password, which may also be among its options."""
    return make_url(url).set(query={}).render_as_string(hide_password=True)


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
    elif any(word in low for word in _AWAY) or isinstance(cause, OSError):
        advice = "is it up, and are address, user and password right?"
    else:
        advice = "see the server's log"
    return StoreTrouble(f"database {shown(url)}: {said}; {advice}")


def _engine(url: str) -> _Sqlite | _Postgres:
    """Whatever *url* names; nothing is asked of it yet."""
    try:
        parsed = make_url(url)
        kind = parsed.drivername.partition("+")[0]
        if kind == "sqlite":
            return _Sqlite(parsed.set(drivername="sqlite"))
        if kind in ("postgresql", "postgres"):
            return _Postgres(parsed.set(drivername="postgresql+asyncpg"))
    except (ArgumentError, NoSuchModuleError, ValueError):
        # Neither it nor what is said about it: there may be a password in both.
        example = "sqlite:////var/lib/levada.db or postgresql://USER@HOST/NAME"
        raise BadInput.one(f"--store: is no address of a database, as in {example}") from None
    except ModuleNotFoundError as broken:
        raise LevadaError(f"PostgreSQL needs {broken.name}: pip install 'levada[postgres]'") from None
    raise BadInput.one(f"--store {shown(url)}: must begin with sqlite: or postgresql:")


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """Readers beside one writer, and nothing said to be written that is not on the disk."""
    try:
        # Counts only before the first table, and before the next line makes the file one: so room can be given back.
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
    except BaseException:
        connection.close()  # nobody else would
        raise


def _prepare(connection: Connection, url: str) -> None:
    """Makes the tables where there are none; raises LevadaError for those of a newer version."""
    if connection.dialect.name == "postgresql":
        # Two servers that start at once must not both make the tables.
        connection.execute(text("SELECT pg_advisory_xact_lock(7264001)"))
    config = _config(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if inspect(connection).has_table("alembic_version"):
        there = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        if there is not None and there not in known:
            raise LevadaError(
                f"database {shown(url)} was written by a newer Levada (shape {there}); "
                "install that version again, or name another place with --state or --store"
            )
        if there is not None:
            return
    _upgrade(connection, url)


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", "levada.live.store:migrations")
    config.attributes["connection"] = connection
    return config


def _upgrade(connection: Connection, url: str) -> None:
    try:
        command.upgrade(_config(connection), "head")
    except (CommandError, ResolutionError) as broken:
        raise LevadaError(f"database {shown(url)}: {broken}") from broken
