"""How a job stops holding anything, and how it ends."""

from __future__ import annotations

import numpy as np

from levada.core.commands import JobsEnded
from levada.core.job import Phase
from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS
from levada.core.plan import OpKind
from levada.core.reasons import Code, packed
from levada.core.types import Ints, one_or_many
from levada.engine import steps
from levada.engine.holdings import forget_claims, release
from levada.engine.operations import plan_operations
from levada.engine.state import Intent, State, outlasts, tells, tells_why

_NUMBER, _RESTARTS, _RESIZES, _MOVES = map(INT_COLUMNS.index, ("number", "restarts", "resizes", "moves"))
_SUBMITTED, _FIRST_STARTED, _WAITING_S, _RUNNING_S, _GPU_SECONDS = map(
    FLOAT_COLUMNS.index, ("submitted", "first_started", "waiting_s", "running_s", "gpu_seconds")
)
_STEPS_DONE, _REPORTED, _RESIZED = map(FLOAT_COLUMNS.index, ("steps_done", "reported", "resized"))


def stopped(state: State, slots: Ints) -> None:
    """These jobs hold nothing any more; what was meant to follow follows."""
    table = state.world.table
    state.account(slots)
    forget_claims(state, slots)
    release(state, slots, everything=True)
    table.observed[slots] = table.unsure[slots] = 0
    table.op[slots] = OpKind.NONE
    table.issued[slots] = 0
    table.op_deadline[slots] = np.inf
    table.run_waiting_s[slots] = 0.0
    state.settle(slots)
    intent = table.intent[slots]
    table.intent[slots] = Intent.WAIT
    table.phase[slots] = Phase.PENDING
    waits = slots[intent == Intent.WAIT]
    reason = table.reason[slots]
    table.stopped_by[slots] = np.where(outlasts(reason), packed(reason, table.evidence[slots]), 0)
    _say_why(state, waits)
    _pause_after_failures(state, slots)
    plan_operations(state, waits)
    if len(waits) < len(slots):
        _carry_out(state, slots, intent)


def _pause_after_failures(state: State, slots: Ints) -> None:
    """Only now: what was left of a broken job must not keep its devices through the pause."""
    table = state.world.table
    tries = np.where(table.reason[slots] == Code.RESTARTING, table.retried[slots], 0)
    tries = np.where(table.reason[slots] == Code.LEFT, table.evidence[slots], tries)
    tries = np.maximum(tries, table.failures[slots])
    for at in tries.nonzero()[0]:
        slot = int(slots[at])
        pause = state.backoff(int(table.number[slot]), int(tries[at]))
        state.pause(slot, max(float(table.retry_at[slot]) - state.now, pause))


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


def _say_why(state: State, slots: Ints) -> None:
    table = state.world.table
    gets = table.count[slots] > 0
    state.say(slots[~gets & ~tells_why(table.reason[slots])], Code.PREEMPTED)
    state.say(slots[gets & ~tells(table.reason[slots])], Code.STARTING)
    aside = slots[table.aside[slots] > 0]
    state.say(aside, Code.SET_ASIDE, table.failures[aside])


def end(state: State, slots: Ints, phase: int, code: int) -> None:
    """These jobs are over for good."""
    if not len(slots):
        return
    world, table = state.world, state.world.table
    if not steps.vacate(state, slots):
        state.account(slots)
        world.clear_workers(world.target, slots)
        forget_claims(state, slots)
        release(state, slots, everything=True)
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
