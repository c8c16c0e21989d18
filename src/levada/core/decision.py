"""What a policy says: for every job it saw, how many workers on which type, and why."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from levada.core.reasons import Code
from levada.core.types import Ints

if TYPE_CHECKING:
    from levada.tables.snapshot import Snapshot

#: Columns of `Decision.places`: row of the job in the decision, worker index (parameter servers below zero), node,
#: device, 1/1000ths of it, MiB of its memory. The same as a plane's rows with the job's row for its slot.
PLACE_COLUMNS = 6


class Bind(msgspec.Struct, frozen=True, kw_only=True):
    """Room for a serving pod: where it shall run."""

    pod: str
    node: int
    #: -1 where it takes no part of a GPU or the backend chooses.
    device: int = -1


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """Room that is kept free on a node until *expires*."""

    id: str
    node: int
    cpu: int = 0
    memory: int = 0
    #: Device number to 1/1000ths, and to MiB of its memory.
    devices: tuple[tuple[int, int, int], ...] = ()
    expires: float = math.inf


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Columns over the jobs of a snapshot, in its order."""

    number: Ints
    #: -1 where a job gets nothing.
    type: Ints
    count: Ints
    reason: Ints
    evidence: Ints
    #: Time at which the answer could change though nothing happens.
    wake_at: float = math.inf
    #: Jobs that come or go until then are no news, unless some job waits while a GPU is free.
    heed_at: float = -math.inf
    #: Until then it stops nobody: who runs need not be shown, but jobs that wait, and what is free for them.
    fills: bool = False
    #: Where, for policies that decide by node: full places of each job in `placed`.
    places: Ints | None = None
    #: Rows of the jobs that `places` speaks of; a job with a count that is not among them keeps its places.
    placed: Ints | None = None
    #: The policy's order of the jobs, 0 = first, -1 = as it was; None = by submission.
    rank: Ints | None = None
    #: Batch size per job, 0 = its own.
    batch: Ints | None = None
    binds: tuple[Bind, ...] = ()
    reservations: tuple[Reservation, ...] = ()

    def allocation(self, row: int, names: tuple[str, ...]) -> dict[str, int]:
        """What the job of that row gets, by name of the type."""
        return {names[int(self.type[row])]: int(self.count[row])} if self.count[row] > 0 else {}


def decision(
    snap: Snapshot,
    gpu_type: Ints,
    count: Ints,
    reason: Ints | None = None,
    evidence: Ints | None = None,
    **more: object,
) -> Decision:
    """A decision about all jobs of *snap*; where no reason is given, those with workers run and the others wait."""
    given = count > 0
    if reason is None:
        reason = np.where(given, int(Code.RUNS), int(Code.CAPACITY))
    if evidence is None:
        evidence = np.zeros(len(count), np.int64)
    fields: dict[str, object] = {
        "number": snap.jobs.number,
        "type": np.where(given, gpu_type, -1),
        "count": np.where(given, count, 0),
        "reason": np.asarray(reason, np.int64),
        "evidence": evidence,
        **more,
    }
    return Decision(**fields)  # type: ignore[arg-type]
