"""Print data on stdout, messages on stderr, and colour only on a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, TextIO

from levada.cli.terminal import escaped
from levada.errors import LevadaError


class Format(StrEnum):
    """Output formats of a list."""

    TABLE = "table"
    JSON = "json"
    NAME = "name"


class TextOrJson(StrEnum):
    """Output formats of a single object."""

    TEXT = "text"
    JSON = "json"


def open_streams() -> None:
    """Open stdout and stderr on /dev/null if the parent process closed them."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until the process exits


def data(text: str, *, raw: bool = False) -> None:
    """Write *text* and a newline to stdout; raises LevadaError on e.g. a full disk, not on a closed pipe.

    On a terminal, control characters are escaped unless *raw*.
    """
    if not raw and sys.stdout.isatty():
        text = escaped(text)
    if not _is_unicode():
        text = text.encode(sys.stdout.encoding, "replace").decode(sys.stdout.encoding)
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError as error:
        # The rest of the buffer would fail again at process exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise LevadaError(f"cannot write to standard output: {error.strerror}") from None


def message(text: str) -> None:
    """Write a line to stderr; on a terminal, control characters are escaped."""
    sys.stderr.write((escaped(text) if sys.stderr.isatty() else text) + "\n")


def data_json(value: Any) -> None:
    """Write *value* as JSON to stdout: indented, in the order given, never NaN."""
    data(json.dumps(value, indent=2, ensure_ascii=not _is_unicode(), allow_nan=False))


def _is_unicode() -> bool:
    """Whether the encoding of stdout covers all of Unicode."""
    return (sys.stdout.encoding or "utf-8").lower().startswith("utf")


def colour(stream: TextIO) -> bool:
    """Whether *stream* is a terminal that allows colour; a non-empty NO_COLOR (see no-color.org) forbids it."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def bold(text: str) -> str:
    """Return *text*, in bold if stdout shows colour."""
    return f"\x1b[1m{text}\x1b[0m" if colour(sys.stdout) else text


def printable(text: str) -> str:
    """Replace control characters: labels, commands and types are untrusted text."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)


def line_width() -> int | None:
    """Return the width of the terminal; None if stdout is not a terminal."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def columns(header: Sequence[str], rows: Iterable[Sequence[str]], *, spare: Sequence[str] | None = None) -> str:
    """Format *rows* like `aligned`."""
    return aligned(header, list(zip(*rows, strict=True)) or [() for _ in header], spare=spare)


def aligned(header: Sequence[str], texts: Sequence[Sequence[str]], *, spare: Sequence[str] | None = None) -> str:
    """Format columns left-aligned like kubectl: two spaces between columns, no frames or trailing blanks.

    With *spare*, the last column is prose: on a narrow terminal, the columns named in *spare* are dropped one by one,
    then the prose is truncated, so that a row stays on one line.
    """
    table = [(name, *column) for name, column in zip(header, texts, strict=True)]
    room = line_width()
    if spare is not None and room is not None:
        table = _fitted(table, spare, room)
    # One pattern for all rows: fast for thousands of them.
    pattern = "  ".join([*(f"%-{max(map(len, column))}s" for column in table[:-1]), "%s"])
    lines = [(pattern % row).rstrip() for row in zip(*table, strict=True)]
    if not "".join(lines).isprintable():
        lines = [printable(line) for line in lines]
    lines[0] = bold(lines[0])
    return "\n".join(lines)


def _fitted(table: list[tuple[str, ...]], spare: Sequence[str], room: int) -> list[tuple[str, ...]]:
    def left_for_prose() -> int:
        return room - sum(max(map(len, column)) + 2 for column in table[:-1])

    prose = table[-1]
    longest = max(map(len, prose))
    for name in spare:
        if left_for_prose() >= longest:
            return table
        table = [column for column in table if column[0] != name]
    left = max(left_for_prose(), len(prose[0]))
    return [*table[:-1], tuple(text if len(text) <= left else f"{text[: left - 1]}…" for text in prose)]
