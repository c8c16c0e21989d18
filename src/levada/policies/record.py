"""What is known about a policy without importing it."""

from __future__ import annotations

from typing import NamedTuple


class Option(NamedTuple):
    """One setting of a policy."""

    name: str
    default: float | int | bool | str
    unit: str  #: empty for plain numbers
    meaning: str


class Record(NamedTuple):
    """One policy, as shown to people and found by name."""

    name: str
    aliases: tuple[str, ...]
    target: str  #: `module:Class`
    summary: str
    needs: tuple[str, ...]  #: fields of a job, or of the case, beside id, submitted, min and max
    source: str
    options: tuple[Option, ...] = ()
    #: It says shares of time; `rounds` turns them into sizes.
    shares: bool = False
