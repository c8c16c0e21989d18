"""Reads the output that a shim keeps: the end of it, all of it, and what is added, across rotated parts."""

from __future__ import annotations

import contextlib
import os
import zlib
from bisect import bisect_right
from pathlib import Path

import msgspec

from levada.backends.local import folders, shim

#: Read at once; a longer line is cut there.
_CHUNK = 1 << 18
_HEAD = 64


class Cursor(msgspec.Struct, frozen=True):
    """A place in a log: the file (whatever its name is by now) and the offset."""

    inode: int = 0
    offset: int = 0
    #: Of the file's beginning, since numbers of files are used again.
    head: int = 0


class Chunk(msgspec.Struct, frozen=True):
    """Some lines, and where the next ones begin."""

    lines: tuple[str, ...]
    next: Cursor
    #: When each was kept, to about a second; 0 where unknown.
    times: tuple[float, ...] = ()


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
    opened: list[int] = []
    try:
        for part in _parts(folder):
            with contextlib.suppress(OSError):
                opened.append(folders.open_file(part))
        known = [at for at, file in enumerate(opened) if _cursor(file, cursor.offset) == cursor]
        # A part that is gone takes what nobody has read of it along.
        first, offset = (known[-1], cursor.offset) if known else (0, 0)
        for at, file in enumerate(opened[first:], start=first):
            last = at == len(opened) - 1
            data = os.pread(file, _CHUNK, offset)
            whole = data.rfind(b"\n") + 1
            if len(data) == _CHUNK or not last:
                whole = whole or len(data)
            elif rest:
                whole = len(data)
            if whole or last:
                lines = data[:whole].split(b"\n")
                if lines[-1] == b"":
                    lines.pop()
                times = _times(folder, os.fstat(file).st_ino, offset, lines)
                texts = tuple(line.decode(errors="replace") for line in lines)
                return Chunk(texts, _cursor(file, offset + whole), times)
            offset = 0
    finally:
        for file in opened:
            os.close(file)
    return Chunk((), cursor)


def _cursor(file: int, offset: int) -> Cursor:
    return Cursor(os.fstat(file).st_ino, offset, zlib.crc32(os.pread(file, min(offset, _HEAD), 0)))


def _times(folder: Path, inode: int, offset: int, lines: list[bytes]) -> tuple[float, ...]:
    """When each of the lines from *offset* on was kept, by the marks of the shim."""
    try:
        data = folders.read_file(folder / (shim.LOG + shim.TIMES)) if lines else b""
    except OSError:
        data = b""
    whole = len(data) // shim.MARK.size * shim.MARK.size
    marks = [(start, at) for number, start, at in shim.MARK.iter_unpack(data[:whole]) if number == inode]
    starts = [start for start, _ in marks]
    times = []
    for line in lines:
        at = bisect_right(starts, offset) - 1
        times.append(marks[at][1] if at >= 0 else 0.0)
        offset += len(line) + 1
    return tuple(times)


def end_of(folder: Path, lines: int) -> Cursor:
    """Where the last so many lines begin."""
    begin = Cursor()
    for part in reversed(_parts(folder)):
        with contextlib.suppress(OSError), open(folders.open_file(part), "rb") as file:
            offset, found = _line_from_end(file.fileno(), lines)
            begin = _cursor(file.fileno(), offset)
            lines -= found
            if lines <= 0:
                break
    return begin


def _line_from_end(file: int, lines: int) -> tuple[int, int]:
    """Where the last so many lines of one part begin, and how many there are of them."""
    size = offset = os.fstat(file).st_size
    found = 0
    while offset > 0 and lines > 0:
        start = max(0, offset - _CHUNK)
        data = os.pread(file, offset - start, start)
        at = len(data)
        if offset == size and data.endswith(b"\n"):
            at -= 1  # the last break ends a line and begins none
        while (at := data.rfind(b"\n", 0, at)) >= 0:
            found += 1
            if found == lines:
                return start + at + 1, found
        offset = start
    return (size, 0) if lines <= 0 else (0, found + (size > 0))
