"""Queues: guarantees, limits, and how unused capacity is lent.

A queue gets its guarantee whenever it has jobs for it. The rest is lent by weight, up to limits. Queues are nested: the
children share the part of their parent. All amounts are per type, in 1/1000ths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from levada.core.layout import UNLIMITED
from levada.core.names import Names
from levada.core.types import CPU_TYPE, WHOLE, Ints

DEFAULT_QUEUE = "default"
#: Bounds beyond any real cluster, within which all sums are exact.
MOST_QUEUES, MOST_LEVELS, LARGEST_AMOUNT = 1_000, 100, 1_000_000_000


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue; guarantee and limit are GPUs by type (cores for `cpu`)."""

    name: str
    parent: str | None = None
    weight: float = 1.0
    guaranteed: Mapping[str, float] = {}
    limit: Mapping[str, float] = {}
    #: Limit for all jobs of one user in this queue and its descendants.
    per_user_limit: Mapping[str, float] = {}
    #: Limit per user for GPUs of all types together; None = unlimited.
    per_user_total: float | None = None
    #: Whether it may use capacity beyond its guarantee.
    borrow: bool = True


def faults_of(queues: Sequence[Queue]) -> list[tuple[str, str]]:
    """Errors in these queues, as (queue, sentence)."""
    faults: list[tuple[str, str]] = []
    if len(queues) > MOST_QUEUES:
        return [("", f"{len(queues)} queues: at most {MOST_QUEUES} are allowed")]
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
        if (fault := _ancestor_fault(queue, by_name)) is not None:
            faults.append((queue.name, fault))
    return faults


def _ancestor_fault(queue: Queue, by_name: Mapping[str, Queue]) -> str | None:
    """The error in the chain of parents of *queue*, if any."""
    seen = {queue.name}
    parent = queue.parent
    while parent is not None:
        if parent not in by_name:
            return f"its parent {parent!r} does not exist"
        if parent in seen:
            return "is its own ancestor"
        seen.add(parent)
        if len(seen) > MOST_LEVELS:
            return f"is more than {MOST_LEVELS} levels deep"
        parent = by_name[parent].parent
    return None


class QueueTree:
    """Queues by number, and the rules that split capacity among them."""

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
        #: Queues with limits per user.
        self.limiting_users = [
            number for number, queue in enumerate(values) if queue.per_user_limit or queue.per_user_total is not None
        ]
        #: No queue has a limit.
        self.unlimited = not self.limiting_users and not any(queue.limit for queue in values)
        #: There is one queue, without a limit, so that queues have no effect.
        self.trivial = len(values) == 1 and self.unlimited and values[0].borrow

    def limits(self, types: Names) -> Ints:
        """Limits by queue and type, including children."""
        return self._amounts(types, "limit", UNLIMITED)

    def user_limits(self, types: Names) -> Ints:
        """Limits per user by queue and type, including children."""
        limits = self._amounts(types, "per_user_limit", UNLIMITED)
        gpus = np.arange(len(types)) != CPU_TYPE
        return np.where(gpus, np.minimum(limits, self.user_totals()[:, None]), limits)

    def user_totals(self) -> Ints:
        """Limits per user by queue for GPUs of all types together, including children."""
        totals = [queue.per_user_total for queue in self.values]
        return np.array([UNLIMITED if total is None else round(total * WHOLE) for total in totals], np.int64)

    def guarantees(self, types: Names) -> Ints:
        """Guarantees by queue and type: the queue's own, or the sum of its children's if that is more."""
        own = self._amounts(types, "guaranteed", 0)
        for number in self._leaves_first():
            if self.children[number]:
                own[number] = np.maximum(own[number], own[self.children[number]].sum(axis=0))
        return own

    def lineage(self, number: int) -> list[int]:
        """The queue and its ancestors."""
        line = [number]
        while self.parent[line[-1]] >= 0:
            line.append(self.parent[line[-1]])
        return line

    def usage(self, queue: Ints, gpu_type: Ints, units: Ints, types: int) -> Ints:
        """Use by queue and type, including children."""
        used = np.zeros((len(self.values), types), np.int64)
        np.add.at(used, (queue, gpu_type), units)
        for number in self._leaves_first():
            if self.parent[number] >= 0:
                used[self.parent[number]] += used[number]
        return used

    def shares(self, capacity: Ints, demand: Ints, types: Names, outside: Ints | None = None) -> Ints:
        """Capacity for the *own* jobs of each queue by type, without children; *demand* is that of its own jobs.

        *outside* is the use by jobs out of view, including children: it counts against guarantees and limits. Sums stay
        within *capacity*.
        """
        count, type_count = demand.shape
        used = outside if outside is not None else np.zeros((count, type_count), np.int64)
        limit = np.maximum(self.limits(types) - used, 0)
        guaranteed = np.minimum(np.maximum(self.guarantees(types) - used, 0), limit)
        for number, queue in enumerate(self.values):
            if not queue.borrow:
                limit[number] = np.minimum(limit[number], guaranteed[number])
        total = demand.copy()
        for number in self._leaves_first():
            total[number] = np.minimum(total[number], limit[number])
            if self.parent[number] >= 0:
                total[self.parent[number]] += total[number]
        shares = np.zeros_like(demand)
        for gpu_type in range(type_count):
            columns = (column[:, gpu_type] for column in (demand, total, guaranteed, shares))
            self._split(self.roots, int(capacity[gpu_type]), *columns)
        return shares

    def _split(self, queues: list[int], amount: int, own: Ints, total: Ints, guaranteed: Ints, shares: Ints) -> None:
        """Divide *amount* among sibling queues, and the part of each among its own jobs and its children."""
        parts = divide(
            amount,
            [int(total[queue]) for queue in queues],
            [int(guaranteed[queue]) for queue in queues],
            [self.values[queue].weight for queue in queues],
        )
        for queue, part in zip(queues, parts, strict=True):
            children = self.children[queue]
            if not children:
                shares[queue] = part
                continue
            # The own jobs of a parent count as one more child without a guarantee.
            inner = divide(
                part,
                [int(own[queue]), *(int(total[child]) for child in children)],
                [0, *(int(guaranteed[child]) for child in children)],
                [1.0, *(self.values[child].weight for child in children)],
            )
            shares[queue] = inner[0]
            for child, child_part in zip(children, inner[1:], strict=True):
                self._split([child], child_part, own, total, guaranteed, shares)

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
            for name, amount in getattr(queue, field).items():
                if (gpu_type := types.find(name)) >= 0:
                    amounts[number, gpu_type] = round(amount * WHOLE)
        return amounts


def divide(amount: int, demand: list[int], guaranteed: list[int], weight: list[float]) -> list[int]:
    """Divide *amount*: first guarantees up to demand (cut evenly if too much), then by weight up to demand.

    Parts that are cut or lent are whole GPUs as far as possible; remaining ones go to the largest weight, then to the
    first in order, with unmet demand. Nothing is left while there is unmet demand.
    """
    part = [min(d, g) for d, g in zip(demand, guaranteed, strict=True)]
    claimed = sum(part)
    if claimed > amount:
        part = [p * amount // claimed // WHOLE * WHOLE for p in part]
        # The rest of the cut goes only to guarantees.
        demand = [min(d, g) for d, g in zip(demand, guaranteed, strict=True)]
    left = amount - sum(part)
    unmet = [i for i in range(len(demand)) if demand[i] > part[i]]
    while left > 0 and unmet:
        weights = sum(weight[i] for i in unmet)
        fair = [min(int(left * weight[i] / weights) // WHOLE * WHOLE, demand[i] - part[i]) for i in unmet]
        if not any(fair):
            unmet.sort(key=lambda i: -weight[i])
            fair = [min(WHOLE, demand[i] - part[i]) for i in unmet]
        for i, add in zip(unmet, fair, strict=True):
            add = min(add, left)
            part[i] += add
            left -= add
        unmet = sorted(i for i in unmet if demand[i] > part[i])
    return part
