"""Devices for jobs that share GPUs or did before; the placer places the others."""

from __future__ import annotations

import numpy as np

from levada.core.assignment import DEVICE, INDEX, MILLI, NODE, SLOT
from levada.core.decision import PLACE_COLUMNS
from levada.core.types import PACKED, WHOLE, Bools, Ints
from levada.policies.gavel.instance import Instance
from levada.tables.snapshot import Snapshot


def partners(snap: Snapshot) -> dict[int, int]:
    """Rows of jobs on shared target devices, with the partner's row (-1: not in view)."""
    rows = snap.target.rows
    packed = rows[:, (rows[MILLI] == PACKED) & (snap.table.milli[rows[SLOT]] >= WHOLE)]
    row_of = {int(slot): row for row, slot in enumerate(snap.jobs.slots)}
    rows_on: dict[int, set[int]] = {}
    for slot, device in zip(packed[SLOT].tolist(), packed[DEVICE].tolist(), strict=True):
        rows_on.setdefault(device, set()).add(row_of.get(slot, -1))
    partner = {}
    for shared in rows_on.values():
        # A partner that has ended or is out of view counts as none.
        a, b = max(shared), min(shared) if len(shared) > 1 else -1
        partner[a] = b
        partner[b] = a
    partner.pop(-1, None)
    return partner


class PackedPlacer:
    """Places pairs on what is free once all jobs whose placement changes have left."""

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
        remaining = target.rows[:, ~goes[target.rows[SLOT]] & (target.rows[DEVICE] >= 0)]
        self.free[remaining[DEVICE]] = False
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
        """Release the cores and memory of workers with one GPU each."""
        np.add.at(self.cpu, nodes, self.snap.table.cpu[slots])
        np.add.at(self.memory, nodes, self.snap.table.memory[slots])

    def take(self, members: list[int], gpu_type: int, wish: list[int]) -> bool:
        """Take devices for a job or pair, *wish* if possible; False if there is no room."""
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
        """Per node how many workers of all *members* fit together."""
        usable = self.free & (self.snap.inventory.type_of == gpu_type)
        room = np.bincount(self.node_of[usable], minlength=len(self.cpu))
        slots = self.snap.jobs.slots[members]
        for left, need in (
            (self.cpu, self.snap.table.cpu[slots].sum()),
            (self.memory, self.snap.table.memory[slots].sum()),
        ):
            if need > 0:
                room = np.minimum(room, np.maximum(left, 0) // need)
        return room

    def _holds(self, devices: list[int], room: Ints, gpu_type: int) -> bool:
        wanted = np.asarray(devices)
        of_type = (self.snap.inventory.type_of[wanted] == gpu_type).all()
        use = np.bincount(self.node_of[wanted], minlength=len(room))
        return bool(of_type and self.free[wanted].all() and (use <= room).all())

    def _best_fit(self, room: Ints, gpu_type: int, size: int) -> list[int] | None:
        """Devices on the node with the least sufficient room, else on the fewest nodes."""
        if room.sum() < size:
            return None
        enough = (room >= size).nonzero()[0]
        nodes = [enough[np.argmin(room[enough])]] if len(enough) else np.argsort(-room, kind="stable")
        devices: list[int] = []
        for node in nodes:
            usable = (self.free & (self.snap.inventory.type_of == gpu_type) & (self.node_of == node)).nonzero()[0]
            devices += usable[: min(int(room[node]), size - len(devices))].tolist()
            if len(devices) == size:
                break
        return sorted(devices)


def place_pairs(instance: Instance, members: Ints, chosen: Ints, types: Ints) -> tuple[Ints, Ints]:
    """Places for pairs and for jobs that leave one, and the rows of the placed jobs.

    Unchanged pairs keep their devices; then larger combinations come first. One without room is removed from *chosen*
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
    placer = PackedPlacer(instance, types, together, [row for *_, rows in wanted for row in rows])
    for _, _, at, rows in sorted(wanted):
        if not placer.take(rows, int(chosen[at]), placer.devices.get(rows[0], [])):
            types[rows] = chosen[at] = -1
    places = np.array(placer.places, np.int64).reshape(-1, PLACE_COLUMNS).T
    return places, np.array(sorted(placer.placed), np.int64)
