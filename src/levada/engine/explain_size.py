"""Sentences for `explain`: who uses a GPU type, and what limits the size of a job."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from levada.core.assignment import FREE
from levada.core.inventory import UNLIMITED
from levada.core.job import Preemptible
from levada.core.layout import NOT_ALLOWED, WHOLE_OPEN
from levada.core.types import CPU_TYPE, WHOLE, Ints
from levada.engine.guards import guarded_until, in_range, resizable_at
from levada.engine.state import State
from levada.kernels import view
from levada.policies.protocol import gives_more
from levada.policies.relocate import FASTER
from levada.tables.user_quota import UserQuotas

#: A list shows this many names and counts the rest.
_MOST_NAMES = 5


def part_of_nodes(state: State, slot: int) -> str:
    """`2 of 10 nodes` that are open to the class of a job; empty if all are."""
    inventory = state.world.inventory
    eligible, here = inventory.eligible[state.world.table.node_class[slot]], ~inventory.removed
    if eligible[here].all():
        return ""
    return f"{np.count_nonzero(eligible & here)} of {np.count_nonzero(here)} nodes"


def on_allowed_nodes(state: State, slot: int) -> str:
    """` on the 2 of 10 nodes that its selector and tolerations allow`; empty if a job may use all nodes."""
    part = part_of_nodes(state, slot)
    return f" on the {part} that its selector and tolerations allow" if part else ""


def free(state: State, *, whole: bool, node_class: int = 0) -> Ints:
    """Units per type that are not in any target; with *whole*, only those of completely free devices."""
    world, allocatable = state.world, state.world.inventory.allocatable_for(node_class)
    left = world.capacity_for(np.zeros(0, np.int64), node_class)
    if whole:
        open_now = (world.target.owner == FREE) & (allocatable.devices[WHOLE_OPEN] > 0)
        left[1:] = np.bincount(world.inventory.type_of[open_now], minlength=len(left))[1:] * WHOLE
    return left


def allowed_types(state: State, slot: int) -> list[int]:
    """The GPU types that a job may use, preferred ones first."""
    rank = state.world.table.preference[:, slot]
    return [int(gpu_type) for gpu_type in np.argsort(rank, kind="stable") if rank[gpu_type] != NOT_ALLOWED]


def free_for(state: State, slot: int) -> Ints:
    """Free units per type, counted as a job can use them."""
    table = state.world.table
    return free(state, whole=bool(table.milli[slot] >= WHOLE), node_class=int(table.node_class[slot]))


def largest(state: State, slot: int) -> int:
    """The largest worker count in the range of a job."""
    table = state.world.table
    least, step = int(table.min[slot]), int(table.step[slot])
    return least + (int(table.max[slot]) - least) // step * step


def explain_use(state: State, slot: int, gpu_type: int) -> str:
    """`8 v100 GPUs: 4 used by 2 jobs, 4 free.`; empty for a type without a known total."""
    table, inventory = state.world.table, state.world.inventory
    allocatable = inventory.allocatable_for(int(table.node_class[slot]))
    total, left = int(allocatable.supply[view.TOTAL, gpu_type]), int(free_for(state, slot)[gpu_type])
    if not 0 < total < UNLIMITED // 2:
        return ""
    if where := on_allowed_nodes(state, slot):
        return f"{total / WHOLE:g} {resource_name(state, gpu_type, total)}{where}, {left / WHOLE:g} free."
    slots = state.living()
    others = slots[(table.type[slots] == gpu_type) & (table.count[slots] > 0) & (slots != slot)]
    units = table.units()
    by_others = int((units * table.count)[others].sum())
    by_itself = int(units[slot] * table.count[slot]) if table.type[slot] == gpu_type else 0
    foreign, closed = _unavailable(state, gpu_type)
    parts_of_devices = total - left - by_others - by_itself - foreign - closed
    users = f"{len(others)} {'other ' if by_itself else ''}job{_s(len(others))}"
    uses = [
        (by_others, f"used by {users}"),
        (foreign, "foreign or reserved"),
        (closed, "out of service"),
        (parts_of_devices, "on partly used GPUs"),
    ]
    listed = [f"{amount / WHOLE:g} {use}" for amount, use in uses if amount > 0]
    return (
        f"{total / WHOLE:g} {resource_name(state, gpu_type, total)}: {', '.join([*listed, f'{left / WHOLE:g} free'])}."
    )


def _unavailable(state: State, gpu_type: int) -> tuple[int, int]:
    """Units that are foreign or reserved, and units that are neither used nor open to jobs."""
    inventory, target = state.world.inventory, state.world.target
    if gpu_type == CPU_TYPE:
        there = ~inventory.lost
        closed_cpu = int(inventory.cpu[there & inventory.cordoned].sum())
        return int((inventory.foreign_cpu + inventory.reserved_cpu)[there & ~inventory.cordoned].sum()), closed_cpu
    of_type = inventory.present & (inventory.type_of == gpu_type)
    taken = np.minimum(inventory.foreign + inventory.reserved, WHOLE)
    closed = of_type & ~inventory.usable & (target.owner == FREE)
    return int(taken[of_type & ~closed].sum()), int(np.count_nonzero(closed)) * WHOLE


def explain_size(state: State, slot: int) -> list[str]:
    """Sentences that explain the size of a running job."""
    table = state.world.table
    has, most, least = int(table.count[slot]), largest(state, slot), int(table.min[slot])
    one = np.array([slot])
    if table.held[slot] > 0 and not in_range(state, one)[0]:
        wants = f"{least} worker{_s(least)}" if least == most else f"{least} to {most} workers"
        return [f"Its user set {wants}, it has {int(table.held[slot])}: {_next_resize(state, slot)}"]
    if table.fixed[slot] and has >= most:
        return [f"Fixed by its user at {has} worker{_s(has)}."]
    if has >= most:
        return [f"Has {has} worker{_s(has)}, the most that it may have."]
    sentences = [f"Has {has} of at most {most} workers."]
    guarded_s = min(guarded_until(state, one)[0], resizable_at(state, one)[0]) - state.now
    if state.protected()[slot]:
        sentences.append(f"Not resized: {_protection(state, slot)}.")
    elif guarded_s > 0 and table.held[slot] > 0:
        sentences.append(f"Not resized for another {math.ceil(guarded_s)} s after its last start or resize.")
    gpu_type = int(table.type[slot])
    sentences += [text for text in (explain_use(state, slot, gpu_type), _limit(state, slot, gpu_type)) if text]
    if len(sentences) == 2 and _step(state, slot) <= free_for(state, slot)[gpu_type]:
        # No guard and no limit: the policy itself left free devices unused.
        no_gain = gives_more(state.policy.policy) and _no_gain(state, slot, gpu_type)
        by_policy = f"{state.policy.name} gives it no more."
        sentences.append("More workers are not expected to make it faster." if no_gain else by_policy)
    return sentences + _idle_types(state, slot, gpu_type)


def growth_hints(state: State, slot: int) -> list[str]:
    """What would let a running job have more workers."""
    table, left = state.world.table, free_for(state, slot)
    has, grows = int(table.count[slot]), gives_more(state.policy.policy)
    if not 0 < has < largest(state, slot) or not grows:
        return []
    gpu_type = int(table.type[slot])
    missing = (largest(state, slot) - has) * int(table.units()[slot]) - int(left[gpu_type])
    hints = []
    if 0 < missing < UNLIMITED // 2:
        more = f"{missing / WHOLE:g} more {resource_name(state, gpu_type, missing)}"
        hints.append(f"{more} ({left[gpu_type] / WHOLE:g} free now).")
    if _limit(state, slot, gpu_type):
        hints.append("A larger limit of its queue, or another queue.")
    names = [state.world.inventory.types[other] for other in _forbidden_types(state, slot)]
    return hints + [f"{name} in its list of GPU types." for name in names]


def resource_name(state: State, gpu_type: int, units: int = 0) -> str:
    """`v100 GPU` or `core`, in the plural unless *units* is at most one."""
    name = "core" if gpu_type == CPU_TYPE else f"{state.world.inventory.types[gpu_type]} GPU"
    return name if 0 < units <= WHOLE else f"{name}s"


def join_names(names: Sequence[str]) -> str:
    """`a, b and c`; of many names the first few and `3 more`."""
    more = len(names) - _MOST_NAMES
    parts = [*names[:_MOST_NAMES], *([f"{more} more"] if more > 0 else [])]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _next_resize(state: State, slot: int) -> str:
    table = state.world.table
    if table.op[slot]:
        return "resize in progress."
    if state.protected()[slot]:
        return f"not resized yet, because {_protection(state, slot)}."
    return "the next decision resizes it."


def _protection(state: State, slot: int) -> str:
    """Why a job is protected."""
    table = state.world.table
    if table.preemptible[slot] == Preemptible.NEVER:
        return "it may not be preempted"
    return "it would have to restart, and it has not saved a checkpoint yet"


def why_not_drained(state: State, slot: int) -> str:
    """Why a job is still on a node that is being drained."""
    return _protection(state, slot) if state.protected()[slot] else "its current operation must complete first"


def _limit(state: State, slot: int, gpu_type: int) -> str:
    """The limit of a queue or user that keeps a job from growing by one step; empty if there is none."""
    world, table, queues = state.world, state.world.table, state.world.queues
    if queues.trivial:
        return ""
    types, slots = world.inventory.types, state.living()
    slots = slots[table.count[slots] > 0]
    units = (table.units() * table.count)[slots]
    used = queues.usage(table.queue[slots], table.type[slots], units, len(types))
    limits, guaranteed = queues.limits(types), queues.guarantees(types)
    for queue in queues.lineage(int(table.queue[slot])):
        limit, guarantee = int(limits[queue, gpu_type]), int(guaranteed[queue, gpu_type])
        most = limit if queues.values[queue].borrow else min(limit, guarantee)
        if most - used[queue, gpu_type] < _step(state, slot):
            of_limit = f"{used[queue, gpu_type] / WHOLE:g} of {most / WHOLE:g} {resource_name(state, gpu_type, most)}"
            return f"Queue {queues.names[queue]} uses {of_limit} allowed."
    quotas = UserQuotas(table, queues, types)
    by_user = quotas.left(quotas.usage(slots, table.type[slots], units))
    for account in quotas.line[slot]:
        if by_user[account, gpu_type] < _step(state, slot):
            queue, most = queues.values[quotas.owner[account][0]], int(quotas.limit[account, gpu_type])
            is_total = most == quotas.total[account] and gpu_type != CPU_TYPE
            name = f"GPU{_s(most // WHOLE)} of all types" if is_total else resource_name(state, gpu_type, most)
            return f"Queue {queue.name} allows {most / WHOLE:g} {name} per user."
    return ""


def _step(state: State, slot: int) -> int:
    """Units that a job needs to grow by one step."""
    table = state.world.table
    return int(table.step[slot] * table.units()[slot])


def _no_gain(state: State, slot: int, gpu_type: int) -> bool:
    table = state.world.table
    has = int(table.count[slot])
    sizes = np.array([has, has + int(table.step[slot])])
    now, then = state.perf.rates(np.full(2, table.number[slot]), np.full(2, gpu_type), sizes)
    return bool(then <= now)


def _forbidden_types(state: State, slot: int) -> list[int]:
    """GPU types that the job may not use and of which more is free than it has now."""
    table, left = state.world.table, free_for(state, slot)
    if table.milli[slot] == 0:
        return []
    more = left > table.count[slot] * table.units()[slot]
    more[CPU_TYPE] = False
    return [int(gpu_type) for gpu_type in (more & (table.preference[:, slot] == NOT_ALLOWED)).nonzero()[0]]


def _idle_types(state: State, slot: int, gpu_type: int) -> list[str]:
    """Other GPU types with free devices, and why the job does not use them."""
    table, left, elastic = state.world.table, free_for(state, slot), gives_more(state.policy.policy)
    sentences = []
    for other in (left >= max(_step(state, slot), 1)).nonzero()[0].tolist():
        if other in (gpu_type, CPU_TYPE) or table.milli[slot] == 0:
            continue
        stays = (
            f"it moves to another type only if that is at least {FASTER:g} times as fast"
            if elastic
            else "it keeps its type"
        )
        why = "it may not use that type" if table.preference[other, slot] == NOT_ALLOWED else stays
        free_now = f"{left[other] / WHOLE:g} {resource_name(state, other, int(left[other]))} {_are(left[other])} free"
        sentences.append(f"{free_now}, but {why}.")
    return sentences


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _are(units: int) -> str:
    return "is" if units <= WHOLE else "are"
