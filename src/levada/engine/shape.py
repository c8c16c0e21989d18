"""Whether a decision is well formed: a policy may be anybody's, and what it returns anything."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from levada.core.decision import PLACE_COLUMNS, Bind, Decision, Reservation
from levada.core.inventory import UNLIMITED
from levada.core.plane import DEVICE, INDEX, MILLI, NODE, SLOT
from levada.core.types import WHOLE
from levada.tables.world import World


def shape_fault(world: World, decision: Any) -> str | None:
    """What is wrong with the form of a decision, or None. What it says is for the invariants to judge."""
    if not isinstance(decision, Decision):
        return "it is not a decision"
    columns: list[Any] = [decision.number, decision.type, decision.count, decision.reason, decision.evidence]
    if decision.rank is not None:
        columns.append(decision.rank)
    if decision.batch is not None:
        columns.append(decision.batch)
    shape = getattr(decision.number, "shape", ())
    for column in columns:
        if not isinstance(column, np.ndarray) or column.dtype.kind != "i" or column.shape != shape or len(shape) != 1:
            return "its columns are not whole numbers of one length"
    if not is_time(decision.wake_at) or not is_time(decision.heed_at):
        return "its wake_at or heed_at is no time"
    binds: Any = decision.binds
    reservations: Any = decision.reservations
    if not isinstance(binds, tuple) or not isinstance(reservations, tuple):
        return "its binds or reservations are no tuple"
    if (binds or reservations) and not _rooms_exist(world, decision):
        return "it binds or reserves where nothing is"
    return None if decision.places is None else _places_fault(world, decision, decision.places, len(decision.number))


def _rooms_exist(world: World, decision: Any) -> bool:
    nodes, devices = len(world.inventory.nodes), len(world.inventory.node_of)
    kept = decision.reservations
    known = all(isinstance(each, Reservation) and 0 <= each.node < nodes for each in kept)
    known = known and all(isinstance(each.id, str) and is_time(each.expires) for each in kept)
    known = known and all(
        0 <= device < devices and 0 <= milli <= WHOLE and 0 <= memory < UNLIMITED
        for each in kept
        for device, milli, memory in each.devices
    )
    known = known and all(0 <= each.cpu < UNLIMITED and 0 <= each.memory < UNLIMITED for each in kept)
    bound = all(isinstance(each, Bind) and 0 <= each.node < nodes and each.device < devices for each in decision.binds)
    return known and bound


def is_time(value: object) -> bool:
    """Whether *value* is a number of seconds, perhaps infinite."""
    # By its type first: nearly always it is that, and a union would be made anew at each call.
    return (type(value) is float or isinstance(value, (float, int))) and not math.isnan(value)


def _is_column(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind == "i"


def _places_fault(world: World, decision: Any, places: Any, count: int) -> str | None:
    inventory = world.inventory
    table_of_places = isinstance(places, np.ndarray) and places.ndim == 2 and places.shape[0] == PLACE_COLUMNS
    if not table_of_places or places.dtype.kind != "i" or decision.placed is None or not _is_column(decision.placed):
        return "its places are not a table of whole numbers with the rows they speak of"
    if ((decision.placed < 0) | (decision.placed >= count)).any():
        return "its places are of rows that do not exist"
    known = (places[SLOT] >= 0) & (places[SLOT] < count) & (places[NODE] >= 0) & (places[NODE] < len(inventory.nodes))
    known &= (places[DEVICE] >= -1) & (places[DEVICE] < len(inventory.node_of)) & (abs(places[INDEX]) < 1 << 24)
    if not known.all():
        return "its places do not exist"
    on_device = places[:, places[DEVICE] >= 0]
    if (inventory.node_of[on_device[DEVICE]] != on_device[NODE]).any():
        return "its places name devices of other nodes"
    parts = places[MILLI]
    if ((parts < 0) | (parts > WHOLE) | ((parts > 0) != (places[DEVICE] >= 0))).any():
        return "its places take parts of no device, or devices without a part"
    return None
