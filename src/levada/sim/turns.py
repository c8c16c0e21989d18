"""Who runs where: jobs by the devices that they have, two on the same ones as one turn."""

from __future__ import annotations

from typing import Any

import msgspec

from levada.core.plane import DEVICE, SLOT
from levada.core.types import Bools
from levada.engine.queries import ClusterView, PlaneView, Queries


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One job, or two that share devices."""

    numbers: tuple[int, ...]
    type: int
    devices: tuple[int, ...]


def turns_on(query: Queries, plane: PlaneView, among: Bools) -> list[Turn]:
    """The turns on *plane* of the jobs under *among* (by slot), by their numbers."""
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
        Turn(numbers=tuple(sorted(numbers)), type=int(type_of[own[0]]), devices=own)
        for own, numbers in together.items()
    ]
    return sorted(turns, key=lambda turn: turn.numbers)


def as_line(number: int, now: float, turns: list[Turn], cluster: ClusterView) -> bytes:
    """A round as one line of JSON, as Gavel's schedules are written down: types by falling name, then by device."""
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
