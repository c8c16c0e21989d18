"""A policy that may be anybody's, watched while it decides: what it does wrong is one line that says so.

Everything is checked as it leaves the policy, before queues or answers are made of it, so that no fault of a policy
looks like one of Levada's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from levada.core.decision import Decision
from levada.core.reasons import Code
from levada.core.types import Ints
from levada.engine.shape import is_time, shape_fault
from levada.errors import BadInput, LevadaError
from levada.kernels import invariants
from levada.perf.model import ThroughputModel
from levada.plugins import in_words, place_in
from levada.policies.protocol import AnyPolicy, decides_by_node
from levada.tables.snapshot import Snapshot
from levada.tables.world import World

_COLUMNS = ("number", "type", "count", "reason", "evidence")
_OPTIONAL = ("rank", "batch")
_REASONS = Code.numbers()


class Checked:
    """*policy*, whose every decision about jobs of *world* is checked; it *goes_on* from a saved state or begins."""

    def __init__(self, policy: AnyPolicy, world: World, *, goes_on: bool) -> None:
        self.name, self.needs, self.cadence, self.guards = policy.name, policy.needs, policy.cadence, policy.guards
        self.by_node = decides_by_node(policy)
        self._policy, self._world, self._goes_on = policy, world, goes_on

    def initial(self, seed: int) -> Any:
        """The policy's own."""
        with blame(self._policy, goes_on=self._goes_on):
            return self._policy.initial(seed)

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: Any) -> tuple[Decision, Any]:
        """The policy's decision and state; raises LevadaError where they break a rule."""
        with blame(self._policy, goes_on=self._goes_on):
            answer: Any = self._policy.decide(snap, perf, state)
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], Decision):
            raise self._wrong(f"must return a decision and a state, not {_kind(answer)}")
        decision, after = answer
        self._check_columns(decision, snap)
        self._check_sizes(decision, snap)
        if not self.by_node:
            # Who decides by node sees the whole cluster and is held to its queues afterwards.
            self.check_sums(decision, snap)
        return decision, after

    def check_sums(self, decision: Decision, snap: Snapshot) -> None:
        """Raises LevadaError where the decision gives away more than there is."""
        given = decision.count > 0
        used = np.zeros(len(snap.capacity), np.int64)
        np.add.at(used, decision.type[given], decision.count[given] * snap.jobs.unit[given])
        if len(over := np.flatnonzero(used > snap.capacity)):
            raise self._wrong(f"gave away more {self._world.inventory.types[int(over[0])]} than there is")

    def _check_columns(self, decision: Decision, snap: Snapshot) -> None:
        for field in (*_COLUMNS, *(name for name in _OPTIONAL if getattr(decision, name) is not None)):
            self._check_column(field, getattr(decision, field), len(snap))
        if (decision.number != snap.jobs.number).any():
            raise self._wrong("must answer for the jobs in view, in their order: number is not theirs")
        if not np.isin(decision.reason, _REASONS).all():
            raise self._wrong("gave a reason that is none of levada.core.reasons.Code")
        for field in ("wake_at", "heed_at"):
            if not is_time(at := getattr(decision, field)):
                raise self._wrong(f"gave {at!r} as {field}, which must be a time in seconds")
        if (fault := shape_fault(self._world, decision)) is not None:
            raise self._wrong(f"gave a decision that cannot be: {fault}")

    def _check_column(self, field: str, column: Any, length: int) -> None:
        if not isinstance(column, np.ndarray) or column.ndim != 1:
            raise self._wrong(f"gave {_kind(column)} as {field}, which must be a numpy column of whole numbers")
        if not np.issubdtype(column.dtype, np.integer):
            raise self._wrong(f"gave {field} as {column.dtype}; it must be whole numbers (np.int64)")
        if len(column) != length:
            raise self._wrong(f"gave {len(column)} values as {field} for the {length} jobs in view")

    def _check_sizes(self, decision: Decision, snap: Snapshot) -> None:
        """Raises LevadaError where a size is not one that the engine would commit."""
        jobs, table = snap.jobs, self._world.table
        kind, count = table.type.copy(), table.count.copy()
        kind[jobs.slots], count[jobs.slots] = np.where(decision.count != 0, decision.type, -1), decision.count
        _, bad = invariants.sizes_in_range(table.ints, table.preference, jobs.slots, kind, count)
        if not len(bad):
            return
        row = int((jobs.slots == bad[0]).argmax())
        job, size, low, high, step = self._job(jobs.number, row), decision.count[row], *_range(jobs, row)
        if size < low or size > high or (size - low) % step != 0:
            steps = f" in steps of {step}" if step > 1 else ""
            raise self._wrong(f"gave {job} {size} workers; it allows {low} to {high}{steps}")
        raise self._wrong(f"gave {job} type {decision.type[row]}, on which it may not run")

    def _job(self, numbers: Ints, row: int) -> str:
        return self._world.ids[int(numbers[row])]

    def _wrong(self, what: str) -> LevadaError:
        return LevadaError(f"the policy {self.name} {what}")


@contextmanager
def blame(policy: Any, *, goes_on: bool) -> Iterator[None]:
    """Turns whatever *policy* raises, an end of the process too, into one line with its place.

    One that *goes_on* from a state of the case fails because of that state.
    """
    try:
        yield
    except (KeyboardInterrupt, LevadaError):
        raise
    except BaseException as error:
        what = f"({place_in(error, type(policy))}): {in_words(error)}"
        if goes_on:
            raise BadInput.one(f"{policy.name} cannot go on from it {what}", "state") from error
        raise LevadaError(f"{policy.name} failed {what}") from error


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(part).__name__ for part in value)})"
    return "None" if value is None else type(value).__name__


def _range(jobs: Any, row: int) -> tuple[int, int, int]:
    return int(jobs.min[row]), int(jobs.max[row]), max(int(jobs.step[row]), 1)
