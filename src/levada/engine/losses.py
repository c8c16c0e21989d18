"""Workers that are gone though nobody asked: what is left goes on, or the job starts again."""

from __future__ import annotations

import numpy as np

from levada.core.job import Phase
from levada.core.plan import OpKind
from levada.core.plane import INDEX, NODE
from levada.core.reasons import Code
from levada.core.types import Ints
from levada.engine.ends import stopped
from levada.engine.holdings import drop_workers
from levada.engine.operations import plan_operations
from levada.engine.state import Intent, State
from levada.engine.withdraw import revert_targets
from levada.tables.jobtable import ANY_LOSS


def lose_workers(state: State, slot: int, indices: Ints, nodes: Ints, why: int) -> None:
    """The workers (below zero: parameter servers) with these indices on these nodes are gone from *slot*.

    Where the framework can go on without them (the parameter servers live, worker 0 too unless it is as any other, and
    the job's own minimum is left) the job is smaller from now on; otherwise what is left of it stops, and it starts
    again when its turn comes. A size that its user fixed is no minimum: the job may be smaller until it has it again.
    """
    world, table = state.world, state.world.table
    state.account(np.array([slot]))
    table.min[slot] = table.own_min[slot]
    table.below_fixed[slot] = table.fixed[slot] > 0
    rows = world.places(world.held, slot)
    if table.issued[slot] or table.unsure[slot]:
        # An operation may yet be carried out, even on a node that comes back: until a stop of a newer generation has
        # overtaken it, the job holds all that it was to have.
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
    # In the middle of a resize nobody knows which workers there are: it is not worth the risk.
    settled = table.phase[slot] == Phase.RUNNING and table.intent[slot] == Intent.WAIT
    in_place = int(table.resizes_in_place[slot])
    first = 0 if in_place == ANY_LOSS else 1
    could = settled and in_place and indices.min() >= first
    if could and len(workers) >= table.min[slot]:
        _go_on(state, slot, workers)
    else:
        restart(state, slot, why, least=int(table.min[slot]) if could else 0)


def _go_on(state: State, slot: int, workers: Ints) -> None:
    """The job shall have what is left of it, cut to a size it allows."""
    world, table = state.world, state.world.table
    least, step = int(table.min[slot]), int(table.step[slot])
    size = least + (len(workers) - least) // step * step
    one = np.array([slot])
    revert_targets(state, one)
    drop_workers(state, world.target, slot, workers[size:])
    table.count[slot] = size
    plan_operations(state, one)


def withdraw_operation(state: State, slot: int) -> None:
    """Gives up the operation that is out, which may yet be carried out: the job keeps what it holds until a stop.

    Only a stop of a newer generation overtakes it; the caller plans that stop. It goes out after this event, and
    another loss may come before it does, so the outcome counts as unknown from now on.
    """
    table = state.world.table
    table.op[slot], table.issued[slot], table.op_deadline[slot] = OpKind.NONE, 0, np.inf
    table.unsure[slot] = 1


def restart(state: State, slot: int, why: int, *, least: int = 0) -> None:
    """What is left of a broken job stops; then it starts again, or has failed when its retries are used up.

    A lost node is nobody's fault and costs no retry, nor does leaving with a checkpoint. A job that was on its way out
    just goes. *least*: the minimum, where the job stops only because fewer are left.
    """
    world, table = state.world, state.world.table
    one = np.array([slot])
    intent = int(table.intent[slot])
    # The end of this run is accounted for here: another report of it, or of how the rest of it ended, changes nothing.
    counted = table.op[slot] == OpKind.STOP and table.ran[slot] == 0
    table.ran[slot] = 0
    state.account(one)
    if intent == Intent.WAIT and why == Code.RESTARTING and not counted:
        if table.retried[slot] < table.retries[slot]:
            table.retried[slot] += 1
        else:
            intent, why = Intent.FAIL, Code.NO_RETRIES
    state.wants_stop(one, intent)
    evidence = {Code.LEFT: state.leaves.get(int(table.number[slot]), 0), Code.NO_RETRIES: least}
    state.say(one, why, evidence.get(why, int(table.retried[slot])))
    if world.places(world.held, slot).shape[1]:
        table.held[slot] = max(int(table.held[slot]), 1)  # parameter servers alone are something to stop, too
        plan_operations(state, one)
    else:
        stopped(state, one)
