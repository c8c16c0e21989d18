"""Queues: who is sure of how much, who may have how much, and how what is left over is lent.

A queue is sure of its guarantee whenever it has jobs for it. What nobody claims is lent by weight, never beyond a
limit. Queues are nested: a child shares its parent's part. All amounts are per type, in 1/1000ths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from levada.core.layout import UNLIMITED
from levada.core.names import Names
from levada.core.types import CPU_TYPE, WHOLE, Ints

DEFAULT_QUEUE = "default"
#: Bounds that no real cluster reaches, and within which all sums stay exact.
MOST_QUEUES, MOST_LEVELS, LARGEST_AMOUNT = 1_000, 100, 1_000_000_000


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """One queue; guarantee and limit are GPUs by type (cores for `cpu`)."""

    name: str
    parent: str | None = None
    weight: float = 1.0
    guaranteed: Mapping[str, float] = {}
    limit: Mapping[str, float] = {}
    #: The most that the jobs of one user may have together, those in queues below included.
    per_user_limit: Mapping[str, float] = {}
    #: The same in GPUs of all types; None = no such limit.
    per_user_total: float | None = None
    #: May use what others leave.
    borrow: bool = True


def faults_of(queues: Sequence[Queue]) -> list[tuple[str, str]]:
    """What is wrong with these queues together, as (queue, sentence)."""
    faults: list[tuple[str, str]] = []
    if len(queues) > MOST_QUEUES:
        return [("", f"{len(queues)} queues are more than {MOST_QUEUES}")]
    by_name = {queue.name: queue for queue in queues}
    if len(by_name) != len(queues):
        faults.append(("", "two queues have the same name"))
    for queue in queues:
        if not 0 < queue.weight <= LARGEST_AMOUNT:
            faults.append((queue.name, f"weight must be above 0 and at most {LARGEST_AMOUNT:,}"))
        for gpu_type, amount in [*queue.guaranteed.items(), *queue.limit.items(), *queue.per_user_limit.items()]:
            if not 0 <= amount <= LARGEST_AMOUNT:
                faults.append((queue.name, f"{gpu_type}: must be 0 to {LARGEST_AMOUNT:,}"))
        if queue.per_user_total is not None and not 0 <= queue.per_user_total <= LARGEST_AMOUNT:
            faults.append((queue.name, f"one user's GPUs must be 0 to {LARGEST_AMOUNT:,}"))
        for gpu_type, amount in queue.guaranteed.items():
            if amount > queue.limit.get(gpu_type, float("inf")):
                faults.append((queue.name, f"{gpu_type}: guarantees more than its limit"))
        seen = {queue.name}
        above = queue.parent
        while above is not None:
            if above not in by_name:
                faults.append((queue.name, f"its parent {above!r} does not exist"))
                break
            if above in seen:
                faults.append((queue.name, "is its own ancestor"))
                break
            seen.add(above)
            if len(seen) > MOST_LEVELS:
                faults.append((queue.name, f"is more than {MOST_LEVELS} levels deep"))
                break
            above = by_name[above].parent
    return faults


class QueueTree:
    """Queues by number, and the rules of sharing."""

    def __init__(self, queues: Sequence[Queue] = ()) -> None:
        values = list(queues)
        if all(queue.name != DEFAULT_QUEUE for queue in values):
            values.append(Queue(name=DEFAULT_QUEUE))
        self.names = Names(queue.name for queue in values)
        self.values = values
        self.parent = [self.names.find(queue.parent) if queue.parent is not None else -1 for queue in values]
        self.children: list[list[int]] = [[] for _ in values]
        for child, parent in enumerate(self.parent):
            if parent >= 0:
                self.children[parent].append(child)
        self.roots = [number for number, parent in enumerate(self.parent) if parent < 0]
        #: The queues that limit what one user may have.
        self.limiting_users = [
            number for number, queue in enumerate(values) if queue.per_user_limit or queue.per_user_total is not None
        ]
        #: Nobody may have only so much.
        self.unlimited = not self.limiting_users and not any(queue.limit for queue in values)
        #: Queues change nothing: there is one, without a limit.
        self.trivial = len(values) == 1 and self.unlimited and values[0].borrow

    def limits(self, types: Names) -> Ints:
        """Per queue and type the most it and its children may use."""
        return self._amounts(types, "limit", UNLIMITED)

    def user_limits(self, types: Names) -> Ints:
        """Per queue and type the most that one user's jobs in it and its children may use."""
        limits = self._amounts(types, "per_user_limit", UNLIMITED)
        gpus = np.arange(len(types)) != CPU_TYPE
        return np.where(gpus, np.minimum(limits, self.user_totals()[:, None]), limits)

    def user_totals(self) -> Ints:
        """Per queue the most that one user's jobs in it and its children may use of all GPU types together."""
        totals = [queue.per_user_total for queue in self.values]
        return np.array([UNLIMITED if total is None else round(total * WHOLE) for total in totals], np.int64)

    def guarantees(self, types: Names) -> Ints:
        """Per queue and type what it is sure of: its own guarantee, or its children's where they add up to more."""
        own = self._amounts(types, "guaranteed", 0)
        for number in self._leaves_first():
            if self.children[number]:
                own[number] = np.maximum(own[number], own[self.children[number]].sum(axis=0))
        return own

    def lineage(self, number: int) -> list[int]:
        """The queue and all above it."""
        line = [number]
        while self.parent[line[-1]] >= 0:
            line.append(self.parent[line[-1]])
        return line

    def usage(self, queue: Ints, gpu_type: Ints, units: Ints, types: int) -> Ints:
        """Per queue and type what jobs use, children's included."""
        used = np.zeros((len(self.values), types), np.int64)
        np.add.at(used, (queue, gpu_type), units)
        for number in self._leaves_first():
            if self.parent[number] >= 0:
                used[self.parent[number]] += used[number]
        return used

    def shares(self, capacity: Ints, demand: Ints, types: Names, outside: Ints | None = None) -> Ints:
        """Per queue and type what its *own* jobs may use, given *demand* of its own jobs (children's apart).

        *outside* is what jobs that nobody may touch now use already, children's included: it counts against guarantees
        and limits. Sums stay within *capacity*.
        """
        count, kinds = demand.shape
        used = outside if outside is not None else np.zeros((count, kinds), np.int64)
        limit = np.maximum(self.limits(types) - used, 0)
        sure = np.minimum(np.maximum(self.guarantees(types) - used, 0), limit)
        for number, queue in enumerate(self.values):
            if not queue.borrow:
                limit[number] = np.minimum(limit[number], sure[number])
        total = demand.copy()
        for number in self._leaves_first():
            total[number] = np.minimum(total[number], limit[number])
            if self.parent[number] >= 0:
                total[self.parent[number]] += total[number]
        shares = np.zeros_like(demand)
        for kind in range(kinds):
            self._split(self.roots, int(capacity[kind]), kind, demand, total, sure, shares)
        return shares

    def _split(
        self, members: list[int], amount: int, kind: int, own: Ints, total: Ints, sure: Ints, shares: Ints
    ) -> None:
        """Divides *amount* among sibling queues, and each one's part among its own jobs and its children."""
        parts = divide(
            amount,
            [int(total[m, kind]) for m in members],
            [int(sure[m, kind]) for m in members],
            [self.values[m].weight for m in members],
        )
        for member, part in zip(members, parts, strict=True):
            children = self.children[member]
            if not children:
                shares[member, kind] = part
                continue
            # A parent's own jobs stand beside its children as one more child without a guarantee.
            inner = divide(
                part,
                [int(own[member, kind]), *(int(total[c, kind]) for c in children)],
                [0, *(int(sure[c, kind]) for c in children)],
                [1.0, *(self.values[c].weight for c in children)],
            )
            shares[member, kind] = inner[0]
            for child, child_part in zip(children, inner[1:], strict=True):
                self._split([child], child_part, kind, own, total, sure, shares)

    def _leaves_first(self) -> list[int]:
        order: list[int] = []
        stack = list(self.roots)
        while stack:
            number = stack.pop()
            order.append(number)
            stack += self.children[number]
        return order[::-1]

    def _amounts(self, types: Names, field: str, default: int) -> Ints:
        amounts = np.full((len(self.values), len(types)), default, np.int64)
        for number, queue in enumerate(self.values):
            for gpu_type, amount in getattr(queue, field).items():
                if (kind := types.find(gpu_type)) >= 0:
                    amounts[number, kind] = round(amount * WHOLE)
        return amounts


def divide(amount: int, demand: list[int], sure: list[int], weight: list[float]) -> list[int]:
    """Parts that sum to at most *amount*: first min(demand, sure), cut evenly if too much, then by weight up to demand.

    Parts that are cut or lent are whole GPUs as far as possible; odd ones go to the largest weight, then the first in
    line, that still wants one. Nothing is left while somebody wants it.
    """
    part = [min(d, s) for d, s in zip(demand, sure, strict=True)]
    claimed = sum(part)
    if claimed > amount:
        part = [p * amount // claimed // WHOLE * WHOLE for p in part]
        # What the cut leaves over belongs to those who were cut.
        demand = [min(d, s) for d, s in zip(demand, sure, strict=True)]
    left = amount - sum(part)
    hungry = [i for i in range(len(demand)) if demand[i] > part[i]]
    while left > 0 and hungry:
        weights = sum(weight[i] for i in hungry)
        fair = [min(int(left * weight[i] / weights) // WHOLE * WHOLE, demand[i] - part[i]) for i in hungry]
        if not any(fair):
            hungry.sort(key=lambda i: -weight[i])
            fair = [min(WHOLE, demand[i] - part[i]) for i in hungry]
        for i, add in zip(hungry, fair, strict=True):
            add = min(add, left)
            part[i] += add
            left -= add
        hungry = sorted(i for i in hungry if demand[i] > part[i])
    return part
