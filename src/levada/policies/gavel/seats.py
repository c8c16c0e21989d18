"""Devices for jobs that share theirs, and for those that did: all other jobs are left to the placer."""

from __future__ import annotations

import numpy as np

from levada.core.decision import PLACE_COLUMNS
from levada.core.plane import DEVICE, INDEX, MILLI, NODE, SLOT
from levada.core.types import PACKED, WHOLE, Bools, Ints
from levada.policies.gavel.instance import Instance
from levada.tables.snapshot import Snapshot


def partners(snap: Snapshot) -> dict[int, int]:
    """Rows of jobs that are to share devices at present, each with its partner's."""
    rows = snap.target.rows
    packed = rows[:, (rows[MILLI] == PACKED) & (snap.table.milli[rows[SLOT]] >= WHOLE)]
    row_of = {int(slot): row for row, slot in enumerate(snap.jobs.slots)}
    on: dict[int, set[int]] = {}
    for slot, device in zip(packed[SLOT].tolist(), packed[DEVICE].tolist(), strict=True):
        on.setdefault(device, set()).add(row_of.get(slot, -1))
    found = {}
    for rows_there in on.values():
        # A partner that is over, or out of view, is nobody.
        a, b = max(rows_there), min(rows_there) if len(rows_there) > 1 else -1
        found[a] = b
        found[b] = a
    found.pop(-1, None)
    return found


class Seats:
    """Places in the making: what is free once all have left who do not go on as they are."""

    def __init__(self, instance: Instance, types: Ints, together: dict[int, int], handled: list[int]) -> None:
        self.instance, self.snap = instance, instance.snap
        self.node_of = self.snap.inventory.node_of
        inventory, target, jobs = self.snap.inventory, self.snap.target, self.snap.jobs
        self.devices = {row: self._devices(int(jobs.slots[row])) for row in together}
        stays = np.asarray((jobs.count > 0) & (jobs.type == types))
        stays[[*together, *handled]] = False
        goes = np.zeros(self.snap.table.capacity, bool)
        goes[jobs.slots[~stays & instance.plain]] = True
        self.free: Bools = (inventory.free_milli() == WHOLE) & ((target.owner < 0) | goes[target.owner])
        kept = target.rows[:, ~goes[target.rows[SLOT]] & (target.rows[DEVICE] >= 0)]
        self.free[kept[DEVICE]] = False
        self.cpu = inventory.free_cpu() - target.cpu
        self.memory = inventory.free_memory() - target.memory
        leaving = ((target.owner >= 0) & goes[target.owner]).nonzero()[0]
        self._give_back(target.owner[leaving], self.node_of[leaving])
        parts = target.rows[:, goes[target.rows[SLOT]]]
        self._give_back(parts[SLOT], parts[NODE])
        self.places: list[list[int]] = []
        self.placed: list[int] = []

    def _devices(self, slot: int) -> list[int]:
        rows = self.snap.target.rows
        return sorted(rows[DEVICE][rows[SLOT] == slot].tolist())

    def _give_back(self, slots: Ints, nodes: Ints) -> None:
        """Cores and memory of workers of one GPU each."""
        np.add.at(self.cpu, nodes, self.snap.table.cpu[slots])
        np.add.at(self.memory, nodes, self.snap.table.memory[slots])

    def take(self, members: list[int], gpu_type: int, wish: list[int]) -> bool:
        """Devices for one job or two that share, those of *wish* if they can be had; False where there is no room."""
        size = int(self.instance.size[members[0]])
        room = self._room(members, gpu_type)
        devices = (
            wish if len(wish) == size and self._holds(wish, room, gpu_type) else self._best_fit(room, gpu_type, size)
        )
        if devices is None:
            return False
        self.free[devices] = False
        for row in members:
            slot = int(self.snap.jobs.slots[row])
            np.subtract.at(self.cpu, self.node_of[devices], self.snap.table.cpu[slot])
            np.subtract.at(self.memory, self.node_of[devices], self.snap.table.memory[slot])
            self.placed.append(row)
            for index, device in enumerate(devices):
                place = [0] * PLACE_COLUMNS
                place[SLOT], place[INDEX], place[NODE] = row, index, int(self.node_of[device])
                place[DEVICE], place[MILLI] = device, WHOLE if len(members) == 1 else PACKED
                self.places.append(place)
        return True

    def _room(self, members: list[int], gpu_type: int) -> Ints:
        """Per node how many workers of all *members* fit beside each other."""
        there = self.free & (self.snap.inventory.type_of == gpu_type)
        room = np.bincount(self.node_of[there], minlength=len(self.cpu))
        slots = self.snap.jobs.slots[members]
        for left, each in (
            (self.cpu, self.snap.table.cpu[slots].sum()),
            (self.memory, self.snap.table.memory[slots].sum()),
        ):
            if each > 0:
                room = np.minimum(room, np.maximum(left, 0) // each)
        return room

    def _holds(self, devices: list[int], room: Ints, gpu_type: int) -> bool:
        there = np.asarray(devices)
        of_type = (self.snap.inventory.type_of[there] == gpu_type).all()
        use = np.bincount(self.node_of[there], minlength=len(room))
        return bool(of_type and self.free[there].all() and (use <= room).all())

    def _best_fit(self, room: Ints, gpu_type: int, size: int) -> list[int] | None:
        """The node with the least room that is enough, else as few nodes as possible."""
        if room.sum() < size:
            return None
        enough = (room >= size).nonzero()[0]
        nodes = [enough[np.argmin(room[enough])]] if len(enough) else np.argsort(-room, kind="stable")
        found: list[int] = []
        for node in nodes:
            here = (self.free & (self.snap.inventory.type_of == gpu_type) & (self.node_of == node)).nonzero()[0]
            found += here[: min(int(room[node]), size - len(found))].tolist()
            if len(found) == size:
                break
        return sorted(found)


def seats(instance: Instance, members: Ints, chosen: Ints, types: Ints) -> tuple[Ints, Ints]:
    """Places for pairs and for jobs that leave one, and the rows that they speak of.

    Whoever goes on as it was keeps its devices; then larger ones come first. Who finds no room is struck off *chosen*
    (types by combination) and *types* (by job).
    """
    together = partners(instance.snap)
    jobs = instance.snap.jobs
    wanted = []
    for at in (chosen >= 0).nonzero()[0].tolist():
        rows = [row for row in members[at].tolist() if row >= 0]
        if len(rows) == 2 or rows[0] in together:
            same = len(rows) == 2 and together.get(rows[0]) == rows[1] and jobs.type[rows[0]] == chosen[at]
            wanted.append((not same, -int(instance.size[rows[0]]), at, rows))
    room = Seats(instance, types, together, [row for *_, rows in wanted for row in rows])
    for _, _, at, rows in sorted(wanted):
        if not room.take(rows, int(chosen[at]), room.devices.get(rows[0], [])):
            types[rows] = chosen[at] = -1
    places = np.array(room.places, np.int64).reshape(-1, PLACE_COLUMNS).T
    return places, np.array(sorted(room.placed), np.int64)
