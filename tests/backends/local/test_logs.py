"""Rotated logs: tail, full content, appended lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.backends.local import logs
from levada.backends.local.logs import Cursor
from levada.backends.local.shim import Log


def read_all(folder: Path, cursor: Cursor, *, rest: bool = True) -> tuple[list[str], Cursor]:
    lines: list[str] = []
    while (chunk := logs.read(folder, cursor, rest=rest)).lines:
        lines += chunk.lines
        cursor = chunk.next
    return lines, chunk.next


def test_lines_are_read_once_across_rotations(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), 100, 50)
    cursor, read_lines = Cursor(), []
    for number in range(300):
        log.write(f"line {number}\n".encode())
        if number % 7 == 0:
            lines, cursor = read_all(tmp_path, cursor)
            read_lines += lines
    read_lines += read_all(tmp_path, cursor)[0]
    assert read_lines == [f"line {number}" for number in range(300)]


def test_a_slow_reader_misses_only_rotated_lines(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), 100, 3)
    log.write(b"first\n")
    _, cursor = read_all(tmp_path, Cursor())
    for number in range(100):
        log.write(f"line {number}\n".encode())
    read_lines, _ = read_all(tmp_path, cursor)
    assert read_lines == [f"line {number}" for number in range(100 - len(read_lines), 100)]
    assert 10 < len(read_lines) < 100


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=8), max_size=30),
    st.integers(0, 40),
)
def test_the_tail_has_the_requested_length(tmp_path_factory, lines: list[str], tail: int) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("log")
    log = Log(str(folder / "log"), 40, 100)
    for line in lines:
        log.write(f"{line}\n".encode())
    read_lines, _ = read_all(folder, logs.end_of(folder, tail))
    assert read_lines == lines[max(0, len(lines) - tail) :]


def test_lines_have_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr("levada.backends.local.shim.time.time", lambda: clock)
    log = Log(str(tmp_path / "log"), 100, 50)
    for _ in range(60):
        log.write(f"at {clock}\n".encode())
        clock += 0.5
    cursor, read_lines = Cursor(), []
    while (chunk := logs.read(tmp_path, cursor)).lines:
        read_lines += zip(chunk.lines, chunk.times, strict=True)
        cursor = chunk.next
    assert len(read_lines) == 60
    assert all(0 <= float(line.split()[1]) - at < 1.0 for line, at in read_lines)


def test_time_marks_of_rotated_parts_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr("levada.backends.local.shim.time.time", lambda: clock)
    log = Log(str(tmp_path / "log"), 100, 3)
    for _ in range(500):
        log.write(f"at {clock}\n".encode())
        clock += 2.0
    assert (tmp_path / "log.times").stat().st_size < 60 * 24
    chunk = logs.read(tmp_path, Cursor())
    assert [f"at {at}" for at in chunk.times] == list(chunk.lines)


def test_an_incomplete_line_waits_for_the_rest(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), 1000, 3)
    log.write(b"whole\nha")
    lines, cursor = read_all(tmp_path, Cursor(), rest=False)
    assert lines == ["whole"]
    log.write(b"lf\n")
    assert read_all(tmp_path, cursor, rest=False)[0] == ["half"]
    log.write(b"last words")
    assert read_all(tmp_path, cursor)[0] == ["half", "last words"]


def test_a_missing_log_has_no_lines(tmp_path: Path) -> None:
    assert read_all(tmp_path, logs.end_of(tmp_path, 5))[0] == []
    assert read_all(tmp_path, logs.end_of(tmp_path, 0))[0] == []
