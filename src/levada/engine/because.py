"""Who has what, and what holds a job's size where it is: sentences for `explain`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from levada.core.inventory import UNLIMITED
from levada.core.job import Preemptible
from levada.core.layout import NOT_ALLOWED
from levada.core.plane import FREE
from levada.core.types import CPU_TYPE, WHOLE, Ints
from levada.engine.guards import guard_falls, in_range, resizable_at
from levada.engine.state import State
from levada.kernels import view
from levada.policies.protocol import gives_more
from levada.policies.relocate import FASTER
from levada.tables.accounts import UserAccounts

#: More names than that are counted.
_MOST_NAMES = 5


def free(state: State, *, whole: bool) -> Ints:
    """Per type what nobody should have at present; with *whole*, scraps of cut-up devices do not count."""
    world = state.world
    left = world.capacity_for(np.zeros(0, np.int64))
    if whole:
        open_now = (world.target.owner == FREE) & (world.inventory.free_milli() == WHOLE)
        left[1:] = np.bincount(world.inventory.type_of[open_now], minlength=len(left))[1:] * WHOLE
    return left


def free_for(state: State, slot: int) -> Ints:
    """Per type what of it a job could use."""
    return free(state, whole=bool(state.world.table.milli[slot] >= WHOLE))


def largest(state: State, slot: int) -> int:
    """The most workers that a job may have."""
    table = state.world.table
    least, step = int(table.min[slot]), int(table.step[slot])
    return least + (int(table.max[slot]) - least) // step * step


def who_has(state: State, slot: int, kind: int) -> str:
    """How a type is divided up; empty where nobody counts it."""
    table, inventory = state.world.table, state.world.inventory
    total, left = int(inventory.openings.supply[view.TOTAL, kind]), int(free_for(state, slot)[kind])
    if not 0 < total < UNLIMITED // 2:
        return ""
    slots = state.living()
    others = slots[(table.type[slots] == kind) & (table.count[slots] > 0) & (slots != slot)]
    units = table.units()
    theirs = int((units * table.count)[others].sum())
    mine = int(units[slot] * table.count[slot]) if table.type[slot] == kind else 0
    foreign, shut = _out_of_reach(state, kind)
    scraps = total - left - theirs - mine - foreign - shut
    whom = "other job" if mine else "job"
    parts = [f"{len(others)} {whom}{_s(len(others))} {_has(len(others))} {theirs / WHOLE:g}"] if theirs else []
    parts += [f"others use or keep {foreign / WHOLE:g}"] if foreign else []
    parts += [f"{amount(shut)} out of service"] if shut else []
    parts += [f"{amount(scraps)} left over in parts"] if scraps > 0 else []
    parts += [f"{amount(left)} free"]
    return f"Of the {total / WHOLE:g} {things(state, kind, total)} {listed(parts)}."


def _out_of_reach(state: State, kind: int) -> tuple[int, int]:
    """What others than jobs use or keep of a type, and what of the rest nobody has and nobody may be given."""
    inventory, target = state.world.inventory, state.world.target
    if kind == CPU_TYPE:
        there = ~inventory.lost
        shut = int(inventory.cpu[there & inventory.cordoned].sum())
        return int((inventory.foreign_cpu + inventory.reserved_cpu)[there & ~inventory.cordoned].sum()), shut
    of_type = inventory.present & (inventory.type_of == kind)
    taken = np.minimum(inventory.foreign + inventory.reserved, WHOLE)
    closed = of_type & ~inventory.usable & (target.owner == FREE)
    return int(taken[of_type & ~closed].sum()), int(np.count_nonzero(closed)) * WHOLE


def why_this_size(state: State, slot: int) -> list[str]:
    """What there is to say of the size of a job that runs."""
    table = state.world.table
    has, most, least = int(table.count[slot]), largest(state, slot), int(table.min[slot])
    one = np.array([slot])
    if table.held[slot] > 0 and not in_range(state, one)[0]:
        wants = f"{least} worker{_s(least)}" if least == most else f"{least} to {most} workers"
        return [f"Its user set {wants}, it has {int(table.held[slot])}: {_what_comes(state, slot)}"]
    if table.fixed[slot] and has >= most:
        return [f"Its user fixed it at {has} worker{_s(has)}."]
    if has >= most:
        return [f"It has {has} worker{_s(has)}, the most that it may have."]
    sentences = [f"It has {has} of at most {most} workers."]
    young = min(guard_falls(state, one)[0], resizable_at(state, one)[0]) - state.now
    if state.protected()[slot]:
        sentences.append(f"It keeps them: {_protection(state, slot)}.")
    elif young > 0 and table.held[slot] > 0:
        sentences.append(f"It started or changed a moment ago and is left alone for {math.ceil(young)} s more.")
    kind = int(table.type[slot])
    sentences += [text for text in (who_has(state, slot, kind), _limit(state, slot, kind)) if text]
    if len(sentences) == 2 and _step(state, slot) <= free_for(state, slot)[kind]:
        # Nothing so far keeps it from what is free.
        in_vain = gives_more(state.policy.policy) and _no_gain(state, slot, kind)
        by_policy = f"{state.policy.name} has given it no more."
        sentences.append("As far as is known, more workers would not make it faster." if in_vain else by_policy)
    return sentences + _idle_types(state, slot, kind)


def would_let_it_grow(state: State, slot: int) -> list[str]:
    """What would have to change for a job that runs to have more workers."""
    table, left = state.world.table, free_for(state, slot)
    has, grows = int(table.count[slot]), gives_more(state.policy.policy)
    if not 0 < has < largest(state, slot) or not grows:
        return []
    kind = int(table.type[slot])
    missing = (largest(state, slot) - has) * int(table.units()[slot]) - int(left[kind])
    sentences = []
    if 0 < missing < UNLIMITED // 2:
        sentences.append(f"{missing / WHOLE:g} more {things(state, kind, missing)} ({left[kind] / WHOLE:g} free now).")
    if _limit(state, slot, kind):
        sentences.append("A larger limit of its queue, or another queue.")
    names = [state.world.inventory.types[other] for other in _barred_types(state, slot)]
    sentences += [f"{name} among its GPU types." for name in names]
    return sentences


def things(state: State, kind: int, units: int = 0) -> str:
    """What is counted of a type, in words; *units* of it, if that is said."""
    name = "core" if kind == CPU_TYPE else f"{state.world.inventory.types[kind]} GPU"
    return name if 0 < units <= WHOLE else f"{name}s"


def amount(units: int) -> str:
    """So much of a type, with its verb."""
    return f"{units / WHOLE:g} {_are(units)}" if units > 0 else "none is"


def listed(parts: Sequence[str]) -> str:
    """One, two and three."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def named(names: Sequence[str]) -> str:
    """Names, the first few of many."""
    more = len(names) - _MOST_NAMES
    return listed([*names[:_MOST_NAMES], *([f"{more} more"] if more > 0 else [])])


def _what_comes(state: State, slot: int) -> str:
    table = state.world.table
    if table.op[slot]:
        return "it is being changed."
    if state.protected()[slot]:
        return f"not changed yet, because {_protection(state, slot)}."
    return "the next decision changes it."


def _protection(state: State, slot: int) -> str:
    """Why a job is protected."""
    table = state.world.table
    if table.preemptible[slot] == Preemptible.NEVER:
        return "it may not be preempted"
    return "a change would be a restart, and it has not saved a checkpoint yet"


def why_it_stays(state: State, slot: int) -> str:
    """Why a job does not leave a node that is being drained, though it shall."""
    return _protection(state, slot) if state.protected()[slot] else "what is under way has to be completed"


def _limit(state: State, slot: int, kind: int) -> str:
    """Which limit of a queue or user keeps a job from one step more; empty where none does."""
    world, table, queues = state.world, state.world.table, state.world.queues
    if queues.trivial:
        return ""
    types, slots = world.inventory.types, state.living()
    slots = slots[table.count[slots] > 0]
    units = (table.units() * table.count)[slots]
    used = queues.usage(table.queue[slots], table.type[slots], units, len(types))
    limits, sure = queues.limits(types), queues.guarantees(types)
    for queue in queues.lineage(int(table.queue[slot])):
        most = int(limits[queue, kind] if queues.values[queue].borrow else min(limits[queue, kind], sure[queue, kind]))
        if most - used[queue, kind] < _step(state, slot):
            has = f"Its queue {queues.names[queue]} may have {most / WHOLE:g} {things(state, kind, most)}"
            return f"{has} and has {used[queue, kind] / WHOLE:g}."
    accounts = UserAccounts(table, queues, types)
    by_user = accounts.left(accounts.usage(slots, table.type[slots], units))
    for account in accounts.line[slot]:
        if by_user[account, kind] < _step(state, slot):
            queue, most = queues.values[accounts.owner[account][0]], int(accounts.limit[account, kind])
            of_all = most == accounts.total[account] and kind != CPU_TYPE
            what = f"GPU{_s(most // WHOLE)} of all types" if of_all else things(state, kind, most)
            return f"One user may have {most / WHOLE:g} {what} in queue {queue.name}."
    return ""


def _step(state: State, slot: int) -> int:
    """What a job needs to grow."""
    table = state.world.table
    return int(table.step[slot] * table.units()[slot])


def _no_gain(state: State, slot: int, kind: int) -> bool:
    table = state.world.table
    has = int(table.count[slot])
    sizes = np.array([has, has + int(table.step[slot])])
    now, then = state.perf.rates(np.full(2, table.number[slot]), np.full(2, kind), sizes)
    return bool(then <= now)


def _barred_types(state: State, slot: int) -> list[int]:
    """Types of which a job could have more than now, were it allowed them."""
    table, left = state.world.table, free_for(state, slot)
    if table.milli[slot] == 0:
        return []
    more = left > table.count[slot] * table.units()[slot]
    more[CPU_TYPE] = False
    return [int(kind) for kind in (more & (table.preference[:, slot] == NOT_ALLOWED)).nonzero()[0]]


def _idle_types(state: State, slot: int, kind: int) -> list[str]:
    """Types with something free that do a job no good, and why."""
    table, left, elastic = state.world.table, free_for(state, slot), gives_more(state.policy.policy)
    sentences = []
    for other in (left >= max(_step(state, slot), 1)).nonzero()[0].tolist():
        if other in (kind, CPU_TYPE) or table.milli[slot] == 0:
            continue
        barred = table.preference[other, slot] == NOT_ALLOWED
        stays = f"it goes there only if that makes it {FASTER:g} times as fast" if elastic else "it keeps its type"
        why = "it may not use that type" if barred else stays
        sentences.append(
            f"{left[other] / WHOLE:g} {things(state, other, int(left[other]))} {_are(left[other])} free, but {why}."
        )
    return sentences


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _has(count: int) -> str:
    return "has" if count == 1 else "have"


def _are(units: int) -> str:
    return "is" if units <= WHOLE else "are"
