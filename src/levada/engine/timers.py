"""Timers: operation timeouts, backoffs, time limits, reservations."""

from __future__ import annotations

import math

import numpy as np

from levada.engine import acks, foreign, job_events
from levada.engine.state import Intent, State


def fire_timers(state: State) -> None:
    """Handle all timers that are due; costs almost nothing if none is."""
    if state.reservations and state.away_since is None:
        foreign.expire_overdue(state)
    if state.now < state.next_alarm:
        return
    table, reachable = state.world.table, state.away_since is None
    if reachable:
        acks.overdue(state)
    job_events.time_limits(state)
    if len(state.where((table.retry_at > state.last_rung) & (table.retry_at <= state.now))):
        state.dirty = state.may_issue = state.may_cycle = True
    state.last_rung = state.now
    state.next_alarm = min(
        float(table.op_deadline[state.where((table.issued > 0) & reachable)].min(initial=math.inf)),
        float(table.retry_at[state.where(table.retry_at > state.now)].min(initial=math.inf)),
        _next_time_limit(state),
    )


def _next_time_limit(state: State) -> float:
    """When the next running job reaches its time limit; jobs that are being stopped are exempt."""
    table = state.world.table
    limited = state.where((table.time_limit < np.inf) & (table.observed > 0) & (table.intent == Intent.WAIT))
    left = table.time_limit[limited] - table.running_s[limited] - (state.now - table.since[limited])
    return state.now + float(left.min(initial=math.inf))
