"""Free capacity by node and device, which DRAGON updates while it decides.

Queries answer for all nodes at once. Counts of GPU fractions are cached and updated only for nodes that changed,
because they scan devices instead of nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from levada.core.inventory import UNLIMITED, Inventory
from levada.core.types import WHOLE, Bools, Ints
from levada.placement.fractions import tags_allow

#: More workers than any node holds: the room for workers without a demand.
PLENTY = 1 << 40
#: Best fit does not distinguish more free cores than this.
_MOST_CPU = (1 << 40) - 1
#: Up to this many nodes are updated one by one.
_FEW = 4
#: Kinds of fractions with cached counts.
_MOST_CACHED = 64

_NO_DEVICES: Ints = np.zeros(0, np.int64)


class Demand(NamedTuple):
    """Resources of one worker. Tags are numbers, 0 = none."""

    cpu: int = 0
    memory: int = 0
    milli: int = 0
    gpu_memory: int = 0
    affinity: int = 0
    anti_affinity: int = 0
    exclusion: int = 0
    #: The class of nodes that it may use; 0 = all nodes.
    node_class: int = 0

    @property
    def devices(self) -> int:
        """Whole devices per worker; 0 for a fraction of one."""
        return self.milli // WHOLE if self.milli % WHOLE == 0 else 0

    @property
    def has_tags(self) -> bool:
        """Whether it has any tag."""
        return bool(self.affinity or self.anti_affinity or self.exclusion)

    @property
    def is_part(self) -> bool:
        """Whether the worker takes a fraction of a device."""
        return self.milli % WHOLE != 0


class ShareCounts(NamedTuple):
    """Per node how many fractions of one kind fit."""

    #: On devices that are already shared, and on all devices.
    on_open: Ints
    on_all: Ints
    #: The free part of the device that the next fraction would take.
    hole: Ints


class FreeCapacity:
    """Free cores, memory and devices."""

    def __init__(self, inventory: Inventory, cpu: Ints, memory: Ints, milli: Ints, gpu_memory: Ints) -> None:
        self.inventory = inventory
        #: Per node. If negative, nothing fits, not even a worker without a demand.
        self.cpu = np.where(inventory.usable_nodes, cpu, -1)
        self.memory = np.where(inventory.usable_nodes, memory, -1)
        #: Per device. Memory of a device of unknown size starts at 0 and goes negative.
        self.milli = np.maximum(milli, 0)
        self.gpu_memory = gpu_memory
        self.affinity: Ints = np.zeros(len(milli), np.int64)
        self.anti_affinity: Ints = np.zeros(len(milli), np.int64)
        self.exclusion: Ints = np.zeros(len(milli), np.int64)
        #: Whether any device has a tag, and whether there are several GPU types; most clusters skip these checks.
        self.tagged = False
        self.mixed = len(inventory.types) > 2
        #: Per type, used or free.
        self.devices: Ints = np.bincount(inventory.type_of[inventory.present], minlength=len(inventory.types))
        #: Whether a fraction must fit on an unused device, too; the original does not check.
        self.checks_fresh = True
        #: Devices that never count as unused, even when empty.
        self.stays_open: Bools | None = None
        #: Whether fractions go to the tightest device, or to the first where they fit.
        self.best_fit = True
        self.unknown_memory: Bools = inventory.gpu_memory >= UNLIMITED
        self.any_unknown = bool(self.unknown_memory.any())
        # Devices are ordered by node, so those of a node are a slice.
        nodes = len(inventory.nodes)
        bounds = np.searchsorted(inventory.node_of, np.arange(nodes + 1)).tolist()
        self.first: list[int] = bounds[:-1]
        self.stop: list[int] = bounds[1:]
        self.rebuild()

    def rebuild(self) -> None:
        """Recompute all sums after devices were changed directly."""
        inventory = self.inventory
        nodes, types = len(inventory.nodes), len(inventory.types)
        whole = self.milli == WHOLE
        at = inventory.type_of[whole] * nodes + inventory.node_of[whole]
        #: Unused devices by type and node, and by type.
        self.fresh: Ints = np.bincount(at, minlength=types * nodes).reshape(types, nodes)
        self.idle: Ints = self.fresh.sum(axis=1)
        #: The order of best fit: fewest free devices, then fewest free cores.
        spare = np.bincount(inventory.node_of, weights=self.milli, minlength=nodes).astype(np.int64)
        self.tightness: Ints = (spare << 40) + np.minimum(self.cpu, _MOST_CPU)
        self._shares: dict[tuple[Demand, int], tuple[ShareCounts, int]] = {}
        self._touched: list[int] = []

    def copy(self) -> FreeCapacity:
        """An independent copy."""
        twin = FreeCapacity.__new__(FreeCapacity)
        twin.__dict__.update(self.__dict__)
        for name in (
            *("cpu", "memory", "milli", "gpu_memory", "affinity", "anti_affinity", "exclusion"),
            *("fresh", "idle", "tightness"),
        ):
            setattr(twin, name, getattr(self, name).copy())
        twin._shares, twin._touched = {}, []
        return twin

    # --- queries ------------------------------------------------------------------------------------------------

    def room(
        self, demand: Demand, gpu_type: int, servers: int = 0, server_cpu: int = 0, server_memory: int = 0
    ) -> Ints:
        """Per node how many workers fit beside *servers* parameter servers."""
        cpu, memory = self.cpu, self.memory
        if servers:
            cpu, memory = cpu - servers * server_cpu, memory - servers * server_memory
        fit = _times(cpu, demand.cpu)
        np.minimum(fit, _times(memory, demand.memory), out=fit)
        if demand.milli:
            np.minimum(fit, self._device_room(demand, gpu_type), out=fit)
        if demand.node_class:
            fit[~self.inventory.eligible[demand.node_class]] = 0
        return fit

    def largest(self, demand: Demand, gpu_type: int) -> int:
        """The most workers with whole devices that fit on one node, by devices only."""
        fresh = self.fresh[gpu_type]
        if demand.node_class:
            fresh = fresh[self.inventory.eligible[demand.node_class]]
        return int(fresh.max(initial=0)) // demand.devices

    def _device_room(self, demand: Demand, gpu_type: int) -> Ints:
        if demand.is_part:
            return self.shares(demand, gpu_type).on_all
        devices = demand.devices
        return self.fresh[gpu_type] if devices == 1 else self.fresh[gpu_type] // devices

    def holds(self, cpu: int, memory: int, demand: Demand, gpu_type: int, workers: int) -> Bools:
        """Per node whether cpu, memory, and devices for *workers* workers are free."""
        fit: Bools = self.cpu >= cpu
        fit &= self.memory >= memory
        if demand.is_part:
            fit &= self.shares(demand, gpu_type).on_all >= workers
        elif demand.milli:
            fit &= self.fresh[gpu_type] >= workers * demand.devices
        if demand.node_class:
            fit &= self.inventory.eligible[demand.node_class]
        return fit

    def room_at(self, node: int, demand: Demand, gpu_type: int) -> int:
        """How many workers fit on one node."""
        cpu, memory = int(self.cpu[node]), int(self.memory[node])
        if cpu < 0 or memory < 0 or not self.inventory.eligible[demand.node_class, node]:
            return 0
        fit = min(cpu // demand.cpu if demand.cpu else PLENTY, memory // demand.memory if demand.memory else PLENTY)
        if fit and demand.is_part:
            fit = min(fit, sum(self._counts_at(node, demand, gpu_type)))
        elif fit and demand.milli:
            fit = min(fit, int(self.fresh[gpu_type, node]) // demand.devices)
        return fit

    def shares(self, demand: Demand, gpu_type: int) -> ShareCounts:
        """Per node how many fractions of this kind fit, by devices only."""
        key = (demand._replace(cpu=0, memory=0, node_class=0), gpu_type)
        known = self._shares.get(key)
        if known is None or len(self._touched) - known[1] > len(self.first) // 4:
            if len(self._shares) >= _MOST_CACHED:
                self._shares.clear()
            shares = self._count_all(demand, gpu_type)
        else:
            shares = known[0]
            for node in set(self._touched[known[1] :]):
                shares.on_open[node], shares.on_all[node], shares.hole[node] = self._count_at(node, demand, gpu_type)
        self._shares[key] = (shares, len(self._touched))
        return shares

    def _count_all(self, demand: Demand, gpu_type: int) -> ShareCounts:
        node_of, nodes = self.inventory.node_of, len(self.first)
        counts = self._counts(slice(None), demand, gpu_type)
        on_open = np.where(self.milli < WHOLE, counts, 0)
        hole = np.full(nodes, WHOLE, np.int64)
        fitting = on_open.nonzero()[0]
        np.minimum.at(hole, node_of[fitting], self.milli[fitting])
        return ShareCounts(
            np.bincount(node_of, weights=on_open, minlength=nodes).astype(np.int64),
            np.bincount(node_of, weights=counts, minlength=nodes).astype(np.int64),
            hole,
        )

    def _count_at(self, node: int, demand: Demand, gpu_type: int) -> tuple[int, int, int]:
        counts = self._counts_at(node, demand, gpu_type)
        on_open, hole = 0, WHOLE
        for milli, count in zip(self.milli[self.first[node] : self.stop[node]].tolist(), counts, strict=True):
            if count and milli < WHOLE:
                on_open += count
                hole = min(hole, milli)
        return on_open, sum(counts), hole

    def _counts_at(self, node: int, demand: Demand, gpu_type: int) -> list[int]:
        """Per device of one node how many fractions fit."""
        span = slice(self.first[node], self.stop[node])
        if not self.plain or demand.has_tags:
            return self._counts(span, demand, gpu_type).tolist()
        # Lists are faster than arrays for a few devices.
        part, memory = demand.milli, demand.gpu_memory
        if not memory:
            return [milli // part for milli in self.milli[span].tolist()]
        left = zip(self.milli[span].tolist(), self.gpu_memory[span].tolist(), strict=True)
        return [min(milli // part, max(mib, 0) // memory) for milli, mib in left]

    @property
    def plain(self) -> bool:
        """Whether only compute and memory decide what fits on a device."""
        return not (self.tagged or self.mixed or self.any_unknown) and self.checks_fresh and self.stays_open is None

    def _counts(self, span: slice, demand: Demand, gpu_type: int) -> Ints:
        """Per device how many fractions fit."""
        milli, memory = self.milli[span], self.gpu_memory[span]
        fresh = milli == WHOLE
        if self.stays_open is not None:
            fresh &= ~self.stays_open[span]
        counts = milli // demand.milli
        if demand.gpu_memory:
            by_memory = np.maximum(memory // demand.gpu_memory, 0)
            # A device of unknown memory size takes one fraction with a memory demand.
            by_memory[self.unknown_memory[span] & fresh] = 1
            np.minimum(counts, by_memory, out=counts)
        else:
            counts[memory < 0] = 0
        if not self.checks_fresh:
            counts[fresh] = np.maximum(counts[fresh], 1)
        if self.tagged or demand.has_tags:
            wants = (demand.affinity, demand.anti_affinity, demand.exclusion)
            carried = (self.affinity[span], self.anti_affinity[span], self.exclusion[span])
            counts[~fresh & ~tags_allow(*carried, *wants)] = 0
            if demand.anti_affinity:
                np.minimum(counts, 1, out=counts)
        if self.mixed:
            counts[self.inventory.type_of[span] != gpu_type] = 0
        return counts

    # --- changes ------------------------------------------------------------------------------------------------

    def take(
        self,
        node: int,
        demand: Demand,
        gpu_type: int,
        workers: int,
        *,
        cpu: int = 0,
        memory: int = 0,
        last: Bools | None = None,
    ) -> Ints:
        """Take room for *workers* workers on *node*, plus cpu and memory; their devices.

        Devices are ordered by worker. Whole devices under *last* are taken only after the others.
        """
        cpu, memory = cpu + workers * demand.cpu, memory + workers * demand.memory
        if demand.is_part:
            devices = self._take_shares(node, demand, gpu_type, workers)
            self.use(node, cpu, memory)
            return devices
        devices = _NO_DEVICES
        if demand.milli:
            span = slice(self.first[node], self.stop[node])
            free = self.milli[span] == WHOLE
            if self.mixed:
                free &= self.inventory.type_of[span] == gpu_type
            devices = free.nonzero()[0] + span.start
            if last is not None:
                devices = np.concatenate([devices[~last[devices]], devices[last[devices]]])
            devices = devices[: workers * demand.devices]
        self._use_whole(node, gpu_type, devices, cpu, memory)
        return devices

    def _use_whole(self, node: int, gpu_type: int, devices: Ints, cpu: int, memory: int) -> None:
        """Take free whole devices of one type and update the node's sums."""
        self.milli[devices] = 0
        self.fresh[gpu_type, node] -= len(devices)
        self.idle[gpu_type] -= len(devices)
        self.memory[node] -= memory
        spare = (int(self.tightness[node]) >> 40) - len(devices) * WHOLE
        left = int(self.cpu[node]) - cpu
        self.cpu[node] = left
        self.tightness[node] = (spare << 40) + min(left, _MOST_CPU)
        if len(devices):
            self._touched.append(node)

    def take_same(
        self, node: int, demand: Demand, gpu_type: int, workers: int, devices: Ints, cpu: int = 0, memory: int = 0
    ) -> None:
        """Take the same devices as another `FreeCapacity` took."""
        cpu, memory = cpu + workers * demand.cpu, memory + workers * demand.memory
        if demand.is_part:
            self._take_parts(devices, demand)
            self.use(node, cpu, memory)
        else:
            self._use_whole(node, gpu_type, devices, cpu, memory)

    def _take_shares(self, node: int, demand: Demand, gpu_type: int, workers: int) -> Ints:
        """The devices of *workers* fractions, chosen as in `fractions.best_device`."""
        first = self.first[node]
        counts = self._counts_at(node, demand, gpu_type)
        milli = self.milli[first : self.stop[node]].tolist()
        chosen: list[int] = []
        for _ in range(workers):
            offers = [i for i, count in enumerate(counts) if count > 0]
            if self.best_fit:
                i = min(offers, key=milli.__getitem__)
            else:
                i = next((i for i in offers if milli[i] < WHOLE), offers[0])
            chosen.append(i)
            milli[i] -= demand.milli
            counts[i] -= 1
        devices = np.array(chosen, np.int64) + first
        self._take_parts(devices, demand)
        return devices

    def _take_parts(self, devices: Ints, demand: Demand) -> None:
        np.subtract.at(self.milli, devices, demand.milli)
        np.subtract.at(self.gpu_memory, devices, demand.gpu_memory)
        if demand.has_tags:
            self.tagged = True
            self.exclusion[devices] = demand.exclusion
            for column, tag in ((self.affinity, demand.affinity), (self.anti_affinity, demand.anti_affinity)):
                if tag:
                    column[devices] = tag

    def use(self, node: int, cpu: int, memory: int) -> None:
        """Take cpu and memory of a node, and update span sums."""
        self.cpu[node] -= cpu
        self.memory[node] -= memory
        self.refresh(node)

    def refresh(self, node: int) -> None:
        """Update the sums of one node."""
        span = slice(self.first[node], self.stop[node])
        milli = self.milli[span]
        whole = milli == WHOLE
        fresh = np.bincount(self.inventory.type_of[span][whole], minlength=len(self.idle))
        self.idle += fresh - self.fresh[:, node]
        self.fresh[:, node] = fresh
        self.tightness[node] = (int(milli.sum()) << 40) + min(int(self.cpu[node]), _MOST_CPU)
        if self.tagged:
            for column in (self.affinity, self.anti_affinity, self.exclusion):
                column[span][whole] = 0
        self._touched.append(node)

    def _refresh_all(self, nodes: Ints) -> None:
        """Update the sums of these nodes; more than a few at once."""
        if len(nodes) <= _FEW:
            for node in nodes.tolist():
                self.refresh(node)
            return
        inventory = self.inventory
        marks = np.zeros(len(self.first), bool)
        marks[nodes] = True
        span = marks[inventory.node_of].nonzero()[0]
        milli, node = self.milli[span], inventory.node_of[span]
        whole = milli == WHOLE
        fresh = np.zeros_like(self.fresh)
        np.add.at(fresh, (inventory.type_of[span[whole]], node[whole]), 1)
        self.idle += (fresh[:, nodes] - self.fresh[:, nodes]).sum(axis=1)
        self.fresh[:, nodes] = fresh[:, nodes]
        spare = np.bincount(node, weights=milli, minlength=len(marks)).astype(np.int64)
        self.tightness[nodes] = (spare[nodes] << 40) + np.minimum(self.cpu[nodes], _MOST_CPU)
        if self.tagged:
            for column in (self.affinity, self.anti_affinity, self.exclusion):
                column[span[whole]] = 0
        self._touched += nodes.tolist()

    def release(self, nodes: Ints, cpu: Ints, memory: Ints, devices: Ints, milli: Ints, gpu_memory: Ints) -> None:
        """Release many workers: cpu and memory by node, 1/1000ths and memory by device.

        Capacity of unusable nodes and devices stays unavailable.
        """
        usable = self.inventory.usable_nodes[nodes]
        np.add.at(self.cpu, nodes[usable], cpu[usable])
        np.add.at(self.memory, nodes[usable], memory[usable])
        usable = self.inventory.usable[devices]
        np.add.at(self.milli, devices[usable], milli[usable])
        np.add.at(self.gpu_memory, devices[usable], gpu_memory[usable])
        np.minimum(self.milli, WHOLE, out=self.milli)
        self._refresh_all(np.unique(nodes))

    def clip(self, other: FreeCapacity, nodes: list[int]) -> None:
        """Reduce the capacity of *nodes* to that of *other*."""
        for node in nodes:
            span = slice(self.first[node], self.stop[node])
            self.cpu[node] = min(self.cpu[node], other.cpu[node])
            self.memory[node] = min(self.memory[node], other.memory[node])
            np.minimum(self.milli[span], other.milli[span], out=self.milli[span])
            np.minimum(self.gpu_memory[span], other.gpu_memory[span], out=self.gpu_memory[span])
            if other.tagged:
                self.tagged = True
                for own, others in (
                    (self.affinity, other.affinity),
                    (self.anti_affinity, other.anti_affinity),
                    (self.exclusion, other.exclusion),
                ):
                    np.maximum(own[span], others[span], out=own[span])
            self.refresh(node)


def _times(free: Ints, each: int) -> Ints:
    """How often *each* fits into *free*; 0 if *free* is negative."""
    if each > 0:
        times = free // each
        return np.maximum(times, 0, out=times)
    return np.where(free >= 0, PLENTY, 0)
