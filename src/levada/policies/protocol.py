"""What a policy is."""

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
    """What a policy must know of a job; the engine says so plainly where it is missing."""

    NOTHING = 0
    #: How its speed grows with its size.
    RATE = auto()
    #: How much work is left.
    REMAINING = auto()
    #: How far it is, where anybody can tell.
    PROGRESS = auto()
    DEADLINE = auto()


class Cadence(msgspec.Struct, frozen=True, kw_only=True):
    """When a policy is asked: after events (0), or at multiples of a period."""

    grid_s: float = 0.0
    #: Events alone do not matter to it: it is asked when its own `wake_at` has come.
    on_events: bool = True
    #: That operations were done, as it wished, matters to a policy that decides by node. Others are asked then only if
    #: there were jobs that they could not touch meanwhile.
    on_acks: bool = True


class Guards(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the engine's guards a policy wants around it."""

    min_run: bool = True
    cooldown: bool = True
    #: Leave a job alone that would end before a restart pays.
    payback: bool = True


ON_EVENTS = Cadence()
ALL_GUARDS = Guards()
NO_GUARDS = Guards(min_run=False, cooldown=False, payback=False)


class Policy(Protocol[S]):
    """Decides, given one moment and its own state; same input, same output."""

    name: ClassVar[str]
    needs: ClassVar[Needs]
    cadence: ClassVar[Cadence]
    guards: ClassVar[Guards]

    def initial(self, seed: int) -> S:
        """The state before the first decision; None for most."""
        ...

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: S) -> tuple[Decision, S]:
        """What every job in view should have, and the state for the next time."""
        ...


AnyPolicy = Policy[Any]


class RoundStats(msgspec.Struct, frozen=True, kw_only=True):
    """How the rounds of a policy went so far."""

    round_s: float
    #: When the next round is due: another value, another round. None: every decision begins one.
    next_round: float | None = None
    #: Jobs that kept their devices from one round to the next, and those that could have.
    lease_extensions: int = 0
    lease_opportunities: int = 0


@runtime_checkable
class RoundBased(Protocol[S_contra]):
    """A policy that decides in rounds and counts them; optional."""

    def round_stats(self, state: S_contra) -> RoundStats:
        """The rounds up to *state*."""
        ...


def decides_by_node(policy: AnyPolicy) -> bool:
    """Whether the policy says where workers go, not only how many: such a class has `by_node = True`."""
    return bool(getattr(policy, "by_node", False))


def gives_more(policy: AnyPolicy) -> bool:
    """Whether the policy gives jobs more than they need where it can: such a class has `elastic = True`."""
    return bool(getattr(policy, "elastic", False))


def knows_speeds(policy: AnyPolicy) -> bool:
    """Whether the policy compares the speeds of GPU types, so that jobs without a preference take the fastest.

    A policy that needs rates or lengths does, unless it has `aware = False`.
    """
    return bool(getattr(policy, "aware", policy.needs & (Needs.RATE | Needs.REMAINING)))
