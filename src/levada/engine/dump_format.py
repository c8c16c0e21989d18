"""The form in which an engine is dumped. Fields go by their names; see `persist` for what versions make of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from levada.core.cluster import Device, Foreign, Node
from levada.core.decision import Reservation
from levada.core.queue import Queue
from levada.core.types import Bools, Floats, Ints
from levada.perf import EstimatorState


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs on each device; sums per node are computed from it."""

    owner: Ints
    index: Ints
    claimed: Bools
    rows: Ints


class Machines(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster."""

    types: tuple[str, ...]
    nodes: tuple[Node, ...]
    lost: Bools
    cordoned: Bools
    draining: frozenset[int] = frozenset()
    #: Number of the node and id of each device: other versions may number devices otherwise.
    devices: tuple[tuple[int, str], ...]
    #: Held devices that no node reports, by number of the node.
    absent: Mapping[int, tuple[Device, ...]] = {}
    #: What others use, by column.
    by_node: Mapping[str, Ints] = {}
    by_device: Mapping[str, Ints] = {}


class Jobs(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that are not over; a place in a column is a slot."""

    ints: Mapping[str, Ints]
    floats: Mapping[str, Floats]
    preference: Ints
    ids: Mapping[int, str]
    next_number: int
    free: tuple[int, ...] | None = None
    #: Jobs that come after a job.
    dependents: Mapping[int, tuple[int, ...]] = {}
    claimed_rows: Mapping[int, Ints] = {}
    leaves: Mapping[int, int] = {}
    #: Restarts that cost no retry, of a version that had no column `retried`.
    displaced: Mapping[int, int] = {}


class EngineDump(msgspec.Struct, frozen=True, kw_only=True):
    """An engine between two events."""

    plain: Mapping[str, Any]
    policy: str
    policy_options: Mapping[str, Any] = {}
    policy_state: Any = None
    in_view: Ints | None = None
    options: Mapping[str, Any] = {}
    queues: tuple[Queue, ...] = ()
    prices: Mapping[str, float] = {}
    foreign: tuple[Foreign, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    #: Names by what they are of; columns hold their places in these lists.
    names: Mapping[str, tuple[str, ...]] = {}
    machines: Machines
    jobs: Jobs
    target: Places
    held: Places
    learned: EstimatorState = EstimatorState()
