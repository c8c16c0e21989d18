"""Unexpected loss of workers: the job continues with the rest, or restarts."""

from __future__ import annotations

import numpy as np

from levada.core.assignment import INDEX, NODE
from levada.core.job import Phase
from levada.core.plan import OpKind
from levada.core.reasons import Code
from levada.core.types import Ints
from levada.engine.completion import stopped
from levada.engine.held_devices import drop_workers
from levada.engine.operations import plan_operations
from levada.engine.revert import revert_targets
from levada.engine.state import Intent, State
from levada.tables.job_table import ANY_LOSS


def lose_workers(state: State, slot: int, indices: Ints, nodes: Ints, why: int) -> None:
    """Remove lost workers (index below 0: parameter servers) of the job in *slot*, given by index and node.

    The job continues with fewer workers if its framework can: all parameter servers are alive, worker 0 is alive or not
    special, and the original minimum is left. Otherwise the rest is stopped and the job restarts. A size fixed by the
    user is not a minimum here: the job may be smaller until it can grow back.
    """
    world, table = state.world, state.world.table
    state.account(np.array([slot]))
    table.min[slot] = table.own_min[slot]
    table.below_fixed[slot] = table.fixed[slot] > 0
    rows = world.places(world.held, slot)
    if table.issued[slot] or table.unsure[slot]:
        # The operation may still be carried out, even on a node that comes back. Until a stop of a newer generation
        # is acknowledged, the job holds all devices of the operation.
        left = len(np.unique(rows[INDEX][(rows[INDEX] >= 0) & ~np.isin(rows[NODE], nodes)]))
        table.observed[slot] = min(int(table.observed[slot]), left)
        if table.op[slot] != OpKind.STOP:
            withdraw_operation(state, slot)
            restart(state, slot, why)
        return
    gone = {(int(index), int(node)) for index, node in zip(indices, nodes, strict=True)}
    rows = rows[:, [(index, node) not in gone for index, node in rows[[INDEX, NODE]].T.tolist()]]
    world.replace_workers(world.held, np.array([slot]), rows)
    workers = np.unique(rows[INDEX][rows[INDEX] >= 0])
    table.held[slot] = len(workers)
    table.observed[slot] = min(int(table.observed[slot]), len(workers))
    # During a resize it is unknown which workers exist.
    settled = table.phase[slot] == Phase.RUNNING and table.intent[slot] == Intent.WAIT
    in_place = int(table.resizes_in_place[slot])
    first = 0 if in_place == ANY_LOSS else 1
    tolerable = settled and in_place and indices.min() >= first
    if tolerable and len(workers) >= table.min[slot]:
        _continue_with(state, slot, workers)
    else:
        restart(state, slot, why, least=int(table.min[slot]) if tolerable else 0)


def _continue_with(state: State, slot: int, workers: Ints) -> None:
    """Make the remaining workers the target, reduced to an allowed size."""
    world, table = state.world, state.world.table
    least, step = int(table.min[slot]), int(table.step[slot])
    size = least + (len(workers) - least) // step * step
    one = np.array([slot])
    revert_targets(state, one)
    drop_workers(state, world.target, slot, workers[size:])
    table.count[slot] = size
    plan_operations(state, one)


def withdraw_operation(state: State, slot: int) -> None:
    """Withdraw the issued operation of a job; the job keeps its held devices, for it may still be carried out.

    The caller plans a stop, whose newer generation replaces the operation. The stop is issued after this event and
    another loss may come first, so the outcome counts as unknown.
    """
    table = state.world.table
    table.op[slot], table.issued[slot], table.op_deadline[slot] = OpKind.NONE, 0, np.inf
    table.unsure[slot] = 1


def restart(state: State, slot: int, why: int, *, least: int = 0) -> None:
    """Stop the remaining workers of a job, then restart it, or fail it if no retries remain.

    A lost node and an exit with a checkpoint cost no retry. A job that is being stopped keeps its intent. *least*: the
    minimum, if the job stops only because fewer workers are left.
    """
    world, table = state.world, state.world.table
    one = np.array([slot])
    intent = int(table.intent[slot])
    # Count the end of a run once: further reports about it change nothing.
    counted = table.op[slot] == OpKind.STOP and table.ran[slot] == 0
    table.ran[slot] = 0
    state.account(one)
    if intent == Intent.WAIT and why == Code.RESTARTING and not counted:
        if table.retried[slot] < table.retries[slot]:
            table.retried[slot] += 1
        else:
            intent, why = Intent.FAIL, Code.NO_RETRIES
    state.clear_targets(one, intent)
    evidence = {Code.LEFT: state.leaves.get(int(table.number[slot]), 0), Code.NO_RETRIES: least}
    state.set_reason(one, why, evidence.get(why, int(table.retried[slot])))
    if world.places(world.held, slot).shape[1]:
        table.held[slot] = max(int(table.held[slot]), 1)  # parameter servers must be stopped, too
        plan_operations(state, one)
    else:
        stopped(state, one)
