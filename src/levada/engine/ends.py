"""How a job stops holding anything, and how it ends."""

from __future__ import annotations

import numpy as np

from levada.core.commands import JobsEnded
from levada.core.job import Phase
from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS
from levada.core.reasons import Code
from levada.core.types import Ints, one_or_many
from levada.engine.holdings import forget_claims, release
from levada.engine.state import Intent, State
from levada.kernels import acks

_NUMBER, _RESTARTS, _RESIZES, _MOVES = map(INT_COLUMNS.index, ("number", "restarts", "resizes", "moves"))
_SUBMITTED, _FIRST_STARTED, _WAITING_S, _RUNNING_S, _GPU_SECONDS = map(
    FLOAT_COLUMNS.index, ("submitted", "first_started", "waiting_s", "running_s", "gpu_seconds")
)
_STEPS_DONE, _REPORTED, _RESIZED = map(FLOAT_COLUMNS.index, ("steps_done", "reported", "resized"))


def stopped(state: State, slots: Ints) -> None:
    """These jobs hold nothing any more; what was meant to follow follows."""
    have_stopped(state, slots, slots)


def have_stopped(state: State, slots: Ints, holders: Ints) -> None:
    """Jobs in *slots* have stopped; *holders* are those among them whose places have not been freed yet."""
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
    """What was meant to follow when these jobs have stopped."""
    suspended = slots[intent == Intent.SUSPEND]
    state.world.table.phase[suspended] = Phase.SUSPENDED
    state.say(suspended, Code.SUSPENDED)
    for what, phase, code in (
        (Intent.CANCEL, Phase.CANCELLED, Code.CANCELLED),
        (Intent.FAIL, Phase.FAILED, Code.FAILED),
        (Intent.TIME_LIMIT, Phase.FAILED, Code.TIME_LIMIT),
        (Intent.SUCCEED, Phase.SUCCEEDED, Code.FINISHED),
    ):
        end(state, slots[intent == what], phase, code)


def end(state: State, slots: Ints, phase: int, code: int) -> None:
    """These jobs are over for good."""
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
    # Columns of two blocks: two copies, not ten.
    at = one_or_many(slots)
    ints, floats = table.ints[:, at].copy(), table.floats[:, at].copy()
    numbers, alike = ints[_NUMBER], np.empty((2, len(slots)), np.int64)
    alike[0], alike[1] = phase, code
    state.commands.append(
        JobsEnded(
            number=numbers,
            id=tuple([world.ids[number] for number in numbers.tolist()]),
            phase=alike[0],
            reason=alike[1],
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
    for number in numbers.tolist() if state.leaves else ():
        state.leaves.pop(number, None)
    world.remove_jobs(slots)
    state.ended += len(slots)
    state.turnover = True
    _tell_dependents(state, numbers, phase)


def _tell_dependents(state: State, numbers: Ints, phase: int) -> None:
    table = state.world.table
    for number in numbers.tolist() if state.dependents else ():
        after = state.dependents.pop(number, None)
        if after is None:
            continue
        slots = state.active_slots(np.array(after, np.int64))
        ok = table.waits_for[slots] > 0
        # Below zero: it can never start; its user may cancel it, or the server may fail it.
        table.waits_for[slots[ok]] = table.waits_for[slots[ok]] - 1 if phase == Phase.SUCCEEDED else -1
        state.touch(slots)
