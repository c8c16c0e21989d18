"""Decisions of policies: workers, type and reason for every job in view."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from levada.core.reasons import Code
from levada.core.types import Ints

if TYPE_CHECKING:
    from levada.tables.snapshot import Snapshot

#: Columns of `Decision.places`: row of the job in the decision, worker index (negative for parameter servers), node,
#: device, 1/1000ths of it, MiB of its memory. Like `Assignment.rows`, with the row of the job instead of its slot.
PLACE_COLUMNS = 6


class Bind(msgspec.Struct, frozen=True, kw_only=True):
    """The node and device for a serving pod."""

    pod: str
    node: int
    #: -1 if it needs no fraction of a GPU or the backend chooses.
    device: int = -1


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """Capacity of a node that is reserved until *expires*."""

    id: str
    node: int
    cpu: int = 0
    memory: int = 0
    #: (device number, 1/1000ths, MiB of its memory).
    devices: tuple[tuple[int, int, int], ...] = ()
    expires: float = math.inf


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Columns with one row for each job of a snapshot, in its order."""

    number: Ints
    #: -1 for jobs without a grant.
    type: Ints
    count: Ints
    reason: Ints
    evidence: Ints
    #: When the next decision is due even without an event.
    wake_at: float = math.inf
    #: Until then, new and ended jobs do not trigger a decision, unless a job is pending while a GPU is free.
    heed_at: float = -math.inf
    #: Until `heed_at` the policy only fills free devices and needs to see only pending jobs.
    fills: bool = False
    #: For policies that decide by node: all places of each job in `placed`.
    places: Ints | None = None
    #: Rows of the jobs with `places`; other jobs with a count keep their places.
    placed: Ints | None = None
    #: The policy's order of the jobs, 0 = first, -1 = unchanged; None = by submission.
    rank: Ints | None = None
    #: Batch size per job; 0 = the job's own.
    batch: Ints | None = None
    binds: tuple[Bind, ...] = ()
    reservations: tuple[Reservation, ...] = ()

    def allocation(self, row: int, names: tuple[str, ...]) -> dict[str, int]:
        """The number of workers of the job in *row*, by name of the type."""
        return {names[int(self.type[row])]: int(self.count[row])} if self.count[row] > 0 else {}


def decision(
    snap: Snapshot,
    gpu_type: Ints,
    count: Ints,
    reason: Ints | None = None,
    evidence: Ints | None = None,
    **more: object,
) -> Decision:
    """A decision about all jobs of *snap*; the default reason is `runs` with workers and `capacity` without."""
    granted = count > 0
    if reason is None:
        reason = np.where(granted, int(Code.RUNS), int(Code.CAPACITY))
    if evidence is None:
        evidence = np.zeros(len(count), np.int64)
    fields: dict[str, object] = {
        "number": snap.jobs.number,
        "type": np.where(granted, gpu_type, -1),
        "count": np.where(granted, count, 0),
        "reason": np.asarray(reason, np.int64),
        "evidence": evidence,
        **more,
    }
    return Decision(**fields)  # type: ignore[arg-type]
