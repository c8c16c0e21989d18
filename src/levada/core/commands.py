"""Commands of the engine to the shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import msgspec

from levada.core.decision import Bind
from levada.core.events import Event
from levada.core.plan import Plan
from levada.core.types import Floats, Ints

if TYPE_CHECKING:
    from levada.perf import Beliefs
    from levada.tables.snapshot import Snapshot


class Decide(msgspec.Struct, frozen=True, kw_only=True):
    """Run the policy on this snapshot and answer with `Decided` or `DecideFailed` of the same revision."""

    revision: int
    snapshot: Snapshot
    policy: Any
    perf: Beliefs
    state: Any

    def detached(self) -> Decide:
        """The same command with copies, for a policy that runs in another thread than the engine."""
        return msgspec.structs.replace(self, snapshot=self.snapshot.detached(), perf=self.perf.copy())


class Apply(msgspec.Struct, frozen=True, kw_only=True):
    """Carry out these operations; the results return as events."""

    plan: Plan


class BindPods(msgspec.Struct, frozen=True, kw_only=True):
    """Bind serving pods to nodes."""

    binds: tuple[Bind, ...]


class StopStray(msgspec.Struct, frozen=True, kw_only=True):
    """Stop jobs that the backend must not run: ended, unknown, or of an old generation."""

    number: tuple[int, ...]


class JobsEnded(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs have ended; the engine forgets them."""

    number: Ints
    id: tuple[str, ...]
    #: Succeeded, Failed or Cancelled.
    phase: Ints
    reason: Ints
    submitted: Floats
    first_started: Floats
    finished: float
    waiting_s: Floats
    running_s: Floats
    gpu_seconds: Floats
    restarts: Ints
    resizes: Ints
    moves: Ints
    #: Last known step; `reported` and `resized` as in the job table.
    steps_done: Floats
    reported: Floats
    resized: Floats

    def last_step(self, row: int) -> float | None:
        """The last step of the job in *row*; None if it never reported progress."""
        steps = self.steps_done.item(row)
        return steps if steps > 0 or self.reported.item(row) > self.resized.item(row) else None


class Wake(msgspec.Struct, frozen=True, kw_only=True):
    """Send `Tick` at this time; a later `Wake` replaces it."""

    at: float


class Faulted(msgspec.Struct, frozen=True, kw_only=True):
    """The engine failed on an event, or on its own work after events, which is a bug; the step was rolled back.

    The engine continues as if the event had not happened; see `engine.faults`. The shell stores it for a bug report.
    """

    #: The type of the event; or Alarms, Drains, Operations, Learning, Decision; or Engine if the second attempt worked.
    kind: str
    #: The event, or the part of it that failed; the rest was applied.
    event: Event | None = None
    #: Index of the event in the call of `handle`; -1 for the engine's own work.
    position: int = -1
    revision: int
    #: Numbers of the jobs concerned, if known.
    number: tuple[int, ...] = ()
    error: str
    traceback: str


#: Every `Faulted.kind`.
FAULT_KINDS = (
    *(kind.__name__ for kind in get_args(Event)),
    *("Alarms", "Drains", "Operations", "Learning", "Decision", "Engine"),
)

Command: TypeAlias = Decide | Apply | BindPods | StopStray | JobsEnded | Wake | Faulted
