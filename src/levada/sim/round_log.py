"""Rounds: jobs by their devices, as lines of `--rounds`; counts of rounds."""

from __future__ import annotations

from typing import Any

import msgspec

from levada.core.assignment import DEVICE, SLOT
from levada.core.types import Bools
from levada.engine.queries import ClusterView, PlaneView, Queries


class RoundCounts:
    """Counts of rounds and of jobs in them, for the default mechanism."""

    def __init__(self) -> None:
        #: Rounds with a decision, and the sum of jobs over all rounds.
        self.rounds = self.job_rounds = self.decisions = 0
        self.begun: float = -1.0
        self._at, self._jobs = 0.0, 0

    def add(self, now: float, jobs: int, round_s: float) -> None:
        """Count a round; rounds skipped since the last one count for the jobs of that one."""
        skipped = max(round((now - self._at) / round_s) - 1, 0)
        self.job_rounds += skipped * self._jobs + jobs
        self.rounds += 1
        self._at, self._jobs = now, jobs


class RoundTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One job, or two jobs that share devices, in a round."""

    numbers: tuple[int, ...]
    type: int
    devices: tuple[int, ...]


def turns_on(query: Queries, plane: PlaneView, among: Bools) -> list[RoundTurn]:
    """Return the turns on *plane* of the jobs selected by *among* (by slot), sorted by job number."""
    devices: dict[int, list[int]] = {}
    numbers_of, rows = query.jobs.number, plane.rows
    for device, slot in enumerate(plane.owner.tolist()):
        if slot >= 0:
            devices.setdefault(slot, []).append(device)
    for slot, device in zip(rows[SLOT].tolist(), rows[DEVICE].tolist(), strict=True):
        if device >= 0:
            devices.setdefault(slot, []).append(device)
    together: dict[tuple[int, ...], list[int]] = {}
    for slot, own in devices.items():
        if among[slot]:
            together.setdefault(tuple(sorted(own)), []).append(int(numbers_of[slot]))
    type_of = query.cluster.type_of
    turns = [
        RoundTurn(numbers=tuple(sorted(numbers)), type=int(type_of[own[0]]), devices=own)
        for own, numbers in together.items()
    ]
    return sorted(turns, key=lambda turn: turn.numbers)


def as_line(number: int, now: float, turns: list[RoundTurn], cluster: ClusterView) -> bytes:
    """Return a round as a line of JSON like Gavel's schedules: types by descending name, then by device."""
    by_type = sorted(turns, key=lambda turn: turn.devices)
    names = sorted({cluster.types[turn.type] for turn in turns}, reverse=True)
    assignments: list[Any] = [
        [_name(turn.numbers), name, turn.devices]
        for name in names
        for turn in by_type
        if cluster.types[turn.type] == name
    ]
    return msgspec.json.encode({"round": number, "time": now, "assignments": assignments}) + b"\n"


def _name(numbers: tuple[int, ...]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"({', '.join(map(str, numbers))})"
