"""How a job stops holding anything, and how it ends."""

from __future__ import annotations

import numpy as np

from levada.core.commands import JobsEnded
from levada.core.job import Phase
from levada.core.plan import OpKind
from levada.core.reasons import Code
from levada.core.types import Ints
from levada.engine.holdings import confirm, release
from levada.engine.operations import plan_operations
from levada.engine.state import TELLING, Intent, State


def stopped(state: State, slots: Ints) -> None:
    """These jobs hold nothing any more; what was meant to follow follows."""
    table = state.world.table
    state.account(slots)
    confirm(state, slots)
    release(state, slots, everything=True)
    table.observed[slots] = table.unsure[slots] = 0
    table.op[slots] = OpKind.NONE
    table.issued[slots] = 0
    table.op_deadline[slots] = np.inf
    table.run_waiting_s[slots] = 0.0
    state.touch(slots)
    intent = table.intent[slots]
    table.intent[slots] = Intent.WAIT
    table.phase[slots] = Phase.PENDING
    _say_why(state, slots[intent == Intent.WAIT])
    # Only now: what was left of a broken job must not keep its devices through the pause.
    tries = np.where(table.reason[slots] == Code.RESTARTING, table.restarts[slots], 0)
    for slot, tried in zip(slots, np.maximum(tries, table.failures[slots]), strict=True):
        if tried > 0:
            pause = state.backoff(int(table.number[slot]), int(tried))
            state.pause(int(slot), max(float(table.retry_at[slot]) - state.now, pause))
    suspended = slots[intent == Intent.SUSPEND]
    table.phase[suspended] = Phase.SUSPENDED
    state.say(suspended, Code.SUSPENDED)
    plan_operations(state, slots[intent == Intent.WAIT])
    for what, phase, code in (
        (Intent.CANCEL, Phase.CANCELLED, Code.CANCELLED),
        (Intent.FAIL, Phase.FAILED, Code.FAILED),
        (Intent.TIME_LIMIT, Phase.FAILED, Code.TIME_LIMIT),
    ):
        end(state, slots[intent == what], phase, code)


def _say_why(state: State, slots: Ints) -> None:
    table = state.world.table
    plain = ~np.isin(table.reason[slots], TELLING)
    state.say(slots[plain & (table.count[slots] == 0)], Code.PREEMPTED)
    state.say(slots[plain & (table.count[slots] > 0)], Code.STARTING)
    aside = slots[table.aside[slots] > 0]
    state.say(aside, Code.SET_ASIDE, table.failures[aside])


def end(state: State, slots: Ints, phase: Phase, code: Code) -> None:
    """These jobs are over for good."""
    if not len(slots):
        return
    world, table = state.world, state.world.table
    state.account(slots)
    world.clear_workers(world.target, slots)
    confirm(state, slots)
    release(state, slots, everything=True)
    numbers = table.number[slots].copy()
    state.commands.append(
        JobsEnded(
            number=numbers,
            id=tuple(world.ids[int(number)] for number in numbers),
            phase=np.full(len(slots), int(phase)),
            reason=np.full(len(slots), int(code)),
            submitted=table.submitted[slots].copy(),
            first_started=table.first_started[slots].copy(),
            finished=state.now,
            waiting_s=table.waiting_s[slots].copy(),
            running_s=table.running_s[slots].copy(),
            gpu_seconds=table.gpu_seconds[slots].copy(),
            restarts=table.restarts[slots].copy(),
            resizes=table.resizes[slots].copy(),
            moves=table.moves[slots].copy(),
        )
    )
    state.over.append(numbers)
    world.remove_jobs(slots)
    state.ended += len(slots)
    state.dirty = True
    _tell_dependents(state, numbers, phase)


def _tell_dependents(state: State, numbers: Ints, phase: Phase) -> None:
    table = state.world.table
    for number in numbers:
        after = state.dependents.pop(int(number), None)
        if after is None:
            continue
        slots = state.active_slots(np.array(after, np.int64))
        ok = table.waits_for[slots] > 0
        # Below zero: it can never start; its user may cancel it, or the server may fail it.
        table.waits_for[slots[ok]] = table.waits_for[slots[ok]] - 1 if phase is Phase.SUCCEEDED else -1
        state.touch(slots)
