"""The folder of one server: who has it, where it answers, and what it was told when it was first started."""

from __future__ import annotations

import contextlib
import ctypes
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
#: The kernel's `struct statx`: its length, where the time of birth is in it, and what to ask for.
_STATX_BYTES, _STATX_BTIME_AT, _STATX_BTIME, _AT_FDCWD = 256, 80, 0x800, -100


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

    def place(self) -> str:
        """What tells this folder from a copy of it: the numbers and birth of the folder and of its lock."""
        return " ".join(_identity(path) for path in (self.folder, self.path(LOCK)))

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


def _identity(path: Path) -> str:
    """Inode and time of birth, neither of which a copy takes along; the latter is 0 where the file system has none."""
    return f"{path.stat().st_ino}:{_born_ns(path)}"


def _born_ns(path: Path) -> int:
    """When a file was made, by statx(2), which Python does not offer."""
    statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path.absolute()), 0, _STATX_BTIME, answer) != 0:
        return 0
    (mask,) = struct.unpack_from("@I", answer, 0)
    seconds, nanoseconds = struct.unpack_from("@qI", answer, _STATX_BTIME_AT)
    return int(seconds * 10**9 + nanoseconds) if mask & _STATX_BTIME else 0
