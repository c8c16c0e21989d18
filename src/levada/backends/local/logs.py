"""Reads the output that a shim keeps: the end of it, all of it, and what is added, across rotated parts."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from levada.backends.local import shim

#: Read at once; a longer line is cut there.
_CHUNK = 1 << 18


class Cursor(msgspec.Struct, frozen=True):
    """A place in a log: the file (whatever its name is by now) and the offset."""

    inode: int = 0
    offset: int = 0


class Chunk(msgspec.Struct, frozen=True):
    """Some lines, and where the next ones begin."""

    lines: tuple[str, ...]
    next: Cursor


def _parts(folder: Path) -> list[Path]:
    """Oldest first."""
    found = []
    number = 1
    while (part := folder / f"{shim.LOG}.{number}").exists():
        found.append(part)
        number += 1
    return [*reversed(found), folder / shim.LOG]


def read(folder: Path, cursor: Cursor, *, rest: bool = False) -> Chunk:
    """The lines after *cursor*, some hundred KiB at most; with *rest* also an end without a line break."""
    opened: list[tuple[int, int, int]] = []
    try:
        for part in _parts(folder):
            with contextlib.suppress(FileNotFoundError):
                file = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
                about = os.fstat(file)
                opened.append((file, about.st_ino, about.st_size))
        inodes = [inode for _, inode, _ in opened]
        # A part that is gone takes what nobody has read of it along.
        first = inodes.index(cursor.inode) if cursor.inode in inodes else 0
        offset = cursor.offset if cursor.inode in inodes else 0
        for at in range(first, len(opened)):
            file, inode, size = opened[at]
            last = at == len(opened) - 1
            if offset < size:
                data = os.pread(file, _CHUNK, offset)
                whole = data.rfind(b"\n") + 1
                at_end = rest and last and offset + len(data) == size
                if at_end or (whole == 0 and (not last or len(data) == _CHUNK)):
                    whole = len(data)
                if whole:
                    lines = data[:whole].decode(errors="replace").split("\n")
                    if lines[-1] == "":
                        lines.pop()
                    return Chunk(tuple(lines), Cursor(inode, offset + whole))
                return Chunk((), Cursor(inode, offset))
            if last:
                return Chunk((), Cursor(inode, offset))
            offset = 0
    finally:
        for file, _, _ in opened:
            os.close(file)
    return Chunk((), cursor)


def end_of(folder: Path, lines: int) -> Cursor:
    """Where the last so many lines begin."""
    if lines <= 0:
        newest = folder / shim.LOG
        with contextlib.suppress(FileNotFoundError):
            about = newest.stat()
            return Cursor(about.st_ino, about.st_size)
        return Cursor()
    left = lines
    oldest = Cursor()
    for part in reversed(_parts(folder)):
        with contextlib.suppress(FileNotFoundError), open(part, "rb") as file:
            about = os.fstat(file.fileno())
            offset, seen_end = about.st_size, False
            while offset > 0:
                start = max(0, offset - _CHUNK)
                data = os.pread(file.fileno(), offset - start, start)
                at = len(data)
                if not seen_end and data.endswith(b"\n"):
                    at -= 1  # the last break ends a line and begins none
                seen_end = True
                while (at := data.rfind(b"\n", 0, at)) >= 0:
                    left -= 1
                    if left == 0:
                        return Cursor(about.st_ino, start + at + 1)
                offset = start
            if about.st_size:
                left -= 1
                oldest = Cursor(about.st_ino, 0)
                if left == 0:
                    return oldest
    return oldest
