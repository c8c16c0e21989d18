"""`kernels.steps.commit`, compiled: placing, checking and accepting a decision in one call."""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.kernels.arrays import Bools, Floats, Ints
from levada.kernels.assignment import devices_of, differing, faults_on, node_use
from levada.kernels.jobs import find, outlasts, plan_operation, protected
from levada.kernels.place import seat, shed
from levada.kernels.registry import kernel
from levada.kernels.welcome import are_few_newcomers, seat_newcomers

_UNLIMITED = 1 << 50


@kernel
def commit(
    said: Ints,
    ranked: bool,
    batched: bool,
    ints: Ints,
    floats: Floats,
    numbers: Ints,
    slot_of: Ints,
    in_view: Ints,
    deciding: int,
    preference: Ints,
    target: Ints,
    target_index: Ints,
    target_cpu: Ints,
    target_memory: Ints,
    held: Ints,
    held_index: Ints,
    node_of: Ints,
    type_of: Ints,
    usable: Bools,
    cpu_free: Ints,
    memory_free: Ints,
    shut: Bools,
    pool_start: Ints,
    pool_stop: Ints,
    pool_node: Ints,
    pool_type: Ints,
    rack: Ints,
    zone: Ints,
    highest_first: bool,
) -> tuple[bool, bool, bool]:
    rows, cap = said.shape[1], ints.shape[1]
    # It must speak of all that it was shown, in that order.
    if len(in_view) != rows:
        return False, False, False
    spoken = np.zeros(cap, np.bool_)
    slots = np.full(rows, -1, np.int64)
    at = np.empty(rows, np.int64)
    moving, stale, cores, near = 0, False, False, 0
    for r in range(rows):
        # Mostly in the order of the index: each search begins behind the last find.
        while near < len(numbers) and numbers[near] < said[0, r]:
            near += 1
        if near < len(numbers) and numbers[near] == said[0, r]:
            s = slot_of[near]
        else:
            s = find(numbers, slot_of, said[0, r])
        given, reason = said[2, r], said[3, r]
        if s < 0 or spoken[s] or given < 0 or not _may_be_said(reason) or in_view[r] != said[0, r]:
            return False, False, False
        spoken[s] = True
        if ints[c.HAS_ROWS, s] != 0:
            return False, False, False
        if ints[c.CHANGED, s] > deciding or ints[c.ISSUED, s] != 0:
            stale = True
            continue
        slots[r] = s
        kind = said[1, r] if given > 0 else -1
        if kind == ints[c.TYPE, s] and given == ints[c.COUNT, s]:
            continue
        if given > 0:
            least, step = ints[c.MIN, s], max(ints[c.STEP, s], 1)
            if given < least or given > ints[c.MAX, s] or (given - least) % step != 0:
                return False, False, False
            if kind <= c.CORES or kind >= preference.shape[0] or preference[kind, s] == c.NOT_ALLOWED:
                return False, False, False
        cores |= ints[c.CPU, s] != 0 or ints[c.MEMORY, s] != 0
        at[moving] = r
        moving += 1
    for r in range(rows if stale else 0):
        if slots[r] < 0:
            spoken[find(numbers, slot_of, said[0, r])] = False
    at = at[:moving]
    reached = said[2].copy()
    changed = np.zeros(cap, np.bool_)
    if are_few_newcomers(said, slots, at, ints):
        seat_newcomers(
            said, slots, at, reached, ints, target, target_index, held, usable, pool_start, pool_stop, pool_type
        )
    else:
        owner, index = target.copy(), target_index.copy()
        cpu_used, memory_used = target_cpu.copy(), target_memory.copy()
        _place(
            said, slots, at, reached, ints, target, target_index, target_cpu, target_memory, held, held_index, usable,
            node_of, cpu_free, memory_free, pool_start, pool_stop, pool_node, pool_type, rack, zone, highest_first,
        )  # fmt: skip
        if not _sound(
            said, slots, at, reached, ints, spoken, owner, index, target, target_index, usable, node_of, type_of,
            shut, cpu_free, memory_free, cpu_used, memory_used, target_cpu, target_memory, cores,
        ):  # fmt: skip
            target[:], target_index[:] = owner, index
            target_cpu[:], target_memory[:] = cpu_used, memory_used
            return False, False, False
    for row in at:
        s = slots[row]
        kind = said[1, row] if reached[row] > 0 else -1
        changed[s] = ints[c.TYPE, s] != kind or ints[c.COUNT, s] != reached[row]
        ints[c.TYPE, s], ints[c.COUNT, s] = kind, reached[row]
    _tell(said, ranked, batched, slots, reached, ints, floats)
    return True, moving > 0 and _plan_operations(ints, slots, changed, target, held), stale


@kernel
def _may_be_said(reason: int) -> bool:
    """Whether a policy may give this reason."""
    over = reason == c.FINISHED or reason == c.CANCELLED or reason == c.FAILED or reason == c.TIME_LIMIT_REACHED
    return 0 <= reason <= c.LAST_REASON and not over


@kernel
def _tell(said: Ints, ranked: bool, batched: bool, slots: Ints, reached: Ints, ints: Ints, floats: Floats) -> None:
    """The reason, rank and batch size of each job after a decision."""
    # Columns by themselves: a call for each job that takes whole blocks would take five times as long.
    count, phase, first_started = ints[c.COUNT], ints[c.PHASE], floats[c.FIRST_STARTED]
    reasons, evidences, ranks, batches = ints[c.REASON], ints[c.EVIDENCE], ints[c.RANK], ints[c.BATCH]
    stopped_by = ints[c.STOPPED_BY]
    for r in range(len(slots)):
        s = slots[r]
        if s < 0:
            continue
        reason, evidence = said[3, r], said[4, r]
        if count[s] == 0:
            if reached[r] < said[2, r]:
                reason, evidence = c.FRAGMENTED, 0
            if reason == c.RUNS:
                reason = c.CAPACITY
            if reason == c.CAPACITY and first_started[s] < np.inf:
                reason = c.PREEMPTED
                if outlasts(reasons[s]):
                    reason, evidence = reasons[s], evidences[s]
                elif stopped_by[s] > 0:
                    reason, evidence = stopped_by[s] % c.PACKED, stopped_by[s] // c.PACKED
        elif phase[s] == c.PENDING:
            reason = c.SAYS_STARTING
        reasons[s], evidences[s] = reason, evidence
        if not ranked or said[5, r] >= 0:
            ranks[s] = said[5, r] if ranked else r
        batches[s] = said[len(said) - 1, r] if batched else 0


@kernel
def _plan_operations(ints: Ints, slots: Ints, changed: Bools, target: Ints, held: Ints) -> bool:
    """`plan_operation` for the jobs under *changed* among *slots*; whether there is any."""
    differs = np.zeros(len(changed), np.bool_)
    stays = False
    for s in slots:
        stays |= s >= 0 and changed[s] and ints[c.HELD, s] > 0 and ints[c.COUNT, s] > 0
    if stays:
        for d in differing(target, held):
            if target[d] >= 0:
                differs[target[d]] = True
            if held[d] >= 0:
                differs[held[d]] = True
    found = False
    for s in slots:
        if s >= 0 and changed[s]:
            found |= plan_operation(ints, s, differs[s])
    return found


@kernel
def _place(
    said: Ints,
    slots: Ints,
    at: Ints,
    reached: Ints,
    ints: Ints,
    owner: Ints,
    index: Ints,
    cpu_used: Ints,
    memory_used: Ints,
    held: Ints,
    held_index: Ints,
    usable: Bools,
    node_of: Ints,
    cpu_free: Ints,
    memory_free: Ints,
    pool_start: Ints,
    pool_stop: Ints,
    pool_node: Ints,
    pool_type: Ints,
    rack: Ints,
    zone: Ints,
    highest_first: bool,
) -> None:
    """As `placement.Packer.place`: who leaves, then who shrinks, then who grows, the largest first."""
    lists = np.empty((3, len(at)), np.int64)
    long = np.zeros(3, np.int64)
    for r in at:
        s, want = slots[r], said[2, r]
        has = ints[c.COUNT, s]
        had = has if ints[c.TYPE, s] == said[1, r] else 0
        if has > 0 and (had == 0 or want == 0):
            lists[0, long[0]] = r
            long[0] += 1
        if 0 < want < had:
            lists[1, long[1]] = r
            long[1] += 1
        if want > had:
            lists[2, long[2]] = r
            long[2] += 1
    for which in range(2):
        some = lists[which, : long[which]]
        if len(some) == 0:
            continue
        mine = slots[some]
        keep = np.zeros(len(some), np.int64)
        if which == 1:
            for i in range(len(some)):
                keep[i] = said[2, some[i]]
        whole = ints[c.MILLI][mine] // c.WHOLE
        last_first = which == 0 or highest_first
        shed(
            owner, index, cpu_used, memory_used, held, node_of, mine, keep, whole, ints[c.CPU][mine],
            ints[c.MEMORY][mine], last_first,
        )  # fmt: skip
    grows = lists[2, : long[2]]
    if len(grows) == 0:
        return
    size = np.empty(len(grows), np.int64)
    grows = grows[np.argsort(ints[c.NUMBER][slots[grows]], kind="mergesort")] if len(grows) > 1 else grows
    for i in range(len(grows)):
        size[i] = -said[2, grows[i]] * max(ints[c.MILLI, slots[grows[i]]], 1)
    grows = grows[np.argsort(size, kind="mergesort")] if len(grows) > 1 else grows
    mine = slots[grows]
    seated = seat(
        owner, index, cpu_used, memory_used, cpu_free, memory_free, held, held_index, usable, pool_start, pool_stop,
        pool_node, pool_type, rack, zone, mine, said[1][grows], said[2][grows], ints[c.MIN][mine],
        ints[c.STEP][mine], ints[c.MILLI][mine] // c.WHOLE, ints[c.CPU][mine], ints[c.MEMORY][mine],
    )  # fmt: skip
    for i in range(len(grows)):
        reached[grows[i]] = seated[i]


@kernel
def _sound(
    said: Ints,
    slots: Ints,
    at: Ints,
    reached: Ints,
    ints: Ints,
    spoken: Bools,
    target: Ints,
    target_index: Ints,
    owner: Ints,
    index: Ints,
    usable: Bools,
    node_of: Ints,
    type_of: Ints,
    shut: Bools,
    cpu: Ints,
    memory: Ints,
    cpu_before: Ints,
    memory_before: Ints,
    cpu_used: Ints,
    memory_used: Ints,
    cores: bool,
) -> bool:
    """Whether the rules I1 to I5 and I12 hold for what changes; the long way tells what is wrong where they do not."""
    kind, count, whole = ints[c.TYPE].copy(), ints[c.COUNT].copy(), np.empty(len(spoken), np.int64)
    judged, had = np.zeros(len(spoken), np.bool_), False
    for r in at:
        s = slots[r]
        if reached[r] == 0 and said[2, r] > 0 and count[s] > 0:
            return False  # it finds no room where it was to go, and may stay where it is
        had |= ints[c.COUNT, s] > 0
        kind[s], count[s] = said[1, r] if reached[r] > 0 else -1, reached[r]
        judged[s] = True
        whole[s] = ints[c.MILLI, s] // c.WHOLE
        least, step = ints[c.MIN, s], max(ints[c.STEP, s], 1)
        if reached[r] > 0 and (reached[r] < least or (reached[r] - least) % step != 0):
            return False
    moved = differing(owner, target)
    for changed in (moved, differing(index, target_index)):
        for d in changed:
            before = target[d]
            if before == c.SHARED or (before >= 0 and (not spoken[before] or protected(ints, before))):
                return False
            if owner[d] >= 0 and owner[d] != before and not usable[d]:
                return False
    # Who had nothing has nothing but what is new.
    mine = devices_of(owner, judged) if had else moved[owner[moved] >= 0]
    if faults_on(mine, owner, index, node_of, type_of, judged, kind, count, whole).any():
        return False
    if not cores:
        return True
    for n in range(len(shut)):
        if cpu_used[n] > max(_UNLIMITED if shut[n] else cpu[n], cpu_before[n]):
            return False
        if memory_used[n] > max(_UNLIMITED if shut[n] else memory[n], memory_before[n]):
            return False
    cpu_sum, memory_sum = node_use(owner, index, node_of, len(shut), ints[c.CPU], ints[c.MEMORY])
    return bool((cpu_sum == cpu_used).all() and (memory_sum == memory_used).all())
