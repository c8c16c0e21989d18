"""`kernels.state` in numpy."""

from __future__ import annotations

import numpy as np

from levada.kernels import columns as c
from levada.kernels.arrays import Bools, Floats, Ints

_SUSPENDED = 5

# One number per worker and node, so that a plain sort brings devices of one worker together: 20 bits for the slot,
# 23 for the index of the worker, 20 for the node. An index that does not fit becomes the last one, which none may have.
_INDEX_BITS, _NODE_BITS = 23, 20
_NO_INDEX = (1 << _INDEX_BITS) - 1
# The same for rows, whose index may be below zero: 20 bits for the slot, 22 for the index, 21 for device or node.
_ROW_INDEX_BITS, _PLACE_BITS = 22, 21


def accrue(ints: Ints, floats: Floats, slots: Ints, now: float, columns: tuple[int, ...]) -> None:
    observed, phase, milli, since, waiting, running, gpu, run_waiting, run_running, run_gpu = columns
    if len(slots) == 1:
        _accrue_one(ints, floats, int(slots[0]), now, columns)
        return
    # A row first and then its slots: numpy takes much longer over both at once.
    passed = np.maximum(now - floats[since][slots], 0.0)
    workers = ints[observed][slots]
    runs = workers > 0
    ran = np.where(runs, passed, 0.0)
    waited = np.where(runs | (ints[phase][slots] >= _SUSPENDED), 0.0, passed)
    gpus = ran * workers * (ints[milli][slots] / 1000.0)
    for column, what in ((waiting, waited), (run_waiting, waited), (running, ran), (run_running, ran)):
        floats[column][slots] += what
    floats[gpu][slots] += gpus
    floats[run_gpu][slots] += gpus
    floats[since][slots] = np.maximum(floats[since][slots], now)


def _accrue_one(ints: Ints, floats: Floats, slot: int, now: float, columns: tuple[int, ...]) -> None:
    """One job, as live events speak of: plain numbers are several times as fast as columns of one."""
    observed, phase, milli, since, waiting, running, gpu, run_waiting, run_running, run_gpu = columns
    before, workers = floats.item(since, slot), ints.item(observed, slot)
    passed = max(now - before, 0.0)
    if workers > 0:
        floats[running, slot] += passed
        floats[run_running, slot] += passed
        gpus = passed * workers * (ints.item(milli, slot) / 1000.0)
        floats[gpu, slot] += gpus
        floats[run_gpu, slot] += gpus
    elif ints.item(phase, slot) < _SUSPENDED:
        floats[waiting, slot] += passed
        floats[run_waiting, slot] += passed
    floats[since, slot] = max(before, now)


def blocked(target: Ints, held: Ints, slots: int) -> Ints:
    waits = (target >= 0) & (held != -1) & (held != target)
    return np.bincount(target[waits], minlength=slots)


def changes(target: Ints, held: Ints, chosen: Bools) -> tuple[Ints, Ints]:
    differs = (target != held).nonzero()[0]
    wanted, has = target[differs], held[differs]
    adds = differs[(wanted >= 0) & chosen[wanted]]
    drops = differs[(has >= 0) & chosen[has]]
    return adds, drops


def _workers(owner: Ints, index: Ints, node_of: Ints, devices: Ints) -> tuple[Ints, Ints]:
    """Workers on these devices, once per node that each is on, packed and sorted; and how many devices it has there."""
    at = index[devices].astype(np.int64)
    at = np.where((at < 0) | (at > _NO_INDEX), _NO_INDEX, at)
    key = (owner[devices].astype(np.int64) << _INDEX_BITS | at) << _NODE_BITS | node_of[devices]
    key.sort()
    first = np.ones(len(key), bool)
    first[1:] = key[1:] != key[:-1]
    begins = first.nonzero()[0]
    return key[begins], np.diff(begins, append=len(key))


def worker_faults(
    owner: Ints, index: Ints, node_of: Ints, type_of: Ints, judged: Bools, gpu_type: Ints, count: Ints, whole: Ints
) -> Bools:
    faults = np.zeros(len(judged), bool)
    devices = ((owner >= 0) & judged[owner]).nonzero()[0]
    slot = owner[devices]
    faults[slot[type_of[devices] != gpu_type[slot]]] = True
    number = np.bincount(slot, minlength=len(judged))
    faults |= judged & (number != count * whole)
    key, length = _workers(owner, index, node_of, devices)
    worker = key >> _NODE_BITS
    slot = worker >> _INDEX_BITS
    faults[slot[(length != whole[slot]) | (worker & _NO_INDEX == _NO_INDEX)]] = True
    faults[slot[1:][worker[1:] == worker[:-1]]] = True
    return faults


def node_use(owner: Ints, index: Ints, node_of: Ints, nodes: int, cpu: Ints, memory: Ints) -> tuple[Ints, Ints]:
    devices = ((owner >= 0) & ((cpu > 0) | (memory > 0))[owner]).nonzero()[0]
    key, _ = _workers(owner, index, node_of, devices)
    slot, node = key >> _INDEX_BITS + _NODE_BITS, key & (1 << _NODE_BITS) - 1
    cpu_use, memory_use = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    np.add.at(cpu_use, node, cpu[slot])
    np.add.at(memory_use, node, memory[slot])
    return cpu_use, memory_use


def enter(
    ints: Ints,
    floats: Floats,
    preference: Ints,
    lines: Ints,
    living: int,
    slots: Ints,
    new_ints: Ints,
    new_floats: Floats,
    rows: Ints,
    facts: Ints,
    ranks: Ints,
) -> bool:
    ints[:, slots], floats[:, slots], preference[:, slots] = new_ints[:, rows], new_floats[:, rows], ranks.T
    for fact, column in enumerate((c.NUMBER, c.WORKLOAD, c.ENTITY, c.QUEUE_NAME, c.QUEUE, c.ANY_TYPE)):
        ints[column, slots] = facts[:, fact]
    more = slice(living, living + len(slots))
    lines[0, more], lines[1, more], lines[2, more] = slots, facts[:, 0], slots
    came = floats[c.SUBMITTED, lines[0, max(living - 1, 0) : more.stop]]
    return bool((came[1:] >= came[:-1]).all())


def without(lines: Ints, living: int, gone: Ints, slots: int) -> Ints:
    stays = np.ones(slots, bool)
    stays[gone] = False
    left = np.empty_like(lines)
    order, known = lines[0, :living], stays[lines[2, :living]]
    some = living - len(gone)
    left[0, :some], left[1:, :some] = order[stays[order]], lines[1:, :living][:, known]
    return left


def fresh_rows(old: Ints, new: Ints) -> Bools:
    if old.shape == new.shape and (old == new).all():
        return np.zeros(new.shape[1], bool)
    if not old.shape[1]:
        return np.ones(new.shape[1], bool)
    known, asked = _row_keys(old), _row_keys(new)
    order = np.argsort(known, kind="stable")
    at = order[np.minimum(np.searchsorted(known[order], asked), len(known) - 1)]
    fresh = (old[:, at] != new).any(axis=0)
    # The first row with that key was another; hardly ever there is a second one.
    for i in (fresh & (known[at] == asked)).nonzero()[0]:
        fresh[i] = not (old == new[:, i, None]).all(axis=0).any()
    return fresh


def _row_keys(rows: Ints) -> Ints:
    slot, index, node, device = rows[:4]
    index = index & (1 << _ROW_INDEX_BITS) - 1
    place = np.where(device >= 0, device, node + (1 << _PLACE_BITS - 1))
    return (slot << _ROW_INDEX_BITS | index) << _PLACE_BITS | place
