"""Processes in /proc, identified by process id and start time (ids are reused)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple


class Process(NamedTuple):
    """A process at one moment."""

    pid: int
    parent: int
    #: Clock ticks after boot.
    started: int
    #: It has ended and is not reaped yet.
    is_zombie: bool
    #: It is stopped by a signal or a debugger.
    is_stopped: bool = False


def boot_id() -> str:
    """The id of the current boot; start times are comparable only within one boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def look(pid: int) -> Process | None:
    """The process with that id; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name is in parentheses and may contain any character, even parentheses.
    fields = line[line.rindex(b")") + 2 :].split()
    state = fields[0]
    return Process(
        pid=pid,
        parent=int(fields[1]),
        started=int(fields[19]),
        is_zombie=state in (b"Z", b"X"),
        is_stopped=state in (b"T", b"t"),
    )


def all_processes() -> Iterator[Process]:
    """All visible processes."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := look(int(name))) is not None:
            yield process


def descendants(pid: int) -> list[Process]:
    """All live descendants of a process."""
    children: dict[int, list[Process]] = {}
    for process in all_processes():
        children.setdefault(process.parent, []).append(process)
    live: list[Process] = []
    pending = [pid]
    while pending:
        fresh = [child for child in children.get(pending.pop(), []) if not child.is_zombie]
        live += fresh
        pending += [child.pid for child in fresh]
    return live


def exit_code(pid: int) -> int | None:
    """The exit code of a zombie, or minus the signal that ended it; None if it is not a zombie."""
    process = look(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
        status = int(line[line.rindex(b")") + 2 :].split()[49])
        return os.waitstatus_to_exitcode(status) if process is not None and process.is_zombie else None
    except (OSError, ValueError):
        return None


def is_same(pid: int, started: int) -> bool:
    """Whether the process with that id and start time still lives."""
    process = look(pid)
    return process is not None and process.started == started and not process.is_zombie


def words(pid: int) -> list[str]:
    """The command line of a process; empty if it may not be read."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return []


def environment(pid: int) -> dict[str, str]:
    """The initial environment of a process; empty if it may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = file.read().split(b"\0")
    except OSError:
        return {}
    decoded = (pair.decode(errors="replace").partition("=") for pair in pairs if pair)
    return {name: value for name, _, value in decoded}
