"""A policy's state in a case: what an earlier answer printed, or what the jobs of the case imply.

Policies know jobs by number and cases know them by id, so the numbers are kept beside the policy's own state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

import msgspec
import numpy as np

from levada.errors import BadInput, LevadaError
from levada.policies.attained import Attained, placed
from levada.policies.queued import QueueState
from levada.tables.snapshot import Snapshot

#: Whole numbers beyond this do not survive every JSON reader.
_LARGEST = 2**53


class Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands under `state` in a case or an answer."""

    #: The number of each job.
    jobs: dict[str, int] = {}
    #: The number of the next job that is new.
    next: int = 0
    #: The policy's own; None = none yet.
    policy: Any = None
    #: The GPU types by number, where the policy's state speaks of them.
    types: tuple[str, ...] = ()


def read(raw: Any) -> Saved:
    """What an earlier answer printed as `state`, or nothing; raises BadInput where it cannot be that."""
    if raw is None:
        return Saved()
    try:
        saved = msgspec.convert(raw, Saved)
    except msgspec.ValidationError as error:
        raise BadInput.one(f"is not what an answer printed: {error}", "state") from None
    numbers = saved.jobs.values()
    if len(set(numbers)) < len(numbers):
        raise BadInput.one("two jobs have the same number", "state.jobs")
    if not all(0 <= number < saved.next for number in numbers) or not 0 <= saved.next <= _LARGEST:
        raise BadInput.one("must be above the numbers of all jobs", "state.next")
    return saved


def start(policy: str, initial: Any, saved: Saved, snap: Snapshot) -> Any:
    """The state that a policy decides with: as saved, and with the jobs that are new to it; raises BadInput."""
    state = initial if saved.policy is None else _restored(policy, initial, saved, type(initial))
    return _ranked(state, snap)


def start_in_queues(policy: str, initial: Any, saved: Saved, snap: Snapshot, seed: int) -> QueueState[Any]:
    """As `start`, for a policy inside `queued`: each queue has a state of its own."""
    kind: Any = QueueState[type(initial)]  # type: ignore[misc]
    whole = QueueState(seed=seed) if saved.policy is None else _restored(policy, initial, saved, kind)
    inner = dict(whole.inner)
    for queue in np.unique(snap.jobs.queue):
        name = snap.queues.names[int(queue)]
        its_jobs = snap.restricted(np.flatnonzero(snap.jobs.queue == queue), snap.capacity)
        inner[name] = _ranked(inner.get(name, initial), its_jobs)
    return QueueState(seed=whole.seed, inner=inner)


def as_json(
    policy: str, state: Any, numbers: Mapping[str, int], following: int, types: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The policy's state as plain values, for `state` of an answer; raises LevadaError where it cannot be that."""
    try:
        own = _finite(msgspec.to_builtins(state, str_keys=True, enc_hook=_plain))
    except (NotImplementedError, RecursionError, TypeError, ValueError) as error:
        raise LevadaError(f"the policy {policy} has a state that cannot be written down: {error}") from None
    kept = {"jobs": dict(numbers), "next": following, "policy": own}
    return {**kept, "types": list(types)} if types else kept


def _restored(policy: str, initial: Any, saved: Saved, kind: Any) -> Any:
    """The saved state as a value of *kind*."""
    if initial is None:
        raise BadInput.one(f"{policy} keeps no state", "state")
    try:
        return msgspec.convert(saved.policy, kind, strict=False, str_keys=True, dec_hook=_column)
    except (ArithmeticError, TypeError, ValueError) as error:  # msgspec's own are ValueErrors
        raise BadInput.one(f"is not a state of {policy}: {error}", "state.policy") from None


def _ranked(state: Any, snap: Snapshot) -> Any:
    """Tiresias's state with the jobs that are new to it in the queue that the case gives as their priority."""
    if not isinstance(state, Attained):
        return state
    fresh = placed(snap, np.maximum(snap.jobs.priority, 0))
    new = ~np.isin(fresh.number, state.number)
    columns = {
        name: np.concatenate([getattr(state, name), getattr(fresh, name)[new]]) for name in Attained.__struct_fields__
    }
    if len({len(column) for column in columns.values()}) > 1:
        raise BadInput.one("its columns are not of one length", "state.policy")
    order = columns["number"].argsort()
    return Attained(**{name: column[order] for name, column in columns.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} has no place in a policy's state")


def _finite(value: Any) -> Any:
    """The value with words for numbers that JSON has not; `_restored` reads them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def _column(kind: Any, value: Any) -> Any:
    """A column of whole numbers or of floats, as the state declares it: `NDArray[T]` is `ndarray[shape, dtype[T]]`."""
    (number,) = get_args(get_args(kind)[1])
    column = np.array(value, np.int64 if issubclass(number, np.integer) else np.float64)
    if column.ndim != 1:
        raise ValueError("a column must be a list of numbers")
    return column
