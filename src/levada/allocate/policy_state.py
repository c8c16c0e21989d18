"""A policy's state in a case: from an earlier answer, or derived from the jobs.

Policies identify jobs by number and cases by id, so the numbers are stored beside the policy's own state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

import msgspec
import numpy as np

from levada.errors import BadInput, LevadaError
from levada.policies.attained_service import Attained, state_in_queues
from levada.policies.queued import QueuedState
from levada.tables.snapshot import Snapshot

#: Some JSON readers lose precision in larger integers.
_LARGEST = 2**53


class SavedPolicyState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of `state` in a case or an answer."""

    #: The number of each job.
    jobs: dict[str, int] = {}
    #: The number of the next new job.
    next: int = 0
    #: The policy's own state; None = none yet.
    policy: Any = None
    #: The GPU types by number, if the policy's state refers to them.
    types: tuple[str, ...] = ()


def read(raw: Any) -> SavedPolicyState:
    """The `state` of an earlier answer, empty if None; raises BadInput."""
    if raw is None:
        return SavedPolicyState()
    try:
        saved = msgspec.convert(raw, SavedPolicyState)
    except msgspec.ValidationError as error:
        raise BadInput.one(f"is not the state of an answer: {error}", "state") from None
    numbers = saved.jobs.values()
    if len(set(numbers)) < len(numbers):
        raise BadInput.one("two jobs have the same number", "state.jobs")
    if not all(0 <= number < saved.next for number in numbers) or not 0 <= saved.next <= _LARGEST:
        raise BadInput.one("must be above the numbers of all jobs", "state.next")
    return saved


def start(policy: str, initial: Any, saved: SavedPolicyState, snap: Snapshot) -> Any:
    """The state for the decision: as saved, plus new jobs; raises BadInput."""
    state = initial if saved.policy is None else _restored(policy, initial, saved, type(initial))
    return _ranked(state, snap)


def start_in_queues(policy: str, initial: Any, saved: SavedPolicyState, snap: Snapshot, seed: int) -> QueuedState[Any]:
    """Like `start`, for a policy inside `queued`: one state per queue."""
    kind: Any = QueuedState[type(initial)]  # type: ignore[misc]
    whole = QueuedState(seed=seed) if saved.policy is None else _restored(policy, initial, saved, kind)
    inner = dict(whole.inner)
    for queue in np.unique(snap.jobs.queue):
        name = snap.queues.names[int(queue)]
        view = snap.restricted(np.flatnonzero(snap.jobs.queue == queue), snap.capacity)
        inner[name] = _ranked(inner.get(name, initial), view)
    return QueuedState(seed=whole.seed, inner=inner)


def as_json(
    policy: str, state: Any, numbers: Mapping[str, int], following: int, types: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The policy's state as plain values; raises LevadaError if that is impossible."""
    try:
        own = _finite(msgspec.to_builtins(state, str_keys=True, enc_hook=_plain))
    except (NotImplementedError, RecursionError, TypeError, ValueError) as error:
        raise LevadaError(f"the policy {policy} has a state that cannot be encoded: {error}") from None
    saved = {"jobs": dict(numbers), "next": following, "policy": own}
    return {**saved, "types": list(types)} if types else saved


def _restored(policy: str, initial: Any, saved: SavedPolicyState, kind: Any) -> Any:
    """The saved state as a value of *kind*."""
    if initial is None:
        raise BadInput.one(f"{policy} is stateless; leave the state out", "state")
    try:
        return msgspec.convert(saved.policy, kind, strict=False, str_keys=True, dec_hook=_column)
    except (ArithmeticError, TypeError, ValueError) as error:  # msgspec's own are ValueErrors
        raise BadInput.one(f"is not a state of {policy}: {error}", "state.policy") from None


def _ranked(state: Any, snap: Snapshot) -> Any:
    """Add new jobs to Tiresias's state, in the queue given by their priority."""
    if not isinstance(state, Attained):
        return state
    fresh = state_in_queues(snap, np.maximum(snap.jobs.priority, 0))
    new = ~np.isin(fresh.number, state.number)
    columns = {
        name: np.concatenate([getattr(state, name), getattr(fresh, name)[new]]) for name in Attained.__struct_fields__
    }
    if len({len(column) for column in columns.values()}) > 1:
        raise BadInput.one("columns have different lengths", "state.policy")
    order = columns["number"].argsort()
    return Attained(**{name: column[order] for name, column in columns.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} is not supported in a policy's state")


def _finite(value: Any) -> Any:
    """The value with strings for infinite numbers, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def _column(kind: Any, value: Any) -> Any:
    """A column of integers or floats, as declared by its type `NDArray[T]`."""
    (number,) = get_args(get_args(kind)[1])
    column = np.array(value, np.int64 if issubclass(number, np.integer) else np.float64)
    if column.ndim != 1:
        raise ValueError("a column must be a list of numbers")
    return column
