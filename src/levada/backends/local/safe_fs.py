"""Safe access to files and folders that jobs can write to.

A job may place anything there: a pipe without a writer, a folder 10,000 levels deep, an endless file. Each call takes
bounded time or fails.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import deque
from pathlib import Path

#: Size limit of files that are read whole.
MAX_BYTES = 16 << 20
#: Limits of a scan of a job's folder: entries and levels.
_MAX_ENTRIES, _MAX_LEVELS = 100_000, 64
#: Longest path in characters whose entries are used: with a name it must stay below 4096.
_LONG_PATH = 3000

#: Errors that mean that there is no plain file, or none that may be read.
_NO_FILE = (errno.ELOOP, errno.ENXIO, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM)


def open_file(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """Open a plain file without blocking; raises FileNotFoundError if there is none that may be read."""
    try:
        file = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise FileNotFoundError(errno.ENOENT, "is not a plain file", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise FileNotFoundError(errno.ENOENT, "is not a plain file", str(path))
    return file


def read_file(path: Path | str, most: int = MAX_BYTES) -> bytes:
    """Read a plain file; raises OSError if there is none or it has more than *most* bytes."""
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
    """Replace a file of any kind atomically; raises OSError. *durable* waits until it is on disk."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)  # it may be a pipe or a symbolic link
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(file, "wb") as stream:
        stream.write(data)
        if durable:
            stream.flush()
            os.fsync(file)
    os.replace(temporary, path)
    if durable:
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)


def newest_change(folder: Path | str) -> int:
    """Newest modification time below *folder* in ns; 0 if there is nothing within the scan limits."""
    newest = count = 0
    pending = deque([(str(folder), 0)])
    while pending and count < _MAX_ENTRIES:
        place, level = pending.popleft()
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                count += 1
                if count >= _MAX_ENTRIES:
                    break
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        if level < _MAX_LEVELS:
                            pending.append((entry.path, level + 1))
                    elif not entry.name.startswith("."):
                        newest = max(newest, entry.stat(follow_symlinks=False).st_mtime_ns)
    return newest


def remove(folder: Path) -> None:
    """Remove a folder of any depth; entries that cannot be removed are skipped."""
    pending, emptied = [str(folder)], []
    while pending:
        place = pending.pop()
        emptied.append(place)
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.path)
                    elif len(entry.path) < _LONG_PATH:
                        pending.append(entry.path)
                    else:
                        # Moved to the top, since the kernel rejects longer paths.
                        above = f"{folder}/.{len(emptied)}-{len(pending)}.gone"
                        os.rename(entry.path, above)
                        pending.append(above)
    for place in reversed(emptied):
        with contextlib.suppress(OSError):
            os.rmdir(place)
