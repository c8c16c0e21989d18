"""Match a decision with the job table, and apply it once it is accepted.

*decision* has one column per job and the rows number, type, count, reason, evidence, and rank and batch if present.
`slots` has the slot of each of its columns, -1 if that column is ignored.
"""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Floats, Ints
from levada.kernels.assignment import differing
from levada.kernels.invariants import check, is_allowed_size
from levada.kernels.jobs import explains_stop, find_slot, special
from levada.kernels.operations import plan_operations
from levada.kernels.place import place
from levada.kernels.registry import kernel

#: Fault codes of `match`.
SOUND, NOT_IN_VIEW, BAD_REASON = range(3)
NUMBER, TYPE, COUNT, REASON, EVIDENCE, RANK = range(6)


@kernel
def match(
    decision: Ints,
    ints: Ints,
    preference: Ints,
    numbers: Ints,
    slot_of: Ints,
    in_view: Ints,
    deciding: int,
    skipped: Ints,
) -> tuple[int, Ints, Ints, Ints, bool]:
    """Match the decision with the table.

    Returns a fault code; the slot of each column that counts; the columns whose grant changes; the slots with a size
    that is not allowed; and whether all columns count. A column is ignored if its job changed after the snapshot, has
    an operation in progress, or is in *is_skipped*.
    """
    rows, moving, bad, near, matched = decision.shape[1], 0, 0, 0, 0
    slots, at, faulty = np.full(rows, -1, np.int64), np.empty(rows, np.int64), np.empty(rows, np.int64)
    if len(in_view) != rows:
        return NOT_IN_VIEW, slots, at[:0], faulty[:0], False
    for r in range(rows):
        if in_view[r] != decision[NUMBER, r]:
            return NOT_IN_VIEW, slots, at[:0], faulty[:0], False
    for r in range(rows):
        reason = decision[REASON, r]
        if not 0 <= reason <= c.LAST_REASON or not _is_policy_reason(reason):
            return BAD_REASON, slots, at[:0], faulty[:0], False
    for r in range(rows):
        # Jobs are mostly in the order of the index: each search starts after the last match.
        while near < len(numbers) and numbers[near] < decision[NUMBER, r]:
            near += 1
        if near < len(numbers) and numbers[near] == decision[NUMBER, r]:
            s = slot_of[near]
        else:
            s = find_slot(numbers, slot_of, decision[NUMBER, r])
        if s < 0 or ints[c.CHANGED, s] > deciding or ints[c.ISSUED, s] != 0:
            continue
        is_skipped = False
        for other in skipped:
            is_skipped |= other == s
        if is_skipped:
            continue
        slots[r] = s
        matched += 1
        count = decision[COUNT, r]
        kind = decision[TYPE, r] if count != 0 else -1
        if kind != ints[c.TYPE, s] or count != ints[c.COUNT, s]:
            at[moving] = r
            moving += 1
            if not is_allowed_size(ints, preference, s, kind, count):
                faulty[bad] = s
                bad += 1
    return SOUND, slots, at[:moving].copy(), faulty[:bad].copy(), matched == rows


@kernel
def _is_policy_reason(reason: int) -> bool:
    """Whether a policy may give this reason: it cannot know that a job has ended."""
    return not (reason == c.FINISHED or reason == c.CANCELLED or reason == c.FAILED or reason == c.TIME_LIMIT_REACHED)


@kernel
def split_placed(decision: Ints, ints: Ints, slots: Ints, placed: Ints, places: Ints) -> tuple[Bools, Ints]:
    """Columns that need no placer: those in *placed* (with given *places*) and those of count 0.

    Then the slots of the special jobs among them, which take cores, memory or parts of devices.
    """
    settled = np.zeros(len(slots), np.bool_)
    for r in placed:
        settled[r] = slots[r] >= 0
    for r in range(len(slots)):
        settled[r] |= slots[r] >= 0 and decision[COUNT, r] == 0
    has_parts = np.zeros(len(slots), np.bool_)
    for i in range(places.shape[1]):
        has_parts[places[c.ROW_SLOT, i]] |= places[c.ROW_MILLI, i] != c.WHOLE
    special_slots, number = np.empty(len(slots), np.int64), 0
    for r in range(len(slots)):
        if settled[r] and (has_parts[r] or special(ints, slots[r])):
            special_slots[number] = slots[r]
            number += 1
    return settled, special_slots[:number].copy()


@kernel
def assign_whole(assigned: Ints, slots: Ints, settled: Bools, places: Ints, others: Ints, cap: int) -> None:
    """Assign the whole devices in *places*, and no others, to *settled* jobs except *others*."""
    chosen = np.zeros(cap, np.bool_)
    for r in range(len(slots)):
        if settled[r]:
            chosen[slots[r]] = True
    for s in others:
        chosen[s] = False
    owner, index = assigned[c.OWNER], assigned[c.INDEX]
    for d in range(len(owner)):
        if owner[d] >= 0 and chosen[owner[d]]:
            owner[d] = c.FREE
    for i in range(places.shape[1]):
        s, d = slots[places[c.ROW_SLOT, i]], places[c.ROW_DEVICE, i]
        if s >= 0 and chosen[s]:
            owner[d], index[d] = s, places[c.ROW_INDEX, i]


@kernel
def grants(ints: Ints, decision: Ints, slots: Ints, at: Ints, reached: Ints) -> Ints:
    """Type and count of every slot if the columns in *at* get the sizes in *reached*."""
    block = np.empty((2, ints.shape[1]), np.int64)
    block[0], block[1] = ints[c.TYPE], ints[c.COUNT]
    for i in range(len(at)):
        r = at[i]
        block[0, slots[r]] = decision[TYPE, r] if reached[i] > 0 else -1
        block[1, slots[r]] = reached[i]
    return block


@kernel
def accept(
    decision: Ints,
    ranked: bool,
    batched: bool,
    slots: Ints,
    placed: Ints,
    kind: Ints,
    count: Ints,
    ints: Ints,
    floats: Floats,
    target: Ints,
    assigned: Ints,
    assigned_rows: Ints,
    held: Ints,
    held_rows: Ints,
) -> bool:
    """Make *kind*, *count* and the devices of *assigned* the target; whether operations follow.

    Also sets the reason, rank and batch size of each job.
    """
    changed = np.zeros(ints.shape[1], np.bool_)
    had = np.zeros(len(slots), np.int64)
    for r in range(len(slots)):
        if slots[r] >= 0:
            had[r] = ints[c.COUNT, slots[r]]
    for d in differing(target[c.OWNER], assigned[c.OWNER]):
        for s in (target[c.OWNER, d], assigned[c.OWNER, d]):
            if s >= 0:
                changed[s] = True
    for r in placed:
        if slots[r] >= 0:
            changed[slots[r]] = True
    for s in slots:
        if s >= 0:
            changed[s] |= ints[c.TYPE, s] != kind[s] or ints[c.COUNT, s] != count[s]
            ints[c.TYPE, s], ints[c.COUNT, s] = kind[s], count[s]
    target[:] = assigned
    _mark_jobs_with_rows(ints, slots, assigned_rows, held_rows)
    _set_reasons(decision, ranked, batched, slots, had, ints, floats)
    return plan_operations(ints, slots[slots >= 0], changed, assigned, assigned_rows, held, held_rows)


@kernel
def _mark_jobs_with_rows(ints: Ints, slots: Ints, target_rows: Ints, held_rows: Ints) -> None:
    """Mark which of these jobs have rows: those that always have, and packed ones."""
    decided = np.zeros(ints.shape[1], np.bool_)
    for s in slots:
        if s >= 0:
            decided[s] = True
            milli = ints[c.MILLI, s]
            ints[c.HAS_ROWS, s] = milli == 0 or milli % c.WHOLE != 0 or ints[c.SERVERS, s] > 0
    for rows in (target_rows, held_rows):
        for i in range(rows.shape[1]):
            if decided[rows[c.ROW_SLOT, i]]:
                ints[c.HAS_ROWS, rows[c.ROW_SLOT, i]] = 1


@kernel
def _set_reasons(
    decision: Ints, ranked: bool, batched: bool, slots: Ints, had: Ints, ints: Ints, floats: Floats
) -> None:
    """Set the reason, rank and batch size of each job; *had* is its size before the decision."""
    # Single columns: passing whole blocks to a call per job is five times slower.
    count, phase, first_started = ints[c.COUNT], ints[c.PHASE], floats[c.FIRST_STARTED]
    reasons, evidences, ranks, batches = ints[c.REASON], ints[c.EVIDENCE], ints[c.RANK], ints[c.BATCH]
    stopped_by, node_class = ints[c.STOPPED_BY], ints[c.NODE_CLASS]
    # A job that left a drained node returns: jobs that stop now make room for it.
    returns = False
    for s in slots:
        returns |= s >= 0 and count[s] > 0 and stopped_by[s] % c.PACKED == c.DRAINED
    for r in range(len(slots)):
        s = slots[r]
        if s < 0:
            continue
        reason, evidence = decision[REASON, r], decision[EVIDENCE, r]
        if count[s] == 0:
            if decision[COUNT, r] > 0:
                reason, evidence = c.INELIGIBLE_NODES if node_class[s] > 0 else c.FRAGMENTED, 0
            if reason == c.RUNS:
                reason = c.CAPACITY
            if reason == c.CAPACITY and first_started[s] < np.inf:
                reason = c.MADE_ROOM if returns and had[r] > 0 else c.PREEMPTED
                if explains_stop(reasons[s]):
                    reason, evidence = reasons[s], evidences[s]
                elif stopped_by[s] > 0:
                    reason, evidence = stopped_by[s] % c.PACKED, stopped_by[s] // c.PACKED
        elif phase[s] == c.PENDING:
            reason = c.SAYS_STARTING
        reasons[s], evidences[s] = reason, evidence
        if not ranked or decision[RANK, r] >= 0:
            ranks[s] = decision[RANK, r] if ranked else r
        batches[s] = decision[len(decision) - 1, r] if batched else 0


@kernel
def commit(
    decision: Ints,
    ranked: bool,
    batched: bool,
    in_view: Ints,
    deciding: int,
    ints: Ints,
    floats: Floats,
    preference: Ints,
    numbers: Ints,
    slot_of: Ints,
    target: Ints,
    target_nodes: Ints,
    target_rows: Ints,
    held: Ints,
    held_rows: Ints,
    devices: Ints,
    nodes: Ints,
    pools: Ints,
    highest_first: bool,
) -> tuple[bool, bool, bool]:
    """Match, place, check and accept a decision in one call, unless the caller must intervene.

    Returns whether it is done (if not, nothing changed: the decision has a fault, a job has rows or a node class, or a
    running job does not fit but may stay); whether all columns count; and whether operations follow. The caller's
    general path uses the same kernels.
    """
    empty = np.zeros(0, np.int64)
    fault, slots, moving, bad, complete = match(decision, ints, preference, numbers, slot_of, in_view, deciding, empty)
    if fault != SOUND or len(bad) > 0:
        return False, False, False
    assigned, assigned_nodes, want = target, target_nodes, decision[COUNT][moving]
    kind, count = ints[c.TYPE], ints[c.COUNT]
    if len(moving) > 0:
        chosen = slots[moving]
        for s in chosen:
            if ints[c.HAS_ROWS, s] != 0 or ints[c.NODE_CLASS, s] != 0:
                return False, False, False
        assigned, assigned_nodes = target.copy(), target_nodes.copy()
        reached = place(
            assigned,
            assigned_nodes,
            held,
            devices,
            nodes,
            pools,
            ints,
            chosen,
            decision[TYPE][moving],
            want,
            highest_first,
        )
        for i in range(len(moving)):
            if reached[i] == 0 and want[i] > 0 and ints[c.COUNT, chosen[i]] > 0:
                return False, False, False
        block = grants(ints, decision, slots, moving, reached)
        kind, count = block[0], block[1]
        decided = slots if complete else slots[slots >= 0]
        findings = check(
            assigned,
            assigned_nodes,
            target_rows,
            target,
            target_nodes,
            target_rows,
            devices,
            nodes,
            ints,
            preference,
            decided,
            kind,
            count,
            np.zeros(0, np.bool_),
        )
        if findings.shape[1] > 0:
            return False, False, False
    ops_follow = accept(
        decision,
        ranked,
        batched,
        slots,
        empty,
        kind,
        count,
        ints,
        floats,
        target,
        assigned,
        target_rows,
        held,
        held_rows,
    )
    if len(moving) > 0:
        target_nodes[:] = assigned_nodes
    return True, complete, ops_follow
