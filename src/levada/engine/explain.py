"""Why a job waits or has the size it has, in words."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.inventory import UNLIMITED
from levada.core.job import Phase
from levada.core.layout import NOT_ALLOWED
from levada.core.plane import NODE
from levada.core.reasons import Code, Reason, reason
from levada.core.types import WHOLE, Bools, Ints
from levada.engine.because import free_for, named, things, who_has, why_this_size, would_let_it_grow
from levada.engine.state import State
from levada.policies.protocol import Needs

#: Reasons of jobs that wait for GPUs and nothing else.
_LACKS_ROOM = frozenset(
    {Code.CAPACITY, Code.PREEMPTED, Code.DRAINED, Code.MADE_ROOM}
    | {Code.NEW, Code.FRAGMENTED, Code.RESERVED, Code.REJECTED}
)


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine knows of one job."""

    job: str
    phase: str
    reason: Reason
    #: One sentence each.
    would_help: tuple[str, ...] = ()
    #: Ids of the jobs that wait and stand before it in the policy's order.
    before: tuple[str, ...] = ()
    #: Its place among those that wait, from 1; None when it does not wait.
    position: int | None = None
    gpu_type: str | None = None
    workers: int = 0
    nodes: tuple[str, ...] = ()
    #: "waiting for release" or "under way" where an operation is.
    stage: str | None = None


def explain(state: State, job_id: str) -> Explanation:
    """The explanation of an active job; raises KeyError for any other."""
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
        reason=_reason(state, slot),
        would_help=tuple(_would_help(state, slot) if waits else would_let_it_grow(state, slot)),
        before=tuple(world.ids[int(number)] for number in table.number[ahead]),
        position=len(ahead) + 1 if slot in ordered else None,
        gpu_type=world.inventory.types[int(table.type[slot])] if table.type[slot] >= 0 else None,
        workers=int(table.count[slot]),
        nodes=tuple(world.inventory.nodes[int(node)] for node in np.unique(target[NODE])),
        stage=stage,
    )


def _reason(state: State, slot: int) -> Reason:
    """The job's reason, with what is known beside its one number."""
    table = state.world.table
    code, told = int(table.reason[slot]), reason(int(table.reason[slot]), int(table.evidence[slot]))
    if code in (Code.CAPACITY, Code.PREEMPTED, Code.DRAINED, Code.MADE_ROOM):
        text = "Not enough is free for it." if code == Code.CAPACITY else told.text
        more = [text, *(who_has(state, slot, kind) for kind in _types(state, slot))]
    elif code == Code.DEPENDENCY:
        more = [told.text, f"It waits for {named(_comes_after(state, slot))}."]
    elif code == Code.TOO_LARGE:
        more = [told.text, _too_large(state, slot)]
    elif table.phase[slot] in (Phase.RUNNING, Phase.RESIZING) and table.count[slot] > 0:
        more = [told.text, *why_this_size(state, slot)]
    else:
        return told
    return Reason(code=told.code, text=" ".join(text for text in more if text))


def _types(state: State, slot: int) -> list[int]:
    """The types that a job may use, best first."""
    rank = state.world.table.preference[:, slot]
    return [int(kind) for kind in np.argsort(rank, kind="stable") if rank[kind] != NOT_ALLOWED]


def _comes_after(state: State, slot: int) -> list[str]:
    """Ids of the jobs that must succeed before it starts."""
    number = int(state.world.table.number[slot])
    return [state.world.ids[before] for before, after in sorted(state.dependents.items()) if number in after]


def _too_large(state: State, slot: int) -> str:
    """What no node has for one worker; empty where it is only that there are too many."""
    return next(
        (f"One worker takes {wants}, and the largest node has {has}." for wants, has in _lacks(state, slot)), ""
    )


def _lacks(state: State, slot: int) -> list[tuple[str, str]]:
    """What one worker takes and no node has, each with the most that a node of its types has."""
    table, inventory = state.world.table, state.world.inventory
    gpus, gpu_memory = -(-int(table.milli[slot]) // WHOLE), int(table.gpu_memory[slot])
    mine = inventory.present & _allowed(state, slot)[inventory.type_of]
    lacks = []
    largest = int(np.bincount(_pools(state, mine), minlength=1).max()) if gpus else 0
    if gpus > largest:
        lacks.append((f"{gpus} GPU{'s' if gpus > 1 else ''}", f"{largest} of a type it may use"))
    cpu, memory = (int(column[~inventory.lost].max(initial=0)) for column in (inventory.cpu, inventory.memory))
    if table.cpu[slot] > cpu:
        lacks.append((f"{table.cpu[slot] / WHOLE:g} cores", f"{cpu / WHOLE:g}"))
    if table.memory[slot] > memory:
        lacks.append((f"{table.memory[slot]} MiB of memory", f"{memory}"))
    if gpu_memory > int(inventory.gpu_memory[mine].max(initial=0)) and gpus:
        lacks.append((f"{gpu_memory} MiB of a GPU's memory", f"{int(inventory.gpu_memory[mine].max(initial=0))}"))
    return lacks


def _allowed(state: State, slot: int) -> Bools:
    return np.asarray(state.world.table.preference[:, slot] != NOT_ALLOWED)


def _pools(state: State, devices: Bools) -> Ints:
    """The pool of each of these devices: those of one type in one node."""
    inventory = state.world.inventory
    return np.searchsorted(inventory.pool_start, devices.nonzero()[0], side="right") - 1


def _would_help(state: State, slot: int) -> list[str]:
    """What would have to change for the job to start."""
    table = state.world.table
    code = int(table.reason[slot])
    if code == Code.UNKNOWN_SPEED or (Needs.REMAINING in state.policy.needs and np.isnan(table.steps[slot])):
        return [
            f"Its total work (steps or epochs): {state.policy.name} goes by what is left.",
            *_room(state, slot, code),
        ]
    return _room(state, slot, code)


def _room(state: State, slot: int, code: int) -> list[str]:
    world, table = state.world, state.world.table
    least, unit = int(table.min[slot]), int(table.units()[slot])
    if code in _LACKS_ROOM:
        left = free_for(state, slot)
        sentences = []
        for kind in _types(state, slot):
            if left[kind] >= UNLIMITED:
                continue
            short = least * unit - int(left[kind])
            if short > 0:
                more = f"{short / WHOLE:g} more {things(state, kind, short)}"
                sentences.append(f"{more} ({left[kind] / WHOLE:g} free now).")
            elif code == Code.FRAGMENTED:
                sentences.append(f"{things(state, kind)} in one piece; enough are free in all.")
        return sentences
    if code == Code.TOO_LARGE and (lacks := _lacks(state, slot)):
        return [f"Workers that take no more than {has}, or a larger node." for _, has in lacks]
    if code == Code.TOO_LARGE:
        most = int(table.evidence[slot])
        smaller = f"A minimum of at most {most} worker{'s' if most > 1 else ''}" if most else "A smaller minimum"
        return [f"{smaller}, or more or larger nodes."]
    if code == Code.UNKNOWN_TYPE:
        names = [world.inventory.types[k] for k in (table.preference[:, slot] != NOT_ALLOWED).nonzero()[0]]
        return [f"A node with one of {', '.join(names)}, or another list of GPU types."]
    if code == Code.SET_ASIDE:
        return ["Resume or update it, after what made it fail is mended."]
    if code == Code.SUSPENDED:
        return ["Resume it."]
    if code in (Code.QUEUE_LIMIT, Code.QUEUE_SHARE):
        return [f"Another queue than {world.queues.names[int(table.queue[slot])]}, or a larger share of it."]
    if code == Code.USER_LIMIT:
        return [f"Less for other jobs of its user, or another queue than {world.queues.names[int(table.queue[slot])]}."]
    if code in (Code.BACKOFF, Code.RESTARTING):
        return [f"{max(0.0, float(table.retry_at[slot]) - state.now):.0f} s from now it is tried again."]
    return []
