"""The interface of a policy."""

from __future__ import annotations

from enum import Flag, auto
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import msgspec

from levada.core.decision import Decision
from levada.perf.model import ThroughputModel
from levada.tables.snapshot import Snapshot

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)


class Needs(Flag):
    """Job information that a policy requires; the engine reports what is missing."""

    NOTHING = 0
    #: Speed by number of workers.
    RATE = auto()
    #: Remaining work.
    REMAINING = auto()
    #: Completed steps, if known.
    PROGRESS = auto()
    DEADLINE = auto()


class Cadence(msgspec.Struct, frozen=True, kw_only=True):
    """When a policy is called: after events (grid_s = 0), or every grid_s seconds."""

    grid_s: float = 0.0
    #: False: events alone do not call the policy, only its own `wake_at`.
    on_events: bool = True
    #: Call the policy when operations complete, as policies that decide by node require. False: only if some jobs were
    #: busy with an operation and therefore not in view.
    on_acks: bool = True


class Guards(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's guards that apply to a policy's decisions."""

    min_run: bool = True
    cooldown: bool = True
    #: Do not change a job that would end before a restart pays off.
    payback: bool = True


ON_EVENTS = Cadence()
ALL_GUARDS = Guards()
NO_GUARDS = Guards(min_run=False, cooldown=False, payback=False)


class Policy(Protocol[S]):
    """A pure decision function with explicit state: same input, same output."""

    name: ClassVar[str]
    needs: ClassVar[Needs]
    cadence: ClassVar[Cadence]
    guards: ClassVar[Guards]

    def initial(self, seed: int) -> S:
        """The state before the first decision; None for a stateless policy."""
        ...

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: S) -> tuple[Decision, S]:
        """The target of every job in view, and the state for the next call."""
        ...


AnyPolicy = Policy[Any]


class RoundStats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the rounds of a policy so far."""

    round_s: float
    #: When the next round is due; a new value marks a new round. None: every decision starts one.
    next_round: float | None = None
    #: Jobs that kept their devices from one round to the next, and jobs that could have.
    lease_extensions: int = 0
    lease_opportunities: int = 0


@runtime_checkable
class RoundBased(Protocol[S_contra]):
    """An optional interface: a policy that decides in rounds and counts them."""

    def round_stats(self, state: S_contra) -> RoundStats:
        """The rounds up to *state*."""
        ...


def decides_by_node(policy: AnyPolicy) -> bool:
    """Whether the policy also places workers; its class has `by_node = True`."""
    return bool(getattr(policy, "by_node", False))


def gives_more(policy: AnyPolicy) -> bool:
    """Whether the policy gives jobs more than they need; `elastic = True`."""
    return bool(getattr(policy, "elastic", False))


def knows_speeds(policy: AnyPolicy) -> bool:
    """Whether the policy compares the speeds of GPU types.

    If so, jobs without a preference take their fastest type. Policies that need rates or remaining work do, unless they
    set `aware = False`.
    """
    return bool(getattr(policy, "aware", policy.needs & (Needs.RATE | Needs.REMAINING)))
