"""The state of DRAGON between decisions."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.decision import Reservation
from levada.core.types import Floats, Ints
from levada.tables.snapshot import Snapshot

#: The resolution of sums and differences of seconds since the epoch; thresholds are inclusive.
TICK_S = 1e-6


class DragonState(msgspec.Struct, frozen=True, kw_only=True):
    """Keyed by job number, not by slot."""

    #: When the idle clock was last reset; None before the first decision.
    last_action: float | None = None
    #: Numbers of running jobs in the order of admission.
    admitted: tuple[int, ...] = ()
    #: The last starving job that could not be helped; only the first attempt for it resets the clock.
    tried: int = -1
    #: Workers that jobs lost to serving pods.
    owed: dict[int, int] = {}
    #: Serving pods at the last decision, pending or running; None before the first decision.
    serving: tuple[str, ...] | None = None
    #: No growth before this time: serving demand has just changed.
    held_until: float = 0.0
    #: Room reserved for serving pods.
    reservations: tuple[Reservation, ...] = ()
    #: When room was first ready for a pod that is still pending.
    ready: dict[str, float] = {}


def reached(now: float, since: float, span_s: float) -> bool:
    """Whether *span_s* seconds have passed, within the clock's resolution."""
    return now - since >= span_s - TICK_S


def admission_order(snap: Snapshot, admitted: tuple[int, ...]) -> list[int]:
    """The numbers of all running jobs, oldest admission first.

    Jobs out of view keep their position; jobs started by another policy are ordered by start time.
    """
    table, jobs = snap.table, snap.jobs
    known = np.array(admitted, np.int64)
    slots = table.find(known)
    known = known[(slots >= 0) & (table.count[slots] > 0)]
    unknown = (jobs.count > 0) & ~np.isin(jobs.number, known)
    rows: Ints = unknown.nonzero()[0]
    started: Floats = jobs.started[rows]
    rows = rows[np.lexsort((jobs.number[rows], started))]
    return [*known.tolist(), *jobs.number[rows].tolist()]
