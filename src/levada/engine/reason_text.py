"""The reason of a job as one sentence: the cause first, with current numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np

from levada.core.inventory import UNLIMITED
from levada.core.job import Phase
from levada.core.reasons import Code, Reason, reason
from levada.core.types import CPU_TYPE, WHOLE, Ints
from levada.engine.explain_size import allowed_types, free, join_names, on_allowed_nodes, resource_name
from levada.engine.infeasible import why_never
from levada.engine.state import State
from levada.kernels import view
from levada.tables.user_quota import UserQuotas, gpus_of


class ReasonText:
    """Writes reasons of jobs between two events; values that several reasons need are computed once."""

    def __init__(self, state: State) -> None:
        self._state = state
        #: Sentences of `needs`, and free units, by what they depend on.
        self._needs_cache: dict[tuple[object, ...], str] = {}
        self._free_cache: dict[tuple[bool, int], Ints] = {}

    def of(self, slot: int) -> Reason:
        """The reason of the job in *slot*."""
        table, away_since = self._state.world.table, self._state.away_since
        code, evidence = table.reason.item(slot), table.evidence.item(slot)
        if away_since is not None and table.phase[slot] == Phase.PENDING and code not in _OF_ITS_OWN:
            return reason(Code.BACKEND_AWAY, int(self._state.now - away_since))
        write = _WRITERS.get(code)
        return reason(code, evidence, "" if write is None else write(self, slot))

    # --- capacity ---------------------------------------------------------------------------------------------------

    @cached_property
    def _units(self) -> Ints:
        return self._state.world.table.units()

    def _free(self, slot: int) -> Ints:
        """Free units per type, as the job can use them."""
        table = self._state.world.table
        key = (table.milli.item(slot) >= WHOLE, table.node_class.item(slot))
        if key not in self._free_cache:
            self._free_cache[key] = free(self._state, whole=key[0], node_class=key[1])
        return self._free_cache[key]

    def needs(self, slot: int) -> str:
        """`Needs 2 GPUs; 1 v100 free, 0 a100 free.`"""
        table = self._state.world.table
        columns = (table.min, table.milli, table.cpu, table.memory, table.node_class, self._units)
        key = (*(column.item(slot) for column in columns), table.preference[:, slot].tobytes())
        if key not in self._needs_cache:
            self._needs_cache[key] = self._needs(slot)
        return self._needs_cache[key]

    def _needs(self, slot: int) -> str:
        table, left = self._state.world.table, self._left(slot)
        if not left:
            return ""
        need = self._minimum(slot)
        free_now = f"Needs {_amount(need, table.milli.item(slot) > 0)}; {self._list_free(slot, left)}"
        if need > max(left.values()):
            return f"{free_now}."
        extra = self._cpu_and_memory(slot)
        if not extra:
            return f"{free_now}: waiting for the next scheduling decision."
        return f"{free_now}, but not on nodes with {extra} for each worker."

    def _cpu_and_memory(self, slot: int) -> str:
        """CPU and memory of a GPU worker, e.g. `2 cores and 512 MiB of memory`; empty for workers without a GPU."""
        table = self._state.world.table
        cores, memory = table.cpu.item(slot), table.memory.item(slot)
        if not table.milli[slot]:
            return ""
        parts = [_amount(cores, False)] * bool(cores) + [f"{memory} MiB of memory"] * bool(memory)
        return " and ".join(parts)

    def _minimum(self, slot: int) -> int:
        return int(self._state.world.table.min[slot] * self._units[slot])

    def _left(self, slot: int) -> dict[int, int]:
        """Free units of each GPU type that the job may use and the cluster has, preferred types first."""
        inventory, node_class = self._state.world.inventory, self._state.world.table.node_class.item(slot)
        supply, left = inventory.allocatable_for(node_class).supply[view.TOTAL], self._free(slot)
        types = [gpu_type for gpu_type in allowed_types(self._state, slot) if 0 < supply[gpu_type] < UNLIMITED // 2]
        return {gpu_type: int(left[gpu_type]) for gpu_type in types}

    def _list_free(self, slot: int, left: dict[int, int]) -> str:
        types = self._state.world.inventory.types
        names = {gpu_type: "" if gpu_type == CPU_TYPE else f"{types[gpu_type]} " for gpu_type in left}
        parts = ", ".join(f"{units / WHOLE:g} {names[gpu_type]}free" for gpu_type, units in left.items())
        return parts + on_allowed_nodes(self._state, slot)

    def fragmented(self, slot: int) -> str:
        """`Fragmented: needs 2 workers of 4 GPUs, 1 fits; 6 v100 free.`"""
        table, left = self._state.world.table, self._left(slot)
        least, fit = table.min.item(slot), table.evidence.item(slot)
        needs = f"needs {_workers(least)} of {_amount(self._units.item(slot), table.milli.item(slot) > 0)}"
        extra = self._cpu_and_memory(slot)
        needs += f" with {extra}" if extra else ""
        # Not every placement counts how many workers would fit.
        fits = f", {fit} {'fits' if fit == 1 else 'fit'}" if fit else ", which the nodes cannot hold now"
        return f"Fragmented: {needs}{fits}; {self._list_free(slot, left)}." if left else ""

    def ineligible_nodes(self, slot: int) -> str:
        """`Needs 2 GPUs; 1 v100 free on the 2 of 10 nodes that its selector and tolerations allow.`"""
        enough = max(self._left(slot).values(), default=0) >= self._minimum(slot)
        return self.fragmented(slot) if enough else self.needs(slot)

    # --- queues and users -------------------------------------------------------------------------------------------

    @cached_property
    def _running(self) -> tuple[Ints, Ints, Ints]:
        """Slots, GPU types and units of jobs with a target."""
        table, slots = self._state.world.table, self._state.living()
        slots = slots[table.count[slots] > 0]
        return slots, table.type[slots], (self._units * table.count)[slots]

    @cached_property
    def _queue_use(self) -> tuple[Ints, Ints]:
        """Most units that each queue may use of each type, and the units it uses."""
        world, (slots, types, units) = self._state.world, self._running
        queues, names = world.queues, world.inventory.types
        limits, guaranteed = queues.limits(names), queues.guarantees(names)
        borrows = np.array([queue.borrow for queue in queues.values])[:, None]
        return np.where(borrows, limits, np.minimum(limits, guaranteed)), queues.usage(
            world.table.queue[slots], types, units, len(names)
        )

    def queue_share(self, slot: int) -> str:
        """`Queue default may use 1 more v100 GPU now; the job needs 2.`"""
        world, left = self._state.world, self._left(slot)
        if not left:
            return ""
        most, used = self._queue_use
        lineage = world.queues.lineage(world.table.queue.item(slot))
        usable = {
            gpu_type: max(0, min(units, int((most - used)[lineage, gpu_type].min())))
            for gpu_type, units in left.items()
        }
        gpu_type = max(usable, key=lambda other: usable[other])
        name, need, most_usable = world.queues.names[lineage[0]], self._minimum(slot), usable[gpu_type]
        gpus = resource_name(self._state, gpu_type, most_usable)
        if most_usable >= need:
            borrowed = f"{most_usable / WHOLE:g} free {gpus}: they are guaranteed to other queues"
            return f"Queue {name} may not borrow the {borrowed}; the job needs {need / WHOLE:g}."
        return f"Queue {name} may use {most_usable / WHOLE:g} more {gpus} now; the job needs {need / WHOLE:g}."

    def queue_limit(self, slot: int) -> str:
        """`Queue nlp uses 2 of 4 v100 GPUs allowed; the job needs 3.`"""
        if never := why_never(self._state, slot):
            return never
        world, left = self._state.world, self._left(slot)
        if not left:
            return ""
        most, used = self._queue_use
        lineage = world.queues.lineage(world.table.queue.item(slot))
        gpu_type = max(left, key=lambda other: int((most - used)[lineage, other].min()))
        queue = min(lineage, key=lambda number: int((most - used)[number, gpu_type]))
        gpus = resource_name(self._state, gpu_type, most.item(queue, gpu_type))
        uses = f"{used[queue, gpu_type] / WHOLE:g} of {most[queue, gpu_type] / WHOLE:g} {gpus} allowed"
        return f"Queue {world.queues.names[queue]} uses {uses}; the job needs {self._minimum(slot) / WHOLE:g}."

    @cached_property
    def _quotas(self) -> tuple[UserQuotas, Ints]:
        world, (slots, types, units) = self._state.world, self._running
        quotas = UserQuotas(world.table, world.queues, world.inventory.types)
        return quotas, quotas.usage(slots, types, units)

    def user_limit(self, slot: int) -> str:
        """`ann uses 4 of 4 GPUs allowed per user in queue nlp; the job needs 2.`"""
        if never := why_never(self._state, slot):
            return never
        world, left, need = self._state.world, self._left(slot), self._minimum(slot)
        quotas, used = self._quotas
        spare = quotas.left(used)
        line = [account for account in quotas.line[slot].tolist() if account >= 0]
        if not left or not line:
            return ""
        gpu_type = max(left, key=lambda other: int(spare[line, other].min()))
        account = min(line, key=lambda number: int(spare[number, gpu_type]))
        queue, user = quotas.owner[account]
        is_total = gpu_type != CPU_TYPE and quotas.total[account] - gpus_of(used)[account] == spare[account, gpu_type]
        uses = int(gpus_of(used)[account] if is_total else used[account, gpu_type])
        most = int(quotas.total[account] if is_total else quotas.limit[account, gpu_type])
        gpus = f"GPU{'' if most == WHOLE else 's'}" if is_total else resource_name(self._state, gpu_type, most)
        of_limit = f"{uses / WHOLE:g} of {most / WHOLE:g} {gpus} allowed per user in queue {world.queues.names[queue]}"
        return f"{world.entities[user] or 'Its user'} uses {of_limit}; the job needs {need / WHOLE:g}."

    # --- other reasons ----------------------------------------------------------------------------------------------

    def new(self, slot: int) -> str:
        """`Queued; next decision in under 1 s.`"""
        state = self._state
        event = "Resumed" if state.world.table.evidence[slot] else "Queued"
        if state.deciding is not None:
            return f"{event}; the policy is making a decision."
        seconds = state.decision_due() - state.now
        if seconds < math.inf:
            return f"{event}; next decision in under {max(1, math.ceil(seconds))} s."
        return f"{event}; waiting for the next scheduling decision."

    def dependency(self, slot: int) -> str:
        """`Waiting for a and b to succeed.`"""
        state, number = self._state, self._state.world.table.number.item(slot)
        jobs = [state.world.ids[job] for job, dependents in sorted(state.dependents.items()) if number in dependents]
        return f"Waiting for {join_names(jobs)} to succeed." if jobs else ""

    def dependency_failed(self, slot: int) -> str:
        """`Depends on a, which failed: cancel and resubmit.`"""
        job, phase = self._state.unmet.get(self._state.world.table.number.item(slot), ("", 0))
        outcome = "was cancelled" if phase == Phase.CANCELLED else "failed"
        return f"Depends on {job}, which {outcome}: cancel and resubmit." if job else ""

    def restarting(self, slot: int) -> str:
        """`Failed; restarting from its checkpoint (retry 1 of 3).`"""
        table = self._state.world.table
        return f"Failed; restarting from its checkpoint (retry {table.evidence[slot]} of {table.retries[slot]})."

    def starting(self, slot: int) -> str:
        """`Starting 4 workers.`"""
        count = self._state.world.table.count.item(slot)
        return f"Starting {_workers(count)}." if count else ""

    def resizing(self, slot: int) -> str:
        """`Resizing from 4 to 2 workers without a restart.`"""
        table = self._state.world.table
        old, new = table.observed.item(slot), table.count.item(slot)
        if not old or not new:
            return ""
        how = "by a restart" if table.reason[slot] == Code.RESTARTING_RESIZED else "without a restart"
        if old == new:
            return f"Moving {_workers(new)} to other devices {how}."
        return f"Resizing from {old} to {_workers(new)} {how}."

    def unknown_speed(self, slot: int) -> str:
        """`Speed or remaining work unknown, and srjf needs it: declare steps or epochs.`"""
        return f"Speed or remaining work unknown, and {self._state.policy.name} needs it: declare steps or epochs."


#: Reasons to wait that do not depend on the backend.
_OF_ITS_OWN = frozenset(
    {Code.DEPENDENCY, Code.DEPENDENCY_FAILED, Code.TOO_LARGE, Code.UNKNOWN_TYPE, Code.QUEUE_LIMIT, Code.USER_LIMIT}
    | {Code.SET_ASIDE, Code.INVALID}
)


def _after(cause: str) -> Callable[[ReasonText, int], str]:
    """*cause*, followed by what the job needs to start again."""
    return lambda texts, slot: f"{cause} {needs}" if (needs := texts.needs(slot)) else ""


_WRITERS: dict[int, Callable[[ReasonText, int], str]] = {
    Code.NEW: ReasonText.new,
    Code.CAPACITY: ReasonText.needs,
    Code.FRAGMENTED: ReasonText.fragmented,
    Code.INELIGIBLE_NODES: ReasonText.ineligible_nodes,
    Code.QUEUE_SHARE: ReasonText.queue_share,
    Code.QUEUE_LIMIT: ReasonText.queue_limit,
    Code.USER_LIMIT: ReasonText.user_limit,
    Code.TOO_LARGE: lambda texts, slot: why_never(texts._state, slot),
    Code.UNKNOWN_TYPE: lambda texts, slot: why_never(texts._state, slot),
    Code.DEPENDENCY: ReasonText.dependency,
    Code.DEPENDENCY_FAILED: ReasonText.dependency_failed,
    Code.PREEMPTED: _after("Preempted by other jobs."),
    Code.DRAINED: _after("Its node is being drained."),
    Code.MADE_ROOM: _after("Preempted by a job whose node is being drained."),
    Code.RESERVED: _after("The GPUs it needs are reserved for serving pods, or for a job ahead of it."),
    Code.RESTARTING: ReasonText.restarting,
    Code.STARTING: ReasonText.starting,
    Code.RESIZING: ReasonText.resizing,
    Code.RESTARTING_RESIZED: ReasonText.resizing,
    Code.UNKNOWN_SPEED: ReasonText.unknown_speed,
}


def _workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"


def _amount(units: int, gpus: bool) -> str:
    """`2 GPUs`, `0.5 GPU`, `4 cores`."""
    return f"{units / WHOLE:g} {'GPU' if gpus else 'core'}{'' if units <= WHOLE else 's'}"
