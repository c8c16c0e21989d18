"""Files and folders that jobs can write to: what lies there may be anything, and must hold nobody up.

A pipe that nobody writes to, a folder ten thousand levels deep, a file without end: each is read in bounded time or not
at all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import deque
from pathlib import Path

#: No record, mark or list is longer.
MOST_BYTES = 16 << 20
#: So many entries of a job's folder, so many levels deep, are looked at.
_MOST_ENTRIES, _MOST_LEVELS = 100_000, 64
#: Characters; what is in there must fit below 4096 with its own name.
_LONG_PATH = 3000

#: How the kernel says that something else is there, or that whose it is keeps it for itself.
_NO_FILE = (errno.ELOOP, errno.ENXIO, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM)


def open_file(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """A handle on a plain file; raises FileNotFoundError where there is none, or none that may be read. Never waits."""
    try:
        file = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as broken:
        if broken.errno in _NO_FILE:
            raise FileNotFoundError(errno.ENOENT, "is no plain file", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise FileNotFoundError(errno.ENOENT, "is no plain file", str(path))
    return file


def read_file(path: Path | str, most: int = MOST_BYTES) -> bytes:
    """A whole plain file; raises OSError where there is none, or one of more than *most* bytes."""
    with open(open_file(path), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"has more than {most} bytes", str(path))
    return data


def read_ends(path: Path | str, most: int) -> tuple[bytes, bytes]:
    """The first and the last *most* bytes of a plain file, which may overlap; raises OSError."""
    file = open_file(path)
    try:
        size = os.fstat(file).st_size
        return os.pread(file, most, 0), os.pread(file, most, max(0, size - most))
    finally:
        os.close(file)


def replace_file(path: Path, data: bytes, mode: int = 0o600, *, durable: bool = False) -> None:
    """Replaces a file as a whole, whatever was there; raises OSError. *durable* waits until it is on disk."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)  # it may be a pipe, or lead somewhere else
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(file, "wb") as stream:
        stream.write(data)
        if durable:
            stream.flush()
            os.fsync(file)
    os.replace(fresh, path)
    if durable:
        place = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(place)
        finally:
            os.close(place)


def newest_change(folder: Path | str) -> int:
    """When anything below *folder* was last written, in ns; 0 where there is nothing or it lies too deep."""
    newest = seen = 0
    ahead = deque([(str(folder), 0)])
    while ahead and seen < _MOST_ENTRIES:
        place, level = ahead.popleft()
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                seen += 1
                if seen >= _MOST_ENTRIES:
                    break
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        if level < _MOST_LEVELS:
                            ahead.append((entry.path, level + 1))
                    elif not entry.name.startswith("."):
                        newest = max(newest, entry.stat(follow_symlinks=False).st_mtime_ns)
    return newest


def remove(folder: Path) -> None:
    """Removes a folder and all below it, however deep, as far as that is allowed."""
    ahead, emptied = [str(folder)], []
    while ahead:
        place = ahead.pop()
        emptied.append(place)
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.path)
                    elif len(entry.path) < _LONG_PATH:
                        ahead.append(entry.path)
                    else:
                        # Brought up to the top: the kernel takes no path that is too long.
                        above = f"{folder}/.{len(emptied)}-{len(ahead)}.gone"
                        os.rename(entry.path, above)
                        ahead.append(above)
    for place in reversed(emptied):
        with contextlib.suppress(OSError):
            os.rmdir(place)
