"""State directory of a server: lock, address, owner's token, settings."""

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
#: Files that identify a state directory.
_OURS = frozenset({LOCK, SETUP, TOKEN, LOG})
#: Permission bits of group and others.
_OTHERS = 0o077
#: `struct flock` of the kernel: type, whence, start, length, pid.
_FLOCK = "@hhqqi4x"
#: `struct statx` of the kernel: size, offset of the creation time, mask for it.
_STATX_BYTES, _STATX_BTIME_AT, _STATX_BTIME, _AT_FDCWD = 256, 80, 0x800, -100


def advice(broken: OSError, otherwise: str) -> str:
    """Return what to do about a file that cannot be written."""
    return "free space on its disk" if broken.errno in (errno.ENOSPC, errno.EDQUOT) else otherwise


class StateFolder:
    """The state directory of a server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self) -> None:
        """Create the directory, or use an existing one, with access for its owner only; raises LevadaError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._restrict()
        except OSError as broken:
            todo = advice(broken, "name another folder with --state-dir")
            raise LevadaError(f"{self.folder}: {broken.strerror}; {todo}") from None

    def _restrict(self) -> None:
        """Remove the access of other users: the directory contains keys, tokens and environments of jobs."""
        status = self.folder.stat()
        if not status.st_mode & _OTHERS:
            return
        files = os.listdir(self.folder)
        if status.st_uid != os.geteuid() or (files and not _OURS.intersection(files)):
            why = "other users have access, and it is not a state directory of Levada"
            raise Refused(f"{self.folder}: {why}; name a new folder with --state-dir")
        self.folder.chmod(0o700)

    def place(self) -> str:
        """Identify this directory among its copies: inode and creation time of the directory and of its lock."""
        return " ".join(_identity(path) for path in (self.folder, self.path(LOCK)))

    def path(self, name: str) -> Path:
        """Return the path of a file in the directory."""
        return self.folder / name

    def read(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file; empty if it does not exist or is not valid."""
        try:
            content = json.loads(self.path(name).read_bytes())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def write(self, name: str, content: Mapping[str, Any] | str) -> None:
        """Replace a file atomically; only its owner can read it."""
        text = content if isinstance(content, str) else json.dumps(content)
        fresh = self.path(name + ".new")
        try:
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(text)
            os.replace(fresh, self.path(name))
        except OSError as broken:
            todo = advice(broken, "give the server write access")
            raise LevadaError(f"{self.path(name)}: {broken.strerror}; {todo}") from None

    def drop(self, name: str) -> None:
        """Delete a file if it exists."""
        self.path(name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the directory for this process; raises Refused if another server has it."""
        try:
            lock = os.open(self.path(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as broken:
            todo = advice(broken, "give the server write access")
            raise LevadaError(f"{self.path(LOCK)}: {broken.strerror}; {todo}") from None
        try:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Refused(f"a server (process {self.holder()}) is already running in {self.folder}") from None
            yield
        finally:
            os.close(lock)

    def holder(self) -> int | None:
        """Return the pid of the server that has the directory locked; None without one."""
        try:
            with open(self.path(LOCK), "r+b") as file:
                request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, request))
        except OSError:
            return None
        return None if kind == fcntl.F_UNLCK else int(pid)


def _identity(path: Path) -> str:
    """Return inode and creation time, which differ in a copy; the time is 0 if the file system does not store it."""
    return f"{path.stat().st_ino}:{_created_ns(path)}"


def _created_ns(path: Path) -> int:
    """Return the creation time of a file by statx(2), which Python does not provide."""
    statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path.absolute()), 0, _STATX_BTIME, answer) != 0:
        return 0
    (mask,) = struct.unpack_from("@I", answer, 0)
    seconds, nanoseconds = struct.unpack_from("@qI", answer, _STATX_BTIME_AT)
    return int(seconds * 10**9 + nanoseconds) if mask & _STATX_BTIME else 0
