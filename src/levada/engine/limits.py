"""Cores, memory and parts of GPUs: whose operation could go out by what is seen to be free of them.

Whole GPUs have owners and need no sums; see `operations.issue`.
"""

from __future__ import annotations

import numpy as np

from levada.core.inventory import UNLIMITED
from levada.core.plane import DEVICE, FREE, GPU_MEMORY, INDEX, MILLI, NODE, SHARED, SLOT
from levada.core.types import WHOLE, Bools, Ints, distinct
from levada.engine.holdings import added_places, with_rows
from levada.engine.state import State
from levada.kernels import assignment
from levada.tables.places import once_per_worker, standing, takes, whole_devices

#: Parts of a whole number may add up to a little more than it.
_A_HAIR = 1e-6


def limited(state: State, slots: Ints) -> bool:
    """Whether cores, memory or parts of GPUs can stand in the way of any of these jobs."""
    table, inventory = state.world.table, state.world.inventory
    if len(with_rows(state, slots)):
        return True
    tight = (inventory.cpu < UNLIMITED).any() or (inventory.memory < UNLIMITED).any()
    return bool(tight and (table.cpu[slots].any() or table.memory[slots].any()))


def within_limits(state: State, slots: Ints) -> Bools:
    """Which of these jobs find free what their targets add, if those before them in the order take theirs first.

    The order counts only on nodes and devices where all of them together ask for too much.
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
            for need, there in zip(needs, left, strict=True):
                there -= need
    return fits


def _easily_fit(state: State, rows: Ints) -> bool:
    """Whether all of it would fit even if none of these workers were on its node yet, which is quickly seen."""
    table, node, nodes = state.world.table, rows[NODE], len(state.world.inventory.nodes)
    # Each of a worker's devices stands for its part of what the worker takes.
    devices = np.where(rows[INDEX] >= 0, np.maximum(table.milli[rows[SLOT]] // WHOLE, 1), 1)
    return not any(
        _exceeds(np.ceil(np.bincount(node, amounts / devices, nodes)[node] - _A_HAIR), there).any()
        for amounts, there in zip(takes(table, rows), _left_on(state, node), strict=True)
    )


def _exceeds(need: Ints, left: Ints) -> Bools:
    return (need > left) & (need > 0)


def _added(state: State, slots: Ints) -> Ints:
    """Places that these jobs should have and do not hold, of all of them."""
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
    """What nobody is seen to use: cores and memory per node; with *parts*, 1/1000ths and MiB per device too."""
    inventory, held = state.world.inventory, state.world.held
    left = _left_on(state, slice(None))
    if parts:
        milli = WHOLE - inventory.foreign - held.shared_milli()
        milli[(held.owner != FREE) & (held.owner != SHARED)] = 0
        left += [milli, inventory.gpu_memory - inventory.foreign_gpu_memory - held.shared_gpu_memory()]
    return left


def _left_on(state: State, nodes: Ints | slice) -> list[Ints]:
    """The cores and memory that nobody is seen to use on these nodes."""
    inventory, held = state.world.inventory, state.world.held
    return [
        inventory.cpu[nodes] - inventory.foreign_cpu[nodes] - held.cpu[nodes],
        inventory.memory[nodes] - inventory.foreign_memory[nodes] - held.memory[nodes],
    ]


def _needs(state: State, rows: Ints, parts: bool) -> list[Ints]:
    """What these places take, as in `_left`. A worker takes its cores once, and not again on a node where it is."""
    table, inventory, held = state.world.table, state.world.inventory, state.world.held
    there = standing(inventory, held, distinct(rows[SLOT]))
    both = np.concatenate([there, rows], axis=1)
    first = once_per_worker(both[SLOT], both[INDEX], both[NODE])
    each = both[:, first[first >= there.shape[1]]]
    needs = [_sums(each[NODE], amounts, len(inventory.nodes)) for amounts in takes(table, each)]
    if parts:
        cut = rows[:, (rows[DEVICE] >= 0) & (rows[MILLI] < WHOLE)]
        needs += [_sums(cut[DEVICE], cut[column], len(inventory.node_of)) for column in (MILLI, GPU_MEMORY)]
    return needs


def _sums(where: Ints, what: Ints, length: int) -> Ints:
    total = np.zeros(length, np.int64)
    np.add.at(total, where, what)
    return total
