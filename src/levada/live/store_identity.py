"""Check that a database is the one that a state directory was last used with.

Processes of jobs belong to the directory, their description to the database. A server on a database that has lost turns
would stop jobs that it does not know, and restart jobs that have ended.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

import msgspec
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from levada.errors import Refused
from levada.live.store import STORE_ID, Store, StoreLease, shown

FILE = "store.json"
#: Bytes of the file, which is overwritten in place and padded with blanks.
_SIZE = 256
_REMEDY = "restore its newest backup together with its -wal file, or use a new directory (--state-dir)"


class _Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The database as of the last turn stored from this directory."""

    store: str
    epoch: int
    sequence: int


class StoreIdentity:
    """Record of the database in a state directory."""

    def __init__(self, folder: Path, fence: int = 0) -> None:
        """*fence*: highest epoch that commanded processes of this directory; the next epoch must be higher."""
        self.fence = fence
        self._folder, self._path = folder, folder / FILE
        self._contains = f"state directory {folder} contains"
        self._id = ""
        self._file = -1

    def check_file(self, url: str) -> None:
        """Raise Refused if a known SQLite file is missing or empty, before a new one is created."""
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):
            return  # `Database.open` reports it
        if not parsed.drivername.startswith("sqlite") or not parsed.database or not self._was_used():
            return
        path = Path(parsed.database)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size:
                return
        raise Refused(f"database {path} is missing or empty, but {self._contains} its jobs: {_REMEDY}")

    async def check(self, store: Store, lease: StoreLease) -> None:
        """Raise Refused if the database is not the one of this directory or has lost turns; else record it."""
        known, store_id, url = self._read(), await store.setting(STORE_ID), shown(store.database.url)
        if known is None:
            if lease.sequence == 0 and self._was_used():
                raise Refused(f"database {url} is empty, but {self._contains} jobs of another database: {_REMEDY}")
        elif store_id != known.store:
            problem = "is empty" if lease.sequence == 0 else "has another id"
            raise Refused(f"database {url} {problem}, but {self._contains} jobs of another database: {_REMEDY}")
        elif lease.sequence < known.sequence or lease.epoch <= known.epoch:
            raise Refused(
                f"database {url} has lost turns: it ends with turn {lease.sequence}, but state directory "
                f"{self._folder} has seen turn {known.sequence}; {_REMEDY}, or, if none of its jobs runs any more, "
                f"remove {self._path} to use this one"
            )
        if store_id is None:
            store_id = secrets.token_hex(8)
            await store.set_setting(STORE_ID, store_id, lease)
        self.close()
        self._id = store_id
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.note(lease)

    def note(self, lease: StoreLease) -> None:
        """Record that the database has this turn; without fsync, so the record may be older than the database."""
        if self._file >= 0:
            body = msgspec.json.encode(_Seen(store=self._id, epoch=lease.epoch, sequence=lease.sequence))
            with contextlib.suppress(OSError):  # e.g. a full disk; the next turn writes it
                os.pwrite(self._file, body.ljust(_SIZE), 0)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self) -> _Seen | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Seen)
        except (OSError, msgspec.DecodeError):
            return None

    def _was_used(self) -> bool:
        """Whether jobs were started from this directory before."""
        with contextlib.suppress(OSError):
            return self._read() is not None or (self.fence > 0 and any((self._folder / "jobs").iterdir()))
        return False
