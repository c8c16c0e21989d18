"""Logs across rotated parts: the end, all, and what is added."""

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


def test_lines_come_once_whatever_is_rotated_meanwhile(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), 100, 50)
    cursor, found = Cursor(), []
    for number in range(300):
        log.write(f"line {number}\n".encode())
        if number % 7 == 0:
            lines, cursor = read_all(tmp_path, cursor)
            found += lines
    found += read_all(tmp_path, cursor)[0]
    assert found == [f"line {number}" for number in range(300)]


def test_who_is_too_slow_misses_what_is_gone_and_no_more(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), 100, 3)
    log.write(b"first\n")
    _, cursor = read_all(tmp_path, Cursor())
    for number in range(100):
        log.write(f"line {number}\n".encode())
    found, _ = read_all(tmp_path, cursor)
    assert found == [f"line {number}" for number in range(100 - len(found), 100)]
    assert 10 < len(found) < 100


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=8), max_size=30),
    st.integers(0, 40),
)
def test_the_end_is_as_long_as_asked(tmp_path_factory, lines: list[str], tail: int) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("log")
    log = Log(str(folder / "log"), 40, 100)
    for line in lines:
        log.write(f"{line}\n".encode())
    found, _ = read_all(folder, logs.end_of(folder, tail))
    assert found == lines[max(0, len(lines) - tail) :]


def test_lines_tell_when_they_were_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr("levada.backends.local.shim.time.time", lambda: clock)
    log = Log(str(tmp_path / "log"), 100, 50)
    for _ in range(60):
        log.write(f"at {clock}\n".encode())
        clock += 0.5
    cursor, found = Cursor(), []
    while (chunk := logs.read(tmp_path, cursor)).lines:
        found += zip(chunk.lines, chunk.times, strict=True)
        cursor = chunk.next
    assert len(found) == 60
    assert all(0 <= float(line.split()[1]) - at < 1.0 for line, at in found)


def test_marks_of_parts_that_are_gone_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr("levada.backends.local.shim.time.time", lambda: clock)
    log = Log(str(tmp_path / "log"), 100, 3)
    for _ in range(500):
        log.write(f"at {clock}\n".encode())
        clock += 2.0
    assert (tmp_path / "log.times").stat().st_size < 60 * 24
    chunk = logs.read(tmp_path, Cursor())
    assert [f"at {at}" for at in chunk.times] == list(chunk.lines)


def test_an_end_without_a_line_break_waits_for_the_rest(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), 1000, 3)
    log.write(b"whole\nha")
    lines, cursor = read_all(tmp_path, Cursor(), rest=False)
    assert lines == ["whole"]
    log.write(b"lf\n")
    assert read_all(tmp_path, cursor, rest=False)[0] == ["half"]
    log.write(b"last words")
    assert read_all(tmp_path, cursor)[0] == ["half", "last words"]


def test_no_log_has_no_lines(tmp_path: Path) -> None:
    assert read_all(tmp_path, logs.end_of(tmp_path, 5))[0] == []
    assert read_all(tmp_path, logs.end_of(tmp_path, 0))[0] == []
