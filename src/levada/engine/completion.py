"""Completed stops and ended jobs."""

from __future__ import annotations

import numpy as np

from levada.core.commands import JobsEnded
from levada.core.job import Phase
from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS
from levada.core.reasons import Code
from levada.core.types import Ints, one_or_many
from levada.engine.held_devices import forget_claims, release
from levada.engine.state import Intent, State
from levada.kernels import acks

_NUMBER, _RESTARTS, _RESIZES, _MOVES = map(INT_COLUMNS.index, ("number", "restarts", "resizes", "moves"))
_SUBMITTED, _FIRST_STARTED, _WAITING_S, _RUNNING_S, _GPU_SECONDS = map(
    FLOAT_COLUMNS.index, ("submitted", "first_started", "waiting_s", "running_s", "gpu_seconds")
)
_STEPS_DONE, _REPORTED, _RESIZED = map(FLOAT_COLUMNS.index, ("steps_done", "reported", "resized"))


def stopped(state: State, slots: Ints) -> None:
    """Release all devices of these jobs and carry out their intents."""
    have_stopped(state, slots, slots)


def have_stopped(state: State, slots: Ints, holders: Ints) -> None:
    """Carry out the intents of stopped jobs; *holders* are those whose devices are not released yet."""
    if len(holders):
        forget_claims(state, holders)
        release(state, holders, everything=True)
    table = state.world.table
    intents, tries, follows = acks.stop(slots, table.ints, table.floats, state.now, state.revision)
    state.acked = True
    state.may_issue |= follows
    state.may_cycle |= follows
    for at in tries.nonzero()[0]:
        slot = int(slots[at])
        pause = state.backoff(int(table.number[slot]), int(tries[at]))
        state.pause(slot, max(float(table.retry_at[slot]) - state.now, pause))
    if intents.any():
        _carry_out(state, slots, intents)


def _carry_out(state: State, slots: Ints, intent: Ints) -> None:
    """Suspend or end stopped jobs as intended."""
    suspended = slots[intent == Intent.SUSPEND]
    state.world.table.phase[suspended] = Phase.SUSPENDED
    state.set_reason(suspended, Code.SUSPENDED)
    for ending, phase, code in (
        (Intent.CANCEL, Phase.CANCELLED, Code.CANCELLED),
        (Intent.FAIL, Phase.FAILED, Code.FAILED),
        (Intent.TIME_LIMIT, Phase.FAILED, Code.TIME_LIMIT),
        (Intent.SUCCEED, Phase.SUCCEEDED, Code.FINISHED),
    ):
        end(state, slots[intent == ending], phase, code)


def end(state: State, slots: Ints, phase: int, code: int) -> None:
    """End these jobs: release their devices, emit `JobsEnded`, remove them from the table."""
    if not len(slots):
        return
    world, table = state.world, state.world.table
    target, held = world.target, world.held
    special = acks.vacate(slots, table.ints, table.floats, state.now, target.owner, held.owner, held.claimed)
    if len(special):
        world.clear_workers(target, special)
        forget_claims(state, special)
        release(state, special, everything=True)
    state.freed()
    # Copy two blocks instead of ten columns.
    at = one_or_many(slots)
    ints, floats = table.ints[:, at].copy(), table.floats[:, at].copy()
    numbers, constant = ints[_NUMBER], np.empty((2, len(slots)), np.int64)
    constant[0], constant[1] = phase, code
    ids = tuple([world.ids[number] for number in numbers.tolist()])
    state.commands.append(
        JobsEnded(
            number=numbers,
            id=ids,
            phase=constant[0],
            reason=constant[1],
            submitted=floats[_SUBMITTED],
            first_started=floats[_FIRST_STARTED],
            finished=state.now,
            waiting_s=floats[_WAITING_S],
            running_s=floats[_RUNNING_S],
            gpu_seconds=floats[_GPU_SECONDS],
            restarts=ints[_RESTARTS],
            resizes=ints[_RESIZES],
            moves=ints[_MOVES],
            steps_done=floats[_STEPS_DONE],
            reported=floats[_REPORTED],
            resized=floats[_RESIZED],
        )
    )
    state.over.append(numbers)
    for by_number in (state.leaves, state.unmet):
        for number in numbers.tolist() if by_number else ():
            by_number.pop(number, None)
    world.remove_jobs(slots)
    state.ended += len(slots)
    state.turnover = True
    _update_dependents(state, numbers, ids, phase)


def _update_dependents(state: State, numbers: Ints, ids: tuple[str, ...], phase: int) -> None:
    table = state.world.table
    for number, job_id in zip(numbers.tolist(), ids, strict=True) if state.dependents else ():
        dependents = state.dependents.pop(number, None)
        if dependents is None:
            continue
        slots = state.active_slots(np.array(dependents, np.int64))
        waiting = slots[table.waits_for[slots] > 0]
        # A value below 0 means that the job can never start; its user may cancel it, or the server may fail it.
        table.waits_for[waiting] = table.waits_for[waiting] - 1 if phase == Phase.SUCCEEDED else -1
        if phase != Phase.SUCCEEDED:
            state.unmet.update((dependent, (job_id, phase)) for dependent in table.number[waiting].tolist())
        state.touch(slots)
