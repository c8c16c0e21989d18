"""What DRAGON remembers between decisions."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.decision import Reservation
from levada.core.types import Floats, Ints
from levada.tables.snapshot import Snapshot

#: Seconds since the epoch have this resolution when they are added and subtracted; thresholds are inclusive.
TICK_S = 1e-6


class DragonState(msgspec.Struct, frozen=True, kw_only=True):
    """Keyed by job number, never by slot."""

    #: When the idle clock was last set back; None before the first decision.
    last_action: float | None = None
    #: Numbers of running jobs in the order in which they were admitted.
    admitted: tuple[int, ...] = ()
    #: The waiting job for which room was last sought in vain; the first try sets the clock back, later ones do not.
    tried: int = -1
    #: Workers that jobs lost to serving pods.
    owed: dict[int, int] = {}
    #: Serving pods seen last time, waiting or running; None before the first decision.
    serving: tuple[str, ...] | None = None
    #: No growth before this time: serving demand has just changed.
    held_until: float = 0.0
    #: Room kept for serving pods.
    reservations: tuple[Reservation, ...] = ()
    #: When room was first ready for a pod that still waits.
    ready: dict[str, float] = {}


def reached(now: float, since: float, span_s: float) -> bool:
    """Whether *span_s* seconds have passed, to the resolution of the clock."""
    return now - since >= span_s - TICK_S


def admission_order(snap: Snapshot, admitted: tuple[int, ...]) -> list[int]:
    """The numbers of all jobs that run, oldest admission first.

    Jobs out of view keep their place; jobs that somebody else started come by the time of their start.
    """
    table, jobs = snap.table, snap.jobs
    known = np.array(admitted, np.int64)
    slots = table.find(known)
    known = known[(slots >= 0) & (table.count[slots] > 0)]
    strangers = (jobs.count > 0) & ~np.isin(jobs.number, known)
    rows: Ints = strangers.nonzero()[0]
    started: Floats = jobs.started[rows]
    rows = rows[np.lexsort((jobs.number[rows], started))]
    return [*known.tolist(), *jobs.number[rows].tolist()]
