"""What a state folder remembers of its database, so that a lost or older one is not taken for the whole truth.

Jobs and their processes live in the folder, and the database says what they are. A server on a database that has lost
turns would stop jobs that it does not know, and start jobs again that have ended.
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
from levada.live.store import Lease, Store, shown

FILE = "store.json"
#: The setting that names a database for life.
_ID = "id"
#: The file is written in place, in one piece, with blanks behind.
_SIZE = 256
_REMEDY = "put back its newest copy, with its -wal file beside it, or start with a new folder (--state)"


class _Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The database when it was last written to from this folder."""

    store: str
    epoch: int
    sequence: int


class Witness:
    """The memory of one folder."""

    def __init__(self, folder: Path, fence: int = 0) -> None:
        """*fence*: the highest epoch that commanded the processes of this folder; the next one is higher."""
        self.fence = fence
        self._folder, self._path = folder, folder / FILE
        self._id = ""
        self._file = -1

    def check_file(self, url: str) -> None:
        """Raises Refused where a file of SQLite is missing or empty though there was one, before a new one is made."""
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):
            return  # who opens it says so
        if not parsed.drivername.startswith("sqlite") or not parsed.database or not self._had_one():
            return
        path = Path(parsed.database)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size:
                return
        raise Refused(f"the database {path} is missing or empty, and {self._folder} has jobs of it: {_REMEDY}")

    async def check(self, store: Store, lease: Lease) -> None:
        """Raises Refused where the database is not the one of this folder, or has lost turns since; remembers it."""
        known, there, url = self._read(), await store.setting(_ID), shown(store.database.url)
        if known is None:
            if lease.sequence == 0 and self._had_one():
                raise Refused(f"the database {url} is empty, and {self._folder} has jobs of another one: {_REMEDY}")
        elif there != known.store:
            what = "is empty" if lease.sequence == 0 else "is another one"
            raise Refused(f"the database {url} {what}, and {self._folder} has jobs of the one before it: {_REMEDY}")
        elif lease.sequence < known.sequence or lease.epoch <= known.epoch:
            raise Refused(
                f"the database {url} has lost turns: it ends with turn {lease.sequence}, and {self._folder} has seen "
                f"turn {known.sequence}; {_REMEDY}, or, to go on with this one when no job of it runs any more, remove "
                f"{self._path}"
            )
        if there is None:
            there = secrets.token_hex(8)
            await store.set_setting(_ID, there, lease)
        self.close()
        self._id = there
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.note(lease)

    def note(self, lease: Lease) -> None:
        """The database has this turn. Not forced to the disk: what the folder knows may be older, never newer."""
        if self._file >= 0:
            body = msgspec.json.encode(_Seen(store=self._id, epoch=lease.epoch, sequence=lease.sequence))
            with contextlib.suppress(OSError):  # a full disk: the next one tells
                os.pwrite(self._file, body.ljust(_SIZE), 0)

    def close(self) -> None:
        """Lets go of the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self) -> _Seen | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Seen)
        except (OSError, msgspec.DecodeError):
            return None

    def _had_one(self) -> bool:
        """Whether jobs were started here before."""
        with contextlib.suppress(OSError):
            return self._read() is not None or (self.fence > 0 and any((self._folder / "jobs").iterdir()))
        return False
