"""Explain why a job waits or has its size, and what would change it."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.assignment import NODE
from levada.core.inventory import UNLIMITED
from levada.core.job import Phase
from levada.core.layout import NOT_ALLOWED
from levada.core.reasons import Code, Reason
from levada.core.types import WHOLE, Bools, Ints
from levada.engine.explain_size import allowed_types, explain_size, explain_use, free_for, growth_hints, resource_name
from levada.engine.state import State
from levada.policies.protocol import Needs

#: Reasons of jobs that wait only for free devices.
_WAITS_FOR_CAPACITY = frozenset(
    {Code.CAPACITY, Code.PREEMPTED, Code.DRAINED, Code.MADE_ROOM}
    | {Code.NEW, Code.FRAGMENTED, Code.INELIGIBLE_NODES, Code.RESERVED, Code.REJECTED}
)


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a job and the reason for it."""

    job: str
    phase: str
    reason: Reason
    #: One sentence each.
    would_help: tuple[str, ...] = ()
    #: Ids of pending jobs ahead of it in the policy's order.
    before: tuple[str, ...] = ()
    #: Its position among pending jobs, from 1; None if it is not pending.
    position: int | None = None
    gpu_type: str | None = None
    workers: int = 0
    nodes: tuple[str, ...] = ()
    #: Of its operation: "waiting for release" or "under way"; None without an operation.
    stage: str | None = None


def explain(state: State, job_id: str, brief: Reason) -> Explanation:
    """Explain an active job whose short reason is *brief*; raises KeyError for other jobs."""
    world, table = state.world, state.world.table
    slot = world.slot(job_id)
    if slot < 0:
        raise KeyError(job_id)
    waits = table.phase[slot] in (Phase.PENDING, Phase.SUSPENDED)
    slots = state.living()
    in_line = (table.phase[slots] == Phase.PENDING) & (table.count[slots] == 0) & (table.aside[slots] == 0)
    pending = slots[in_line & (table.feasible[slots] > 0) & (table.waits_for[slots] == 0)]
    ordered = pending[np.lexsort((table.number[pending], table.submitted[pending], table.rank[pending]))]
    ahead = ordered[: int(np.argmax(ordered == slot))] if slot in ordered else ordered[:0]
    stage = None
    if table.op[slot]:
        stage = "under way" if table.issued[slot] else "waiting for release"
    target = world.places(world.target, slot)
    return Explanation(
        job=job_id,
        phase=Phase.label(int(table.phase[slot])),
        reason=_full_reason(state, slot, brief),
        would_help=tuple(_start_hints(state, slot) if waits else growth_hints(state, slot)),
        before=tuple(world.ids[int(number)] for number in table.number[ahead]),
        position=len(ahead) + 1 if slot in ordered else None,
        gpu_type=world.inventory.types[int(table.type[slot])] if table.type[slot] >= 0 else None,
        workers=int(table.count[slot]),
        nodes=tuple(world.inventory.nodes[int(node)] for node in np.unique(target[NODE])),
        stage=stage,
    )


def _full_reason(state: State, slot: int, brief: Reason) -> Reason:
    """The reason, followed by the use of the GPU types or the next retry (pending jobs), or the cause of the size."""
    table = state.world.table
    code, more = int(table.reason[slot]), []
    if code in (Code.CAPACITY, Code.PREEMPTED, Code.DRAINED, Code.MADE_ROOM):
        more = [explain_use(state, slot, gpu_type) for gpu_type in allowed_types(state, slot)]
    elif table.phase[slot] == Phase.PENDING and code in (Code.BACKOFF, Code.RESTARTING):
        more = [f"Next retry in {max(0.0, float(table.retry_at[slot]) - state.now):.0f} s."]
    elif table.phase[slot] in (Phase.RUNNING, Phase.RESIZING) and table.count[slot] > 0:
        more = explain_size(state, slot)
    return Reason(code=brief.code, text=" ".join(text for text in (brief.text, *more) if text))


def _largest_workers(state: State, slot: int) -> list[str]:
    """The most that a worker may need, of each resource of which no node has enough for one worker of the job."""
    table, inventory = state.world.table, state.world.inventory
    gpus, gpu_memory = -(-int(table.milli[slot]) // WHOLE), int(table.gpu_memory[slot])
    allowed = inventory.present & _allowed(state, slot)[inventory.type_of]
    most = []
    largest = int(np.bincount(_pools(state, allowed), minlength=1).max()) if gpus else 0
    if gpus > largest:
        most.append(f"{largest} GPU{'' if largest == 1 else 's'} of an allowed type")
    cpu, memory = (int(column[~inventory.lost].max(initial=0)) for column in (inventory.cpu, inventory.memory))
    if table.cpu[slot] > cpu:
        most.append(f"{cpu / WHOLE:g} cores")
    if table.memory[slot] > memory:
        most.append(f"{memory} MiB of memory")
    largest_memory = int(inventory.gpu_memory[allowed].max(initial=0))
    if gpu_memory > largest_memory and gpus:
        most.append(f"{largest_memory} MiB of GPU memory")
    return most


def _allowed(state: State, slot: int) -> Bools:
    return np.asarray(state.world.table.preference[:, slot] != NOT_ALLOWED)


def _pools(state: State, devices: Bools) -> Ints:
    """The pool of each device. A pool is the devices of one type in one node."""
    inventory = state.world.inventory
    return np.searchsorted(inventory.pool_start, devices.nonzero()[0], side="right") - 1


def _start_hints(state: State, slot: int) -> list[str]:
    """What would let a pending job start."""
    table = state.world.table
    code = int(table.reason[slot])
    if code == Code.UNKNOWN_SPEED or (Needs.REMAINING in state.policy.needs and np.isnan(table.steps[slot])):
        return [
            f"Declare its total steps or epochs: {state.policy.name} orders jobs by remaining work.",
            *_hints_by_code(state, slot, code),
        ]
    return _hints_by_code(state, slot, code)


def _hints_by_code(state: State, slot: int, code: int) -> list[str]:
    world, table = state.world, state.world.table
    if code in _WAITS_FOR_CAPACITY:
        return _capacity_hints(state, slot, code)
    if code == Code.TOO_LARGE and (largest := _largest_workers(state, slot)):
        return [f"Workers of at most {most}, or a larger node." for most in largest]
    if code == Code.TOO_LARGE:
        most = int(table.evidence[slot])
        smaller = f"A minimum of at most {most} worker{'s' if most > 1 else ''}" if most else "A smaller minimum"
        return [f"{smaller}, or more or larger nodes."]
    if code == Code.UNKNOWN_TYPE:
        names = [world.inventory.types[gpu_type] for gpu_type in _allowed(state, slot).nonzero()[0]]
        return [f"A node with one of {', '.join(names)}, or another list of GPU types."]
    if code == Code.SET_ASIDE:
        return ["Fix the cause of the failures, then resume or update it."]
    if code == Code.SUSPENDED:
        return ["Resume it."]
    if code in (Code.QUEUE_LIMIT, Code.QUEUE_SHARE):
        return [f"Another queue than {world.queues.names[int(table.queue[slot])]}, or a larger share of it."]
    if code == Code.USER_LIMIT:
        queue = world.queues.names[int(table.queue[slot])]
        return [f"Fewer GPUs for other jobs of its user, or another queue than {queue}."]
    return []


def _capacity_hints(state: State, slot: int, code: int) -> list[str]:
    table, left = state.world.table, free_for(state, slot)
    need = int(table.min[slot]) * int(table.units()[slot])
    hints = []
    for gpu_type in allowed_types(state, slot):
        if left[gpu_type] >= UNLIMITED:
            continue
        missing = need - int(left[gpu_type])
        if missing > 0:
            more = f"{missing / WHOLE:g} more {resource_name(state, gpu_type, missing)}"
            hints.append(f"{more} ({left[gpu_type] / WHOLE:g} free now).")
        elif code in (Code.FRAGMENTED, Code.INELIGIBLE_NODES):
            hints.append(f"Free {resource_name(state, gpu_type)} on fewer nodes; enough are free in total.")
    if code == Code.INELIGIBLE_NODES:
        hints.append("A node selector and tolerations that allow more nodes.")
    return hints
