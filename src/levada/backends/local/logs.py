"""Reader of a worker's rotated log: tail, full content and appended lines."""

from __future__ import annotations

import contextlib
import os
import zlib
from bisect import bisect_right
from pathlib import Path

import msgspec

from levada.backends.local import safe_fs, shim

#: Bytes per read; longer lines are split.
_CHUNK = 1 << 18
_HEAD = 64


class Cursor(msgspec.Struct, frozen=True):
    """A position in a log: the file, which may have been renamed since, and the offset."""

    inode: int = 0
    offset: int = 0
    #: Checksum of the beginning of the file, since inodes are reused.
    head: int = 0


class Chunk(msgspec.Struct, frozen=True):
    """Lines of a log and the position after them."""

    lines: tuple[str, ...]
    next: Cursor
    #: When each line was written, to about 1 s; 0 if unknown.
    times: tuple[float, ...] = ()


def _parts(folder: Path) -> list[Path]:
    """The files of a log, oldest first."""
    older = []
    number = 1
    while (part := folder / f"{shim.LOG}.{number}").exists():
        older.append(part)
        number += 1
    return [*reversed(older), folder / shim.LOG]


def read(folder: Path, cursor: Cursor, *, rest: bool = False) -> Chunk:
    """Read lines after *cursor*, at most 256 KiB; with *rest* also a last line without a line break."""
    opened: list[int] = []
    try:
        for part in _parts(folder):
            with contextlib.suppress(OSError):
                opened.append(safe_fs.open_file(part))
        known = [at for at, file in enumerate(opened) if _cursor(file, cursor.offset) == cursor]
        # If the part of the cursor is deleted, its unread lines are lost.
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
    """When each of the lines from *offset* on was written, from the time records of the shim."""
    try:
        data = safe_fs.read_file(folder / (shim.LOG + shim.TIMES)) if lines else b""
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
    """The position of the last *lines* lines."""
    begin = Cursor()
    for part in reversed(_parts(folder)):
        with contextlib.suppress(OSError), open(safe_fs.open_file(part), "rb") as file:
            offset, count = _line_from_end(file.fileno(), lines)
            begin = _cursor(file.fileno(), offset)
            lines -= count
            if lines <= 0:
                break
    return begin


def _line_from_end(file: int, lines: int) -> tuple[int, int]:
    """The offset of the last *lines* lines of one part, and how many it has of them."""
    size = offset = os.fstat(file).st_size
    count = 0
    while offset > 0 and lines > 0:
        start = max(0, offset - _CHUNK)
        data = os.pread(file, offset - start, start)
        at = len(data)
        if offset == size and data.endswith(b"\n"):
            at -= 1  # the last line break does not begin a line
        while (at := data.rfind(b"\n", 0, at)) >= 0:
            count += 1
            if count == lines:
                return start + at + 1, count
        offset = start
    return (size, 0) if lines <= 0 else (0, count + (size > 0))
