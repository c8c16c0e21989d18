"""What the kernel tells of processes. A number alone never names one: it is used again; with its start time it does."""

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
    #: It has ended and waits to be asked for its exit code.
    is_zombie: bool
    #: Somebody has stopped it (SIGSTOP, a debugger): it does nothing until it is let go.
    is_stopped: bool = False


def boot_id() -> str:
    """Names this run of the machine: start times are compared within one."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def look(pid: int) -> Process | None:
    """The process of that number, if there is one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # Its name is in brackets and may hold anything, brackets too.
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
    """Every process that can be seen."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := look(int(name))) is not None:
            yield found


def descendants(pid: int) -> list[Process]:
    """The children of a process, their children, and so on; those that have ended are left out."""
    children: dict[int, list[Process]] = {}
    for process in all_processes():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    ahead = [pid]
    while ahead:
        fresh = [child for child in children.get(ahead.pop(), []) if not child.is_zombie]
        found += fresh
        ahead += [child.pid for child in fresh]
    return found


def exit_code(pid: int) -> int | None:
    """The exit code of a process that has ended and that its parent has not reaped, or minus the signal."""
    found = look(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
        status = int(line[line.rindex(b")") + 2 :].split()[49])
        return os.waitstatus_to_exitcode(status) if found is not None and found.is_zombie else None
    except (OSError, ValueError):
        return None


def is_same(pid: int, started: int) -> bool:
    """Whether that very process still lives."""
    found = look(pid)
    return found is not None and found.started == started and not found.is_zombie


def words(pid: int) -> list[str]:
    """The command line of a process; empty where it may not be seen."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return []


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty where it may not be seen."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = file.read().split(b"\0")
    except OSError:
        return {}
    decoded = (pair.decode(errors="replace").partition("=") for pair in pairs if pair)
    return {name: value for name, _, value in decoded}
