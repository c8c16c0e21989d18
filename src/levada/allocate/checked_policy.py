"""A wrapper that checks every decision of a policy, built-in or user-defined.

The checks run directly on the policy's output, before queues or answers use it, so that a bug of a policy is not
mistaken for one of Levada.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from levada.core.decision import Decision
from levada.core.reasons import Code
from levada.core.types import WHOLE, Ints
from levada.engine.validate_decision import is_time, shape_fault
from levada.errors import BadInput, LevadaError
from levada.kernels import invariants
from levada.perf.model import ThroughputModel
from levada.plugins import describe_exception, location_in
from levada.policies.protocol import AnyPolicy, decides_by_node
from levada.tables.cluster_state import ClusterState
from levada.tables.snapshot import Snapshot

_COLUMNS = ("number", "type", "count", "reason", "evidence")
_OPTIONAL = ("rank", "batch")
_REASONS = Code.numbers()


class Checked:
    """A policy whose decisions are checked; *resumed*: it has a saved state."""

    def __init__(self, policy: AnyPolicy, world: ClusterState, *, resumed: bool) -> None:
        self.name, self.needs, self.cadence, self.guards = policy.name, policy.needs, policy.cadence, policy.guards
        self.by_node = decides_by_node(policy)
        self._policy, self._world, self._resumed = policy, world, resumed

    def initial(self, seed: int) -> Any:
        """The initial state of the policy."""
        with attribute_errors(self._policy, resumed=self._resumed):
            return self._policy.initial(seed)

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: Any) -> tuple[Decision, Any]:
        """The policy's decision and state; raises LevadaError if they are invalid."""
        with attribute_errors(self._policy, resumed=self._resumed):
            result: Any = self._policy.decide(snap, perf, state)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], Decision):
            raise self._error(f"must return a decision and a state, not {_type_name(result)}")
        decision, after = result
        self._check_columns(decision, snap)
        self._check_sizes(decision, snap)
        if not self.by_node:
            # A policy that decides by node sees the whole cluster; queue limits are applied afterwards.
            self.check_sums(decision, snap)
        return decision, after

    def check_sums(self, decision: Decision, snap: Snapshot) -> None:
        """Raise LevadaError if the decision exceeds the capacity of a type."""
        runs = decision.count > 0
        used = np.zeros(len(snap.capacity), np.int64)
        np.add.at(used, decision.type[runs], decision.count[runs] * snap.jobs.unit[runs])
        if len(over := np.flatnonzero(used > snap.capacity)):
            kind = int(over[0])
            assigned, available = used[kind] / WHOLE, snap.capacity[kind] / WHOLE
            gpus = f"{self._world.inventory.types[kind]} GPUs"
            raise self._error(f"assigned {assigned:g} {gpus}; only {available:g} are available")

    def _check_columns(self, decision: Decision, snap: Snapshot) -> None:
        for field in (*_COLUMNS, *(name for name in _OPTIONAL if getattr(decision, name) is not None)):
            self._check_column(field, getattr(decision, field), len(snap))
        if (decision.number != snap.jobs.number).any():
            raise self._error("must return the job numbers of the snapshot, in the same order")
        if not np.isin(decision.reason, _REASONS).all():
            raise self._error("returned a reason that is not in levada.core.reasons.Code")
        for field in ("wake_at", "heed_at"):
            if not is_time(at := getattr(decision, field)):
                raise self._error(f"returned {at!r} as {field}; must be a time in seconds")
        if (fault := shape_fault(self._world, decision)) is not None:
            raise self._error(f"returned an invalid decision: {fault}")

    def _check_column(self, field: str, column: Any, length: int) -> None:
        if not isinstance(column, np.ndarray) or column.ndim != 1:
            raise self._error(f"returned {_type_name(column)} as {field}; must be a numpy column of whole numbers")
        if not np.issubdtype(column.dtype, np.integer):
            raise self._error(f"returned {field} as {column.dtype}; must be whole numbers (np.int64)")
        if len(column) != length:
            raise self._error(f"returned {len(column)} values as {field} for the {length} jobs in view")

    def _check_sizes(self, decision: Decision, snap: Snapshot) -> None:
        """Raise LevadaError for a size or type that the engine would reject."""
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
            raise self._error(f"returned {size} workers for {job}; it allows {low} to {high}{steps}")
        raise self._error(f"returned type {decision.type[row]} for {job}, which may not run there")

    def _job(self, numbers: Ints, row: int) -> str:
        return self._world.ids[int(numbers[row])]

    def _error(self, what: str) -> LevadaError:
        return LevadaError(f"the policy {self.name} {what}")


@contextmanager
def attribute_errors(policy: Any, *, resumed: bool) -> Iterator[None]:
    """Turn any exception of *policy*, even SystemExit, into an error of one line.

    A policy that is *resumed* from the state of a case fails because of that state.
    """
    try:
        yield
    except (KeyboardInterrupt, LevadaError):
        raise
    except BaseException as error:
        what = f"({location_in(error, type(policy))}): {describe_exception(error)}"
        if resumed:
            raise BadInput.one(f"{policy.name} failed to resume from this state {what}", "state") from error
        raise LevadaError(f"{policy.name} failed {what}") from error


def _type_name(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(part).__name__ for part in value)})"
    return "None" if value is None else type(value).__name__


def _range(jobs: Any, row: int) -> tuple[int, int, int]:
    return int(jobs.min[row]), int(jobs.max[row]), max(int(jobs.step[row]), 1)
