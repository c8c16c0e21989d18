"""Why a job waits or has the size it has, in words."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.inventory import UNLIMITED
from levada.core.job import Phase
from levada.core.jobtable import NOT_ALLOWED
from levada.core.plane import FREE, NODE
from levada.core.reasons import Code, Reason, reason
from levada.core.types import WHOLE, Ints
from levada.engine.state import State
from levada.policies.protocol import Needs


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
    waits = table.phase[slot] == Phase.PENDING
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
        reason=reason(int(table.reason[slot]), int(table.evidence[slot])),
        would_help=tuple(_would_help(state, slot)) if waits else (),
        before=tuple(world.ids[int(number)] for number in table.number[ahead]),
        position=len(ahead) + 1 if slot in ordered else None,
        gpu_type=world.inventory.types[int(table.type[slot])] if table.type[slot] >= 0 else None,
        workers=int(table.count[slot]),
        nodes=tuple(world.inventory.nodes[int(node)] for node in np.unique(target[NODE])),
        stage=stage,
    )


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
    if code in (Code.CAPACITY, Code.PREEMPTED, Code.NEW, Code.FRAGMENTED, Code.RESERVED, Code.REJECTED):
        free = _free(state, whole=table.milli[slot] >= WHOLE)
        sentences = []
        for kind in np.argsort(table.preference[:, slot], kind="stable"):
            if table.preference[kind, slot] == NOT_ALLOWED or free[kind] >= UNLIMITED:
                continue
            short = least * unit - int(free[kind])
            name = f"{world.inventory.types[int(kind)]} GPU" if table.milli[slot] > 0 else "core"
            if short > 0:
                more = f"{short / WHOLE:g} more {name}{'' if short == WHOLE else 's'}"
                sentences.append(f"{more} ({free[kind] / WHOLE:g} free now).")
            elif code == Code.FRAGMENTED:
                sentences.append(f"{name}s in one piece; enough are free in all.")
        return sentences
    if code == Code.TOO_LARGE:
        return [f"A minimum of at most {int(table.evidence[slot])} workers, or more or larger nodes."]
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


def _free(state: State, *, whole: bool) -> Ints:
    """Per type what nobody should have at present; with *whole*, scraps of cut-up devices do not count."""
    world = state.world
    free = world.capacity_for(np.zeros(0, np.int64))
    if whole:
        open_now = (world.target.owner == FREE) & (world.inventory.free_milli() == WHOLE)
        free[1:] = np.bincount(world.inventory.type_of[open_now], minlength=len(free))[1:] * WHOLE
    return free
