"""From the rows of a decision to the columns of its jobs: what it is about, and what follows once it is accepted.

*said* has the columns of a decision as rows: number, type, count, reason, evidence, and rank and batch where there are
any. `slots` has the slot of each row, -1 where a row does not count.
"""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Floats, Ints
from levada.kernels.assignment import differing
from levada.kernels.invariants import check, is_allowed_size
from levada.kernels.jobs import find, outlasts, special
from levada.kernels.operations import plan_operations
from levada.kernels.place import place
from levada.kernels.registry import kernel

#: What can be wrong with the rows of a decision.
SOUND, NOT_IN_VIEW, BAD_REASON = range(3)
NUMBER, TYPE, COUNT, REASON, EVIDENCE, RANK = range(6)


@kernel
def match(
    said: Ints,
    ints: Ints,
    preference: Ints,
    numbers: Ints,
    slot_of: Ints,
    in_view: Ints,
    deciding: int,
    aside: Ints,
) -> tuple[int, Ints, Ints, Ints, bool]:
    """What is wrong with the rows; the slot of each that counts; rows whose grant changes; slots with bad sizes.

    Then whether all rows count: a row does not where its job has changed since it was shown, is being operated on, or
    is in *aside*.
    """
    rows, moving, bad, near, counted = said.shape[1], 0, 0, 0, 0
    slots, at, faulty = np.full(rows, -1, np.int64), np.empty(rows, np.int64), np.empty(rows, np.int64)
    if len(in_view) != rows:
        return NOT_IN_VIEW, slots, at[:0], faulty[:0], False
    for r in range(rows):
        if in_view[r] != said[NUMBER, r]:
            return NOT_IN_VIEW, slots, at[:0], faulty[:0], False
    for r in range(rows):
        reason = said[REASON, r]
        if not 0 <= reason <= c.LAST_REASON or not _is_policys(reason):
            return BAD_REASON, slots, at[:0], faulty[:0], False
    for r in range(rows):
        # Mostly in the order of the index: each search begins behind the last find.
        while near < len(numbers) and numbers[near] < said[NUMBER, r]:
            near += 1
        if near < len(numbers) and numbers[near] == said[NUMBER, r]:
            s = slot_of[near]
        else:
            s = find(numbers, slot_of, said[NUMBER, r])
        if s < 0 or ints[c.CHANGED, s] > deciding or ints[c.ISSUED, s] != 0:
            continue
        skipped = False
        for other in aside:
            skipped |= other == s
        if skipped:
            continue
        slots[r] = s
        counted += 1
        count = said[COUNT, r]
        kind = said[TYPE, r] if count != 0 else -1
        if kind != ints[c.TYPE, s] or count != ints[c.COUNT, s]:
            at[moving] = r
            moving += 1
            if not is_allowed_size(ints, preference, s, kind, count):
                faulty[bad] = s
                bad += 1
    return SOUND, slots, at[:moving].copy(), faulty[:bad].copy(), counted == rows


@kernel
def _is_policys(reason: int) -> bool:
    """Whether a policy can know this reason: it cannot know that a job is over."""
    return not (reason == c.FINISHED or reason == c.CANCELLED or reason == c.FAILED or reason == c.TIME_LIMIT_REACHED)


@kernel
def settle(said: Ints, ints: Ints, slots: Ints, placed: Ints, places: Ints) -> tuple[Bools, Ints]:
    """Rows that need no placer: those in *placed*, whose *places* are given, and those of count 0.

    Then the slots of the special jobs among them, which take cores, memory or parts of devices.
    """
    settled = np.zeros(len(slots), np.bool_)
    for r in placed:
        settled[r] = slots[r] >= 0
    for r in range(len(slots)):
        settled[r] |= slots[r] >= 0 and said[COUNT, r] == 0
    parted = np.zeros(len(slots), np.bool_)
    for i in range(places.shape[1]):
        parted[places[c.ROW_SLOT, i]] |= places[c.ROW_MILLI, i] != c.WHOLE
    found, number = np.empty(len(slots), np.int64), 0
    for r in range(len(slots)):
        if settled[r] and (parted[r] or special(ints, slots[r])):
            found[number] = slots[r]
            number += 1
    return settled, found[:number].copy()


@kernel
def put_whole(plane: Ints, slots: Ints, settled: Bools, places: Ints, others: Ints, cap: int) -> None:
    """Give the jobs of *settled* rows, but for *others*, the whole devices in *places* and no others."""
    chosen = np.zeros(cap, np.bool_)
    for r in range(len(slots)):
        if settled[r]:
            chosen[slots[r]] = True
    for s in others:
        chosen[s] = False
    owner, index = plane[c.OWNER], plane[c.INDEX]
    for d in range(len(owner)):
        if owner[d] >= 0 and chosen[owner[d]]:
            owner[d] = c.FREE
    for i in range(places.shape[1]):
        s, d = slots[places[c.ROW_SLOT, i]], places[c.ROW_DEVICE, i]
        if s >= 0 and chosen[s]:
            owner[d], index[d] = s, places[c.ROW_INDEX, i]


@kernel
def grants(ints: Ints, said: Ints, slots: Ints, at: Ints, reached: Ints) -> Ints:
    """Type and count of every slot when the rows in *at* have the sizes that they *reached*."""
    block = np.empty((2, ints.shape[1]), np.int64)
    block[0], block[1] = ints[c.TYPE], ints[c.COUNT]
    for i in range(len(at)):
        r = at[i]
        block[0, slots[r]] = said[TYPE, r] if reached[i] > 0 else -1
        block[1, slots[r]] = reached[i]
    return block


@kernel
def accept(
    said: Ints,
    ranked: bool,
    batched: bool,
    slots: Ints,
    placed: Ints,
    kind: Ints,
    count: Ints,
    ints: Ints,
    floats: Floats,
    target: Ints,
    plane: Ints,
    plane_rows: Ints,
    held: Ints,
    held_rows: Ints,
) -> bool:
    """Make *kind*, *count* and the devices of *plane* the target, and tell each job; whether operations follow."""
    changed = np.zeros(ints.shape[1], np.bool_)
    had = ints[c.COUNT].copy()
    for d in differing(target[c.OWNER], plane[c.OWNER]):
        for s in (target[c.OWNER, d], plane[c.OWNER, d]):
            if s >= 0:
                changed[s] = True
    for r in placed:
        if slots[r] >= 0:
            changed[slots[r]] = True
    for s in slots:
        if s >= 0:
            changed[s] |= ints[c.TYPE, s] != kind[s] or ints[c.COUNT, s] != count[s]
            ints[c.TYPE, s], ints[c.COUNT, s] = kind[s], count[s]
    target[:] = plane
    _note_rows(ints, slots, plane_rows, held_rows)
    _tell(said, ranked, batched, slots, had, ints, floats)
    return plan_operations(ints, slots[slots >= 0], changed, plane, plane_rows, held, held_rows)


@kernel
def _note_rows(ints: Ints, slots: Ints, target_rows: Ints, held_rows: Ints) -> None:
    """Note which of these jobs have rows: those that always do, and those that are packed."""
    spoken = np.zeros(ints.shape[1], np.bool_)
    for s in slots:
        if s >= 0:
            spoken[s] = True
            milli = ints[c.MILLI, s]
            ints[c.HAS_ROWS, s] = milli == 0 or milli % c.WHOLE != 0 or ints[c.SERVERS, s] > 0
    for rows in (target_rows, held_rows):
        for i in range(rows.shape[1]):
            if spoken[rows[c.ROW_SLOT, i]]:
                ints[c.HAS_ROWS, rows[c.ROW_SLOT, i]] = 1


@kernel
def _tell(said: Ints, ranked: bool, batched: bool, slots: Ints, had: Ints, ints: Ints, floats: Floats) -> None:
    """Set the reason, rank and batch size of each job after a decision."""
    # Columns by themselves: a call for each job that takes whole blocks would take five times as long.
    count, phase, first_started = ints[c.COUNT], ints[c.PHASE], floats[c.FIRST_STARTED]
    reasons, evidences, ranks, batches = ints[c.REASON], ints[c.EVIDENCE], ints[c.RANK], ints[c.BATCH]
    stopped_by = ints[c.STOPPED_BY]
    # A job that left a drained node comes back: jobs that stop now make room for it.
    returns = False
    for s in slots:
        returns |= s >= 0 and count[s] > 0 and stopped_by[s] % c.PACKED == c.DRAINED
    for r in range(len(slots)):
        s = slots[r]
        if s < 0:
            continue
        reason, evidence = said[REASON, r], said[EVIDENCE, r]
        if count[s] == 0:
            if said[COUNT, r] > 0:
                reason, evidence = c.FRAGMENTED, 0
            if reason == c.RUNS:
                reason = c.CAPACITY
            if reason == c.CAPACITY and first_started[s] < np.inf:
                reason = c.MADE_ROOM if returns and had[s] > 0 else c.PREEMPTED
                if outlasts(reasons[s]):
                    reason, evidence = reasons[s], evidences[s]
                elif stopped_by[s] > 0:
                    reason, evidence = stopped_by[s] % c.PACKED, stopped_by[s] // c.PACKED
        elif phase[s] == c.PENDING:
            reason = c.SAYS_STARTING
        reasons[s], evidences[s] = reason, evidence
        if not ranked or said[RANK, r] >= 0:
            ranks[s] = said[RANK, r] if ranked else r
        batches[s] = said[len(said) - 1, r] if batched else 0


@kernel
def commit(
    said: Ints,
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
    """Match, place, check and accept a decision in one call, unless the caller must look.

    Whether it is done (if not, nothing has changed: something is wrong, a job has rows, or finds no room and may stay);
    whether all rows count; whether operations follow. The caller's own way is made of the same kernels.
    """
    nothing = np.zeros(0, np.int64)
    fault, slots, moving, bad, complete = match(said, ints, preference, numbers, slot_of, in_view, deciding, nothing)
    if fault != SOUND or len(bad) > 0:
        return False, False, False
    plane, plane_nodes, want = target, target_nodes, said[COUNT][moving]
    kind, count = ints[c.TYPE], ints[c.COUNT]
    if len(moving) > 0:
        chosen = slots[moving]
        for s in chosen:
            if ints[c.HAS_ROWS, s] != 0:
                return False, False, False
        plane, plane_nodes = target.copy(), target_nodes.copy()
        reached = place(
            plane,
            plane_nodes,
            held,
            devices,
            nodes,
            pools,
            ints,
            chosen,
            said[TYPE][moving],
            want,
            highest_first,
        )
        for i in range(len(moving)):
            if reached[i] == 0 and want[i] > 0 and ints[c.COUNT, chosen[i]] > 0:
                return False, False, False
        block = grants(ints, said, slots, moving, reached)
        kind, count = block[0], block[1]
        spoken = slots if complete else slots[slots >= 0]
        findings = check(
            plane,
            plane_nodes,
            target_rows,
            target,
            target_nodes,
            target_rows,
            devices,
            nodes,
            ints,
            preference,
            spoken,
            kind,
            count,
            np.zeros(0, np.bool_),
        )
        if findings.shape[1] > 0:
            return False, False, False
    follows = accept(
        said, ranked, batched, slots, nothing, kind, count, ints, floats, target, plane, target_rows, held, held_rows
    )
    if len(moving) > 0:
        target_nodes[:] = plane_nodes
    return True, complete, follows
