"""Database access for SQLite and PostgreSQL: transactions, upgrades, errors.

A transaction is a plain function of a connection, so that all its statements run outside the event loop with one wait:
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

from levada.errors import BadInput, LevadaError, MissingExtra

#: Seconds that a statement waits for another writer of the same SQLite file.
_BUSY_S = 10.0
#: Free disk space reserved for turns of accepted jobs; new jobs are refused below it.
_RESERVE_BYTES = 2 << 20
#: Reader threads of a SQLite file beside its one writer.
_READERS = 4

#: Parts of error messages of an unreachable database. asyncpg reports "another operation is in progress" for a
#: connection that broke during one.
_AWAY = ("connect", "refused", "shutting down", "starting up", "another operation")

T = TypeVar("T")


class StoreError(LevadaError):
    """The database refused a read or write; nothing was lost, and a retry may succeed."""


class Unconfirmed(StoreError):
    """A commit got no answer: the log must be queried for its result."""


class _CommitFailed(Exception):
    """A commit got no answer or an error; see the cause."""


class Database:
    """One SQLite or PostgreSQL database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = _engine(url)

    @staticmethod
    async def open(url: str) -> Database:
        """Open the database at *url*; an empty one gets the schema of this version. Raises BadInput or LevadaError.

        An older schema stays as it is until `migrate`, because another server may use it.
        """
        database = Database(url)
        try:
            await database.write(lambda connection: _prepare(connection, url))
        except BaseException:
            await database.close()
            raise
        return database

    async def migrate(self, check: Callable[[Connection], None]) -> None:
        """Upgrade the schema in one transaction, which *check* may refuse by raising."""

        def work(connection: Connection) -> None:
            check(connection)
            _upgrade(connection, self.url)

        await self.write(work)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run *work* in a read transaction; raises StoreError."""
        return await self._translate_errors(self._engine.read(work))

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run *work* in a write transaction: all of it or nothing; raises StoreError."""
        return await self._translate_errors(self._engine.write(work))

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.close()

    def check_room(self) -> None:
        """Raise StoreError if the disk of a local database has less than 2 MiB free."""
        path = self._engine.path
        if path is None:
            return
        try:
            disk = os.statvfs(path)
        except FileNotFoundError:
            return
        if disk.f_bavail * disk.f_frsize < _RESERVE_BYTES:
            raise StoreError(f"database {shown(self.url)}: its disk is nearly full; free some space")

    async def _translate_errors(self, work: Any) -> Any:
        try:
            return await work
        except IntegrityError:
            raise  # a bug, which a retry does not fix
        except _CommitFailed as failed:
            cause = failed.__cause__
            if not isinstance(cause, SQLAlchemyError | sqlite3.Error | OSError):
                raise
            raise Unconfirmed(str(store_error(cause, self.url))) from cause
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise store_error(error, self.url) from error


class _Sqlite:
    """A SQLite file with one writer thread: SQLite lets concurrent writers sleep for too long."""

    def __init__(self, url: URL) -> None:
        self.path = url.database
        self._engine: Engine = create_engine(url, connect_args={"timeout": _BUSY_S}, hide_parameters=True)
        event.listen(self._engine, "connect", _prepare_sqlite)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store writes")
        # A database in memory belongs to its thread.
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="store reads") if self.path else self._writer

    async def read(self, work: Callable[[Connection], T]) -> T:
        return await self._run_in(self._readers, work)

    async def write(self, work: Callable[[Connection], T]) -> T:
        return await self._run_in(self._writer, work)

    async def _run_in(self, threads: ThreadPoolExecutor, work: Callable[[Connection], T]) -> T:
        def run() -> T:
            with self._engine.connect() as connection:
                transaction = connection.begin()
                result = work(connection)
                try:
                    transaction.commit()
                except Exception as error:
                    raise _CommitFailed from error
                return result

        return await asyncio.get_running_loop().run_in_executor(threads, run)

    async def close(self) -> None:
        for threads in (self._readers, self._writer):
            await asyncio.to_thread(threads.shutdown)
        self._engine.dispose()


class _Postgres:
    """A PostgreSQL server, over an asynchronous driver."""

    path = None

    def __init__(self, url: URL) -> None:
        self._engine: AsyncEngine = create_async_engine(url, pool_pre_ping=True, hide_parameters=True)

    async def read(self, work: Callable[[Connection], T]) -> T:
        async with self._engine.connect() as connection:
            transaction = await connection.begin()
            result = await connection.run_sync(work)
            try:
                await transaction.commit()
            except Exception as error:
                raise _CommitFailed from error
            return result

    async def write(self, work: Callable[[Connection], T]) -> T:
        return await self.read(work)

    async def close(self) -> None:
        await self._engine.dispose()


def shown(url: str) -> str:
    """Return *url* without its password and its options, which may contain it, too."""
    return make_url(url).set(query={}).render_as_string(hide_password=True)


def store_error(error: BaseException, url: str) -> StoreError:
    """Convert a database error to one line with advice."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    message = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
    low = message.lower()
    if "is full" in low or "no space" in low:
        advice = "free space on its disk; the server then continues by itself"
    elif "readonly" in low or "read-only" in low or "permission" in low or "unable to open" in low:
        advice = "give the server write access, or use another --state-dir or --store"
    elif "not a database" in low or "malformed" in low:
        advice = "it is damaged: restore a backup, or use another --state-dir or --store"
    elif any(word in low for word in _AWAY) or isinstance(cause, OSError):
        advice = "check that it runs and that address, user and password are right"
    else:
        advice = "see the server's log"
    return StoreError(f"database {shown(url)}: {message}; {advice}")


def _engine(url: str) -> _Sqlite | _Postgres:
    """Return the engine for *url*, without connecting."""
    try:
        parsed = make_url(url)
        kind = parsed.drivername.partition("+")[0]
        if kind == "sqlite":
            return _Sqlite(parsed.set(drivername="sqlite"))
        if kind in ("postgresql", "postgres"):
            return _Postgres(parsed.set(drivername="postgresql+asyncpg"))
    except (ArgumentError, NoSuchModuleError, ValueError):
        # Show neither the URL nor the error: both may contain a password.
        example = "sqlite:////var/lib/levada.db or postgresql://USER@HOST/NAME"
        raise BadInput.one(f"--store: is not a database URL such as {example}") from None
    except ModuleNotFoundError:
        raise MissingExtra("PostgreSQL", "postgres") from None
    raise BadInput.one(f"--store {shown(url)}: must begin with sqlite: or postgresql:")


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """Allow readers beside one writer, and make every commit durable."""
    try:
        # Allows `shrink`; must come before the first table, and before WAL mode creates the file.
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
    except BaseException:
        connection.close()  # no caller has it yet
        raise


def _prepare(connection: Connection, url: str) -> None:
    """Create the tables in an empty database; raises LevadaError for a newer schema."""
    if connection.dialect.name == "postgresql":
        # Two servers that start at the same time must not both create the tables.
        connection.execute(text("SELECT pg_advisory_xact_lock(7264001)"))
    config = _config(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if inspect(connection).has_table("alembic_version"):
        version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        if version is not None and version not in known:
            raise LevadaError(
                f"database {shown(url)} was written by a newer Levada (schema {version}); "
                "install that version again, or use another --state-dir or --store"
            )
        if version is not None:
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
    except (CommandError, ResolutionError) as error:
        raise LevadaError(f"database {shown(url)}: {error}") from error
