"""What the engine asks of the shell around it."""

from __future__ import annotations

from typing import Any, TypeAlias, get_args

import msgspec

from levada.core.decision import Bind
from levada.core.events import Event
from levada.core.plan import Plan
from levada.core.snapshot import Snapshot
from levada.core.types import Floats, Ints


class Decide(msgspec.Struct, frozen=True, kw_only=True):
    """Run the policy on this snapshot and come back with `Decided` or `DecideFailed` of the same revision."""

    revision: int
    snapshot: Snapshot
    policy: Any
    perf: Any
    state: Any

    def detached(self) -> Decide:
        """The same question on copies that later events do not change, for a policy that runs beside the engine."""
        perf = self.perf.copy() if hasattr(self.perf, "copy") else self.perf
        return msgspec.structs.replace(self, snapshot=self.snapshot.detached(), perf=perf)


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
