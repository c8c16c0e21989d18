"""How fast jobs really are where they are: on one node or several, on parts of a GPU, beside another job."""

from __future__ import annotations

import numpy as np

from levada.core.plane import DEVICE, MILLI, NODE, SLOT, Plane
from levada.core.types import WHOLE, Bools, Floats, Ints
from levada.core.world import World
from levada.engine.state import State
from levada.kernels import drive
from levada.perf import Beliefs, ThroughputModel


def bind_truth(truth: Beliefs, state: State, numbers: Ints) -> None:
    """Binds new jobs to their workloads in the truth; the engine binds them in its own model only."""
    if truth is not state.perf and len(numbers):
        table = state.world.table
        truth.bind(numbers, table.workload.take(table.find(numbers)))


def planned_rates(truth: ThroughputModel, world: World, numbers: Ints, types: Ints, workers: Ints) -> Floats:
    """Steps per second of these jobs, each by itself, at the places that they should have."""
    if not world.target.rows.shape[1] and max(workers.tolist()) <= 1:
        return truth.rates(numbers, types, workers)  # one worker with whole GPUs is on one node
    return rates(truth, world, world.target, world.table.find(numbers), types, workers)


def rates(truth: ThroughputModel, world: World, plane: Plane, slots: Ints, types: Ints, workers: Ints) -> Floats:
    """Steps per second of the jobs in *slots*, each by itself at its places on *plane*."""
    table = world.table
    numbers, milli = table.number.take(slots), table.milli.take(slots)
    found = truth.rates(numbers, types, workers)
    nodes = node_counts(world, plane, slots)
    odd = (nodes > 1) | (milli < WHOLE)
    for row in odd.nonzero()[0].tolist():
        # A worker without a GPU has its own speed, not none.
        part = int(milli[row]) or WHOLE
        found[row] = truth.rate(int(numbers[row]), int(types[row]), int(workers[row]), int(nodes[row]), part)
    return found


def node_counts(world: World, plane: Plane, slots: Ints) -> Ints:
    """On how many nodes each of these jobs is."""
    rows, node_of = plane.rows, world.inventory.node_of
    return drive.node_counts(plane.owner, node_of, rows[SLOT], rows[NODE], slots, world.table.capacity)


def node_pairs(world: World, plane: Plane, slots: Ints) -> tuple[Ints, Ints]:
    """(row of *slots*, node) for every node that a job is on, in this order."""
    # FREE and SHARED are below zero: they look up the last two places, which belong to nobody.
    row_of = np.full(world.table.capacity + 2, -1, np.int64)
    row_of[slots] = np.arange(len(slots))
    whole = row_of[plane.owner]
    devices = (whole >= 0).nonzero()[0]
    keys = whole[devices] * len(world.inventory.nodes) + world.inventory.node_of[devices]
    if plane.rows.shape[1]:
        row = row_of[plane.rows[SLOT]]
        ours = row >= 0
        keys = np.append(keys, row[ours] * len(world.inventory.nodes) + plane.rows[NODE][ours])
    keys = np.unique(keys)
    row, node = np.divmod(keys, max(len(world.inventory.nodes), 1))
    return row, node


def is_packed(world: World, plane: Plane) -> Bools:
    """By slot: the job has parts of GPUs though it asked for whole ones, for another one shares them."""
    marks = np.zeros(world.table.capacity, bool)
    rows = plane.rows
    if rows.shape[1]:
        parts = rows[:, (rows[DEVICE] >= 0) & (rows[MILLI] < WHOLE)]
        marks[parts[SLOT]] = world.table.milli[parts[SLOT]] >= WHOLE
    return marks


def couples(world: World, runs: Bools) -> list[tuple[int, int]]:
    """Slots of the packed jobs that run (by slot) on one device, two by two, the lower number first."""
    rows, packed = world.held.rows, is_packed(world, world.held)
    on: dict[int, list[int]] = {}
    for slot, device in zip(rows[SLOT].tolist(), rows[DEVICE].tolist(), strict=True):
        if device >= 0 and packed[slot] and runs[slot]:
            on.setdefault(device, []).append(slot)
    number = world.table.number
    found = {tuple(sorted(set(slots), key=lambda slot: int(number[slot]))) for slots in on.values()}
    return sorted(pair for pair in found if len(pair) == 2)


def pair_rates(truth: ThroughputModel, world: World, pairs: list[tuple[int, int]]) -> Floats:
    """Steps per second of both, one row for each pair of slots."""
    table, (a, b) = world.table, np.array(pairs, np.int64).T
    return truth.pair_rates(table.number[a], table.number[b], table.held_type[a], table.held[a])
