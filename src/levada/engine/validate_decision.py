"""Check that a decision is well formed: user-defined policies can return anything."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from levada.core.assignment import DEVICE, INDEX, MILLI, NODE, SLOT
from levada.core.decision import PLACE_COLUMNS, Bind, Decision, Reservation
from levada.core.inventory import UNLIMITED
from levada.core.types import WHOLE
from levada.tables.cluster_state import ClusterState


def shape_fault(world: ClusterState, decision: Any) -> str | None:
    """The first error in the form of a decision, or None. The invariants check its contents."""
    if not isinstance(decision, Decision):
        return "it is not a Decision"
    columns: list[Any] = [decision.number, decision.type, decision.count, decision.reason, decision.evidence]
    if decision.rank is not None:
        columns.append(decision.rank)
    if decision.batch is not None:
        columns.append(decision.batch)
    shape = getattr(decision.number, "shape", ())
    for column in columns:
        if not isinstance(column, np.ndarray) or column.dtype.kind != "i" or column.shape != shape or len(shape) != 1:
            return "its columns must be integer arrays of one length"
    if not is_time(decision.wake_at) or not is_time(decision.heed_at):
        return "its wake_at or heed_at is not a number of seconds"
    binds: Any = decision.binds
    reservations: Any = decision.reservations
    if not isinstance(binds, tuple) or not isinstance(reservations, tuple):
        return "its binds or reservations are not tuples"
    if (binds or reservations) and not _are_valid(world, decision):
        return "its binds or reservations name unknown nodes or devices, or invalid amounts"
    return None if decision.places is None else _places_fault(world, decision, decision.places, len(decision.number))


def _are_valid(world: ClusterState, decision: Any) -> bool:
    """Whether all reservations and binds of a decision name existing nodes and devices, and valid amounts."""
    nodes, devices = len(world.inventory.nodes), len(world.inventory.node_of)
    reservations, binds = decision.reservations, decision.binds
    valid = all(isinstance(room, Reservation) and 0 <= room.node < nodes for room in reservations)
    valid = valid and all(isinstance(room.id, str) and is_time(room.expires) for room in reservations)
    valid = valid and all(
        0 <= device < devices and 0 <= milli <= WHOLE and 0 <= memory < UNLIMITED
        for room in reservations
        for device, milli, memory in room.devices
    )
    valid = valid and all(0 <= room.cpu < UNLIMITED and 0 <= room.memory < UNLIMITED for room in reservations)
    return valid and all(isinstance(bind, Bind) and 0 <= bind.node < nodes and bind.device < devices for bind in binds)


def is_time(value: object) -> bool:
    """Whether *value* is a number of seconds; infinity counts."""
    # The first check is for speed: it is nearly always true.
    return (type(value) is float or isinstance(value, (float, int))) and not math.isnan(value)


def _is_column(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind == "i"


def _places_fault(world: ClusterState, decision: Any, places: Any, count: int) -> str | None:
    inventory = world.inventory
    table_of_places = isinstance(places, np.ndarray) and places.ndim == 2 and places.shape[0] == PLACE_COLUMNS
    if not table_of_places or places.dtype.kind != "i" or decision.placed is None or not _is_column(decision.placed):
        return "its places must be an integer table, with the placed rows as a column"
    if ((decision.placed < 0) | (decision.placed >= count)).any():
        return "its column placed names rows that do not exist"
    known = (places[SLOT] >= 0) & (places[SLOT] < count) & (places[NODE] >= 0) & (places[NODE] < len(inventory.nodes))
    known &= (places[DEVICE] >= -1) & (places[DEVICE] < len(inventory.node_of)) & (abs(places[INDEX]) < 1 << 24)
    if not known.all():
        return "its places name rows, nodes or devices that do not exist"
    on_device = places[:, places[DEVICE] >= 0]
    if (inventory.node_of[on_device[DEVICE]] != on_device[NODE]).any():
        return "its places name devices of other nodes"
    parts = places[MILLI]
    if ((parts < 0) | (parts > WHOLE) | ((parts > 0) != (places[DEVICE] >= 0))).any():
        return "each place must have both a device and its share (milli), or neither"
    return None
