"""Printing: data on stdout, chatter on stderr, colour only for a terminal that wants it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, TextIO

from levada.cli.terminal import shown
from levada.errors import LevadaError


class Format(StrEnum):
    """How a list is printed."""

    TABLE = "table"
    JSON = "json"
    NAME = "name"


class TextOrJson(StrEnum):
    """How a single thing is printed."""

    TEXT = "text"
    JSON = "json"


def open_streams() -> None:
    """Gives the process a stdout and stderr where whoever started it closed them: what nobody reads goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the process


def data(text: str, *, raw: bool = False) -> None:
    """Writes *text* and a newline to stdout; a reader that has gone away (`| head`) is no fault, a full disk is one.

    On a terminal control characters are shown, not obeyed, unless *raw*.
    """
    if not raw and sys.stdout.isatty():
        text = shown(text)
    if not _shows_all():
        text = text.encode(sys.stdout.encoding, "replace").decode(sys.stdout.encoding)
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError as error:
        # What is left in the buffer would fail again when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise LevadaError(f"cannot write the answer: {error.strerror}") from None


def chatter(text: str) -> None:
    """Writes a line for the person at the terminal to stderr; control characters are shown, not obeyed."""
    sys.stderr.write((shown(text) if sys.stderr.isatty() else text) + "\n")


def data_json(value: Any) -> None:
    """Writes *value* as JSON to stdout: indented, in the order given, never NaN."""
    data(json.dumps(value, indent=2, ensure_ascii=not _shows_all(), allow_nan=False))


def _shows_all() -> bool:
    """Whether stdout has a way to write every character."""
    return (sys.stdout.encoding or "utf-8").lower().startswith("utf")


def colour(stream: TextIO) -> bool:
    """Whether *stream* is a terminal that wants colour; NO_COLOR (see no-color.org) counts unless empty."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def bold(text: str) -> str:
    """*text*, bold where stdout shows it."""
    return f"\x1b[1m{text}\x1b[0m" if colour(sys.stdout) else text


def printable(text: str) -> str:
    """*text* without control characters: labels, commands and types are others' words, and no orders to a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)


def line_width() -> int | None:
    """How many characters a line may have; None where stdout is no terminal: whoever reads that takes all."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def columns(header: Sequence[str], rows: Iterable[Sequence[str]], *, spare: Sequence[str] | None = None) -> str:
    """A table of *rows*, as `aligned` prints it."""
    return aligned(header, list(zip(*rows, strict=True)) or [() for _ in header], spare=spare)


def aligned(header: Sequence[str], texts: Sequence[Sequence[str]], *, spare: Sequence[str] | None = None) -> str:
    """Columns, left-aligned as kubectl prints them: no frames, two spaces between columns, no trailing blanks.

    With *spare* the last column is prose: where a terminal is too narrow, the columns named so are left out, one after
    the other, and then the prose is cut, so that a row stays on one line.
    """
    table = [(name, *column) for name, column in zip(header, texts, strict=True)]
    room = line_width()
    if spare is not None and room is not None:
        table = _fitted(table, spare, room)
    # One pattern for all rows: thousands of them are no work to speak of.
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
