"""Why the cluster can never hold the minimum of a job, with numbers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from levada.core.layout import NOT_ALLOWED
from levada.core.types import CPU_TYPE, WHOLE
from levada.engine.admission import room_for
from levada.engine.explain_size import part_of_nodes
from levada.engine.state import State


def why_never(state: State, slot: int) -> str:
    """`Can never start: one worker needs 16 GPUs, the largest node has 4.`; empty if the job can start."""
    if state.world.table.feasible[slot] > 0:
        return ""
    return f"Can never start: {_cause(state, slot)}."


def _cause(state: State, slot: int) -> str:
    world, table = state.world, state.world.table
    fits, exists, by_queue, by_user = room_for(state, slot)
    least, queue = int(table.min[slot]), world.queues.values[int(table.queue[slot])].name
    if not exists:
        return _no_type(state, slot)
    if fits < least:
        present = world.inventory.type_of[world.inventory.present]
        several = np.count_nonzero(table.preference[np.unique(present), slot] != NOT_ALLOWED) > 1
        of_one_type = " on GPUs of one type" if several else ""
        holds = f"the cluster can hold {fits}{of_one_type}"
        if part := part_of_nodes(state, slot):
            holds = f"its selector and tolerations allow {part}, which can hold {fits}{of_one_type}"
        return _no_node(state, slot) or f"needs at least {_workers(least)}, {holds}"
    if by_queue < least:
        return f"needs at least {_workers(least)}, the limit of queue {queue} allows {by_queue}"
    return f"needs at least {_workers(least)}, the limit per user of queue {queue} allows {by_user}"


def _no_type(state: State, slot: int) -> str:
    world, inventory = state.world, state.world.inventory
    allowed = (world.table.preference[:, slot] != NOT_ALLOWED).nonzero()[0]
    present = sorted({inventory.types[number] for number in inventory.type_of[inventory.present].tolist()})
    if CPU_TYPE in allowed or not present:
        return "no node is ready" if CPU_TYPE in allowed else "no node has a GPU"
    names = _or(inventory.types[gpu_type] for gpu_type in allowed)
    return f"no node has a GPU of type {names}; there are {', '.join(present)}"


def _no_node(state: State, slot: int) -> str:
    """Which resource of one worker no node has; empty if a node can hold a worker, or if it may not use all nodes."""
    world, table, inventory = state.world, state.world.table, state.world.inventory
    if part_of_nodes(state, slot):
        return ""
    milli, cpu, memory, gpu_memory = (
        int(column[slot]) for column in (table.milli, table.cpu, table.memory, table.gpu_memory)
    )
    types = (table.preference[:, slot] != NOT_ALLOWED).nonzero()[0]
    pools = np.isin(inventory.pool_type, types)
    if milli >= WHOLE and pools.any():
        largest = int(np.add.reduceat(inventory.present.astype(np.int64), inventory.pool_start)[pools].max())
        if milli // WHOLE > largest:
            all_types = len(types) >= len(set(inventory.pool_type.tolist()))
            of_type = "" if all_types else f" of type {_or(inventory.types[gpu_type] for gpu_type in types)}"
            return f"one worker needs {milli // WHOLE} GPUs, the largest node has {largest}{of_type}"
    ready = ~inventory.lost
    for need, has, unit, scale in (
        (cpu, inventory.cpu[ready], "cores", 1000),
        (memory, inventory.memory[ready], "MiB of memory", 1),
        (gpu_memory if milli < WHOLE else 0, inventory.gpu_memory[inventory.present], "MiB of GPU memory", 1),
    ):
        most = int(has.max(initial=0))
        if need > most:
            return f"one worker needs {need / scale:g} {unit}, the largest node has {most / scale:g}"
    servers = int(table.servers[slot])
    if servers and not world.inventory.lost.all() and room_for(state, slot)[0] == 0:
        return f"no nodes can hold its {servers} parameter servers"
    return ""


def _workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"


def _or(names: Iterable[str]) -> str:
    return " or ".join(names)
