"""The folder of one server: who has it, where it answers, and what it was told when it was first started."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from levada.errors import LevadaError, Refused

SERVER, LOCK, STOP, TOKEN, SETUP, LOG = "server.json", "lock", "stop.json", "owner-token", "setup.json", "server.log"
#: A folder with one of these is a server's.
_OURS = frozenset({LOCK, SETUP, TOKEN, LOG})
#: Rights of others than the owner.
_OTHERS = 0o077
#: The kernel's `struct flock`: type, whence, start, length, holder.
_FLOCK = "@hhqqi4x"


def advice(broken: OSError, otherwise: str) -> str:
    """What to do about a file that cannot be written."""
    return "make room on its disk" if broken.errno in (errno.ENOSPC, errno.EDQUOT) else otherwise


class Home:
    """A server's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self) -> None:
        """Makes the folder, or takes one that is there, for its owner alone; raises LevadaError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._close()
        except OSError as broken:
            todo = advice(broken, "name another folder with --state")
            raise LevadaError(f"{self.folder}: {broken.strerror}; {todo}") from None

    def _close(self) -> None:
        """Keys, tokens and what jobs are given lie here: nobody else may enter."""
        about = self.folder.stat()
        if not about.st_mode & _OTHERS:
            return
        holds = os.listdir(self.folder)
        if about.st_uid != os.geteuid() or (holds and not _OURS.intersection(holds)):
            why = "others can enter it, and it is not Levada's own"
            raise Refused(f"{self.folder}: {why}; name a new folder with --state")
        self.folder.chmod(0o700)

    def path(self, name: str) -> Path:
        """A file of it."""
        return self.folder / name

    def read(self, name: str) -> dict[str, Any]:
        """What a file says; empty where there is none, or nothing whole."""
        try:
            told = json.loads(self.path(name).read_bytes())
        except (OSError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}

    def write(self, name: str, told: Mapping[str, Any] | str) -> None:
        """Keeps a file that only its owner may read."""
        text = told if isinstance(told, str) else json.dumps(told)
        fresh = self.path(name + ".new")
        try:
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(text)
            os.replace(fresh, self.path(name))
        except OSError as broken:
            todo = advice(broken, "let the server write there")
            raise LevadaError(f"{self.path(name)}: {broken.strerror}; {todo}") from None

    def drop(self, name: str) -> None:
        """A file that is no longer true."""
        self.path(name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """The folder is this process's alone; raises Refused."""
        try:
            lock = os.open(self.path(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as broken:
            todo = advice(broken, "let the server write there")
            raise LevadaError(f"{self.path(LOCK)}: {broken.strerror}; {todo}") from None
        try:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Refused(f"a server (process {self.holder()}) is up in {self.folder} already") from None
            yield
        finally:
            os.close(lock)

    def holder(self) -> int | None:
        """The process that has the folder: its server, while it lives."""
        try:
            with open(self.path(LOCK), "r+b") as file:
                asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
        except OSError:
            return None
        return None if kind == fcntl.F_UNLCK else int(pid)
