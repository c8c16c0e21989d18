"""Release whole devices of many jobs at once, by blocks of `kernels.place`."""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Ints
from levada.kernels.registry import kernel


@kernel
def slot_mask(slot: Ints) -> Bools:
    """A mask that is True at these slots, as long as the highest one needs."""
    highest = -1
    for j in range(len(slot)):
        highest = max(highest, slot[j])
    marks = np.zeros(highest + 1, np.bool_)
    for j in range(len(slot)):
        marks[slot[j]] = True
    return marks


@kernel
def devices_by_job(owner: Ints, chosen: Ints, slot: Ints) -> tuple[Ints, Ints]:
    """The *chosen* devices grouped by owner in *slot*: start of each job's run, devices."""
    start = np.zeros(len(slot) + 1, np.int64)
    devices = np.empty(len(chosen), np.int64)
    if len(chosen) == 0:
        return start, devices
    highest = 0
    for j in range(len(slot)):
        highest = max(highest, slot[j])
    row = np.empty(highest + 1, np.int64)
    for j in range(len(slot)):
        row[slot[j]] = j
    for d in chosen:
        start[row[owner[d]] + 1] += 1
    for j in range(len(slot)):
        start[j + 1] += start[j]
    at = start[:-1].copy()
    for d in chosen:
        devices[at[row[owner[d]]]] = d
        at[row[owner[d]]] += 1
    return start, devices


@kernel
def shrink(
    plane_devices: Ints,
    plane_nodes: Ints,
    held_devices: Ints,
    devices: Ints,
    ints: Ints,
    slot: Ints,
    keep: Ints,
    highest_first: bool,
) -> None:
    """Shrink each job to *keep* workers.

    Workers that do not run yet go first; then workers on the nodes where the job has fewest; then the highest index.
    The node of worker 0 comes last, and worker 0 goes only with the whole job. With *highest_first* only the index
    counts, for backends that can only remove the last workers.
    """
    if len(slot) == 0:
        return
    owner, index, held = plane_devices[c.OWNER], plane_devices[c.INDEX], held_devices[c.OWNER]
    cpu_used, memory_used, node_of = plane_nodes[c.USED_CPU], plane_nodes[c.USED_MEMORY], devices[c.NODE_OF]
    whole, cpu, memory = ints[c.MILLI][slot] // c.WHOLE, ints[c.CPU][slot], ints[c.MEMORY][slot]
    leaves = slot_mask(slot)
    owned, number = np.empty(len(owner), np.int32), 0
    for d in range(len(owner)):
        if 0 <= owner[d] < len(leaves) and leaves[owner[d]]:
            owned[number] = d
            number += 1
    start, devices = devices_by_job(owner, owned[:number], slot)
    on_node = np.zeros(len(cpu_used), np.int64)
    for j in range(len(slot)):
        mine = devices[start[j] : start[j + 1]]
        excess = len(mine) // whole[j] - keep[j]
        if excess <= 0:
            continue
        home = -1
        for d in mine:
            on_node[node_of[d]] += 1
            if index[d] == 0:
                home = node_of[d]
        # Highest index first; the stable sort by key keeps that order among equals.
        ranked = mine[np.argsort(-index[mine], kind="mergesort")]
        firsts = ranked[:: whole[j]]
        key = np.zeros(len(firsts), np.int64)
        if not highest_first:
            for w in range(len(firsts)):
                d = firsts[w]
                n = node_of[d]
                key[w] = (on_node[n] << 28) - n
                if n == home:
                    key[w] += 1 << 60
                if held[d] == slot[j]:
                    key[w] += 1 << 61
        released = 0
        for w in np.argsort(key, kind="mergesort"):
            if released == excess or (index[firsts[w]] == 0 and keep[j] > 0):
                continue
            for d in ranked[w * whole[j] : (w + 1) * whole[j]]:
                owner[d] = c.FREE
            cpu_used[node_of[firsts[w]]] -= cpu[j]
            memory_used[node_of[firsts[w]]] -= memory[j]
            released += 1
        for d in mine:
            on_node[node_of[d]] = 0


@kernel
def release(
    plane_devices: Ints,
    plane_nodes: Ints,
    held_devices: Ints,
    devices: Ints,
    ints: Ints,
    slot: Ints,
    gpu_type: Ints,
    want: Ints,
    highest_first: bool,
) -> None:
    """Release excess devices: all of a job that changes its type, else those beyond *want*."""
    leaving, shrinking = np.empty(len(slot), np.int64), np.empty(len(slot), np.int64)
    leaves, shrinks = 0, 0
    for i in range(len(slot)):
        has = ints[c.COUNT, slot[i]]
        had = has if ints[c.TYPE, slot[i]] == gpu_type[i] else 0
        if has > 0 and (had == 0 or want[i] == 0):
            leaving[leaves] = slot[i]
            leaves += 1
        if 0 < want[i] < had:
            shrinking[shrinks] = i
            shrinks += 1
    empty = np.zeros(leaves, np.int64)
    shrink(plane_devices, plane_nodes, held_devices, devices, ints, leaving[:leaves], empty, True)
    rows = shrinking[:shrinks]
    shrink(plane_devices, plane_nodes, held_devices, devices, ints, slot[rows], want[rows], highest_first)
