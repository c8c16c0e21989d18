"""What the engine asks of the shell around it."""

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
    """Run the policy on this snapshot and come back with `Decided` or `DecideFailed` of the same revision."""

    revision: int
    snapshot: Snapshot
    policy: Any
    perf: Beliefs
    state: Any

    def detached(self) -> Decide:
        """The same question on copies that later events do not change, for a policy that runs beside the engine."""
        return msgspec.structs.replace(self, snapshot=self.snapshot.detached(), perf=self.perf.copy())


class Apply(msgspec.Struct, frozen=True, kw_only=True):
    """Carry out these operations; what happens comes back as events."""

    plan: Plan


class BindPods(msgspec.Struct, frozen=True, kw_only=True):
    """Serving pods have room here."""

    binds: tuple[Bind, ...]


class StopStray(msgspec.Struct, frozen=True, kw_only=True):
    """The backend runs what it should not: jobs that are over, unknown, or of an old generation."""

    number: tuple[int, ...]


class JobsEnded(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs are over; the engine forgets them after this."""

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
    #: How far it came; `reported` and `resized` as in the job table.
    steps_done: Floats
    reported: Floats
    resized: Floats

    def last_step(self, row: int) -> float | None:
        """How far the job in *row* came; None where it never told."""
        steps = self.steps_done.item(row)
        return steps if steps > 0 or self.reported.item(row) > self.resized.item(row) else None


class Wake(msgspec.Struct, frozen=True, kw_only=True):
    """Send `Tick` at this time, unless a later `Wake` names another one."""

    at: float


class Faulted(msgspec.Struct, frozen=True, kw_only=True):
    """The engine failed on an event, or on its own work after events: a bug. What it did there was undone.

    The engine goes on as if the event had not happened; see `engine.faults`. A shell keeps all of this for a report.
    """

    #: The type of the event; or Alarms, Drains, Operations, Learning, Decision; or Engine, where a second try worked.
    kind: str
    #: The event, or that part of it that failed: the rest counts.
    event: Event | None = None
    #: Which event of the call of `handle` it was; -1 for the engine's own work.
    position: int = -1
    revision: int
    #: Numbers of the jobs concerned, as far as they are known.
    number: tuple[int, ...] = ()
    error: str
    traceback: str


#: Every `Faulted.kind`.
FAULT_KINDS = (
    *(kind.__name__ for kind in get_args(Event)),
    *("Alarms", "Drains", "Operations", "Learning", "Decision", "Engine"),
)

Command: TypeAlias = Decide | Apply | BindPods | StopStray | JobsEnded | Wake | Faulted
