"""The format of an engine dump: fields by name.

See `persist` for compatibility.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from levada.core.cluster import Device, Foreign, Node
from levada.core.decision import Reservation
from levada.core.queue import Queue
from levada.core.types import Bools, Floats, Ints
from levada.perf import EstimatorState


class PlacesDump(msgspec.Struct, frozen=True, kw_only=True):
    """A device assignment; sums per node are recomputed."""

    owner: Ints
    index: Ints
    claimed: Bools
    rows: Ints


class MachinesDump(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster."""

    types: tuple[str, ...]
    nodes: tuple[Node, ...]
    lost: Bools
    cordoned: Bools
    draining: frozenset[int] = frozenset()
    #: None in dumps that do not distinguish cordons of the operator from those of the backend.
    cordoned_by_operator: frozenset[int] | None = None
    #: Classes of jobs, by number.
    classes: tuple[str, ...] = ("",)
    #: Node number and id of each device: other versions may number devices differently.
    devices: tuple[tuple[int, str], ...]
    #: Held devices that no node reports, by number of the node.
    absent: Mapping[int, tuple[Device, ...]] = {}
    #: Foreign use and reservations, by column.
    by_node: Mapping[str, Ints] = {}
    by_device: Mapping[str, Ints] = {}


class JobsDump(msgspec.Struct, frozen=True, kw_only=True):
    """Active jobs; columns are indexed by slot."""

    ints: Mapping[str, Ints]
    floats: Mapping[str, Floats]
    preference: Ints
    ids: Mapping[int, str]
    next_number: int
    free: tuple[int, ...] | None = None
    #: Numbers of the jobs that depend on a job.
    dependents: Mapping[int, tuple[int, ...]] = {}
    claimed_rows: Mapping[int, Ints] = {}
    leaves: Mapping[int, int] = {}
    #: Failed dependencies (id and phase), by the number of the waiting job.
    unmet: Mapping[int, tuple[str, int]] = {}
    #: Restarts that cost no retry, in dumps without a column `retried`.
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
    #: Lists of names by kind; columns contain indices into these lists.
    names: Mapping[str, tuple[str, ...]] = {}
    machines: MachinesDump
    jobs: JobsDump
    target: PlacesDump
    held: PlacesDump
    learned: EstimatorState = EstimatorState()
