"""The engine's most frequent steps in one call each; see `kernels.steps`.

Every function says whether it did the step; where not, nothing has changed, and its caller goes the long way.
"""

from __future__ import annotations

import math

import numpy as np

from levada.core.commands import Apply
from levada.core.decision import Decision
from levada.core.plan import Plan
from levada.core.types import Ints
from levada.engine.state import State
from levada.kernels import commit as commit_kernel
from levada.kernels import issue as issue_kernel
from levada.kernels import steps


def survey(state: State) -> tuple[Ints, Ints, bool] | None:
    """The jobs that may be in view, their times up to now; what they may have together; whether some may end soon.

    `state` knows when a guard falls, and whether somebody is left out.
    """
    table, options, wanted = state.world.table, state.options, state.policy.guards
    done, view, guard_wake, busy, near_end, capacity = steps.survey(
        table.ints,
        table.floats,
        table.order,
        state.now,
        options.min_run_s if wanted.min_run else -math.inf,
        options.cooldown_s if wanted.cooldown else -math.inf,
        wanted.payback,
        *state.world.openings(),
    )
    if not done:
        return None
    state.guard_wake, state.left_out = guard_wake, busy
    return view, capacity, near_end


def waiting(state: State) -> tuple[Ints, Ints] | None:
    """The jobs that wait and may be in view, their times up to now; and what is free for them.

    `state` knows whether somebody is left out.
    """
    table = state.world.table
    done, view, busy, capacity = steps.waiting(
        table.ints, table.floats, table.order, state.now, *state.world.openings()
    )
    if not done:
        return None
    state.left_out = busy
    return view, capacity


def commit(state: State, decision: Decision) -> bool:
    """Makes *decision* the target of all jobs that it still speaks of, if there is nothing special about it."""
    world = state.world
    special = decision.places is not None or decision.placed is not None
    special = special or bool(decision.binds or decision.reservations or world.inventory.draining)
    special = special or state.options.move_budget > 0
    if special or state.deciding is None or not world.queues.unlimited:
        return False
    table, inventory, target, held = world.table, world.inventory, world.target, world.held
    openings = inventory.openings
    rank, batch = decision.rank, decision.batch
    columns = [decision.number, decision.type, decision.count, decision.reason, decision.evidence]
    if rank is not None:
        columns.append(rank)
    if batch is not None:
        columns.append(batch)
    said = np.concatenate(columns, dtype=np.int64).reshape(len(columns), -1)
    done, follows, stale = commit_kernel.commit(
        said,
        rank is not None,
        batch is not None,
        table.ints,
        table.floats,
        *table.index,
        state.in_view,
        state.deciding,
        table.preference,
        target.owner,
        target.index,
        target.cpu,
        target.memory,
        held.owner,
        held.index,
        inventory.node_of,
        inventory.type_of,
        openings.usable,
        openings.cpu_free,
        openings.memory_free,
        openings.shut,
        inventory.pool_start,
        inventory.pool_stop,
        inventory.pool_node,
        inventory.pool_type,
        inventory.rack,
        inventory.zone,
        state.options.highest_first,
    )
    if done:
        state.left_out |= stale
        if follows:
            state.may_issue = state.may_cycle = True
    return done


def issue(state: State) -> bool:
    """Sends out every operation that may go."""
    table, target, held = state.world.table, state.world.target, state.world.held
    done, unsent, operations, adds, drops = issue_kernel.issue(
        table.ints,
        table.floats,
        table.order,
        state.now,
        state.revision,
        state.options.op_timeout_s,
        state.may_cycle,
        target.owner,
        target.index,
        held.owner,
        held.index,
        held.claimed,
    )
    if not done:
        return False
    state.may_cycle, state.unsent = False, unsent
    if operations.shape[1]:
        state.alarm(state.now + state.options.op_timeout_s)
        number, kind, generation, gpu_type, count = operations
        plan = Plan(
            number=number,
            kind=kind,
            generation=generation,
            type=gpu_type,
            count=count,
            add_device=adds[0],
            add_row=adds[1],
            drop_device=drops[0],
            drop_row=drops[1],
        )
        state.commands.append(Apply(plan=plan))
    return True
