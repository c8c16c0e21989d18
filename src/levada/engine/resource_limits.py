"""Which operations are ready with respect to CPU, memory and GPU fractions.

Whole GPUs have owners and need no sums; see `operations.issue`.
"""

from __future__ import annotations

import numpy as np

from levada.core.assignment import DEVICE, FREE, GPU_MEMORY, INDEX, MILLI, NODE, SHARED, SLOT
from levada.core.inventory import UNLIMITED
from levada.core.types import WHOLE, Bools, Ints, distinct
from levada.engine.held_devices import added_places, with_rows
from levada.engine.state import State
from levada.kernels import assignment
from levada.tables.placement_rows import once_per_worker, standing, takes, whole_devices

#: Tolerance for rounding: fractions of an integer may add up to slightly more.
_TOLERANCE = 1e-6


def limited(state: State, slots: Ints) -> bool:
    """Whether CPU, memory or GPU fractions can block any of these jobs."""
    table, inventory = state.world.table, state.world.inventory
    if len(with_rows(state, slots)):
        return True
    tight = (inventory.cpu < UNLIMITED).any() or (inventory.memory < UNLIMITED).any()
    return bool(tight and (table.cpu[slots].any() or table.memory[slots].any()))


def within_limits(state: State, slots: Ints) -> Bools:
    """Which of these jobs can take what their targets add, if jobs earlier in *slots* take theirs first.

    The order matters only on nodes and devices that cannot hold all of them.
    """
    rows = _added(state, slots)
    parts = bool((rows[MILLI] % WHOLE).any())
    if not parts and _easily_fit(state, rows):
        return np.ones(len(slots), bool)
    left = _left(state, parts)
    over = [_exceeds(*pair) for pair in zip(_needs(state, rows, parts), left, strict=True)]
    crowded = (over[0] | over[1])[rows[NODE]]
    if parts:
        on_device = (rows[DEVICE] >= 0).nonzero()[0]
        crowded[on_device] |= (over[2] | over[3])[rows[DEVICE][on_device]]
    fits = np.ones(len(slots), bool)
    if not crowded.any():
        return fits
    contenders = state.flags(rows[SLOT][crowded])
    for at in contenders[slots].nonzero()[0]:
        needs = _needs(state, rows[:, rows[SLOT] == slots[at]], parts)
        fits[at] = not any(_exceeds(*pair).any() for pair in zip(needs, left, strict=True))
        if fits[at]:
            for need, available in zip(needs, left, strict=True):
                available -= need
    return fits


def _easily_fit(state: State, rows: Ints) -> bool:
    """Whether all rows fit even if none of these workers is on its node yet; a cheap sufficient check."""
    table, node, nodes = state.world.table, rows[NODE], len(state.world.inventory.nodes)
    # Each device of a worker counts for its share of the worker's CPU and memory.
    devices = np.where(rows[INDEX] >= 0, np.maximum(table.milli[rows[SLOT]] // WHOLE, 1), 1)
    return not any(
        _exceeds(np.ceil(np.bincount(node, amounts / devices, nodes)[node] - _TOLERANCE), available).any()
        for amounts, available in zip(takes(table, rows), _left_on(state, node), strict=True)
    )


def _exceeds(need: Ints, left: Ints) -> Bools:
    return (need > left) & (need > 0)


def _added(state: State, slots: Ints) -> Ints:
    """Target places of these jobs that they do not hold."""
    world = state.world
    special = with_rows(state, slots)
    plain = state.flags(slots)
    plain[special] = False
    devices, _ = assignment.changes(world.target.owner, world.held.owner, plain)
    whole = whole_devices(world.inventory, world.target, devices)
    if not len(special):
        return whole
    return np.concatenate([whole, *(added_places(state, int(slot)) for slot in special)], axis=1)


def _left(state: State, parts: bool) -> list[Ints]:
    """Unused CPU and memory per node; with *parts*, also unused 1/1000ths and MiB per device."""
    inventory, held = state.world.inventory, state.world.held
    left = _left_on(state, slice(None))
    if parts:
        milli = WHOLE - inventory.foreign - held.shared_milli()
        milli[(held.owner != FREE) & (held.owner != SHARED)] = 0
        left += [milli, inventory.gpu_memory - inventory.foreign_gpu_memory - held.shared_gpu_memory()]
    return left


def _left_on(state: State, nodes: Ints | slice) -> list[Ints]:
    """Unused CPU and memory of these nodes."""
    inventory, held = state.world.inventory, state.world.held
    return [
        inventory.cpu[nodes] - inventory.foreign_cpu[nodes] - held.cpu[nodes],
        inventory.memory[nodes] - inventory.foreign_memory[nodes] - held.memory[nodes],
    ]


def _needs(state: State, rows: Ints, parts: bool) -> list[Ints]:
    """What these places need, as in `_left`. A worker needs its CPU once per node, and not if it is there already."""
    table, inventory, held = state.world.table, state.world.inventory, state.world.held
    present = standing(inventory, held, distinct(rows[SLOT]))
    both = np.concatenate([present, rows], axis=1)
    first = once_per_worker(both[SLOT], both[INDEX], both[NODE])
    new = both[:, first[first >= present.shape[1]]]
    needs = [_sums(new[NODE], amounts, len(inventory.nodes)) for amounts in takes(table, new)]
    if parts:
        shared = rows[:, (rows[DEVICE] >= 0) & (rows[MILLI] < WHOLE)]
        needs += [_sums(shared[DEVICE], shared[column], len(inventory.node_of)) for column in (MILLI, GPU_MEMORY)]
    return needs


def _sums(index: Ints, amounts: Ints, length: int) -> Ints:
    total = np.zeros(length, np.int64)
    np.add.at(total, index, amounts)
    return total
