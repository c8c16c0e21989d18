"""What comes by time alone: operations without a word, pauses that end, time limits, reservations."""

from __future__ import annotations

import math

import numpy as np

from levada.engine import acks, foreign, jobs
from levada.engine.state import Intent, State


def ring(state: State) -> None:
    """Does what is due by now. Costs nothing while nothing can be."""
    if foreign.next_expiry(state) <= state.now:
        foreign.expire_overdue(state)
    if state.now < state.next_alarm:
        return
    table = state.world.table
    acks.overdue(state)
    jobs.time_limits(state)
    if len(state.where((table.retry_at > state.last_rung) & (table.retry_at <= state.now))):
        state.dirty = state.may_issue = state.may_cycle = True
    state.last_rung = state.now
    state.next_alarm = min(
        float(table.op_deadline[state.where(table.issued > 0)].min(initial=math.inf)),
        float(table.retry_at[state.where(table.retry_at > state.now)].min(initial=math.inf)),
        _next_time_limit(state),
    )


def _next_time_limit(state: State) -> float:
    """When the next job runs into its limit; one that stops for another reason already has no limit any more."""
    table = state.world.table
    limited = state.where((table.time_limit < np.inf) & (table.observed > 0) & (table.intent == Intent.WAIT))
    left = table.time_limit[limited] - table.running_s[limited] - (state.now - table.since[limited])
    return state.now + float(left.min(initial=math.inf))
