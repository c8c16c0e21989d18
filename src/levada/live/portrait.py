"""The whole engine as a document that later versions can read: everything in it goes by its name.

What a version does not know of is left out, and what it has besides begins as in a new engine. What can be reckoned
from the rest (sums, orders, what is remembered for speed) is not in it. Numbers of phases, operations and reasons
mean the same for ever; where the meaning of something changes, `snapshot` has a step from the old form to the new.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from levada.core.cluster import Device, Foreign, Node
from levada.core.decision import Reservation
from levada.core.inventory import Inventory
from levada.core.job import Phase
from levada.core.jobtable import NEW_FLOATS, NEW_INTS, JobTable
from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS
from levada.core.names import Names
from levada.core.plane import DEVICE, Plane
from levada.core.queue import Queue
from levada.core.types import Bools, Floats, Ints
from levada.core.world import World
from levada.engine import Engine, Options
from levada.engine.state import State
from levada.errors import LevadaError
from levada.perf import Estimator, EstimatorState
from levada.plugins import find_policy
from levada.policies.queued import queued

_log = logging.getLogger(__name__)

#: Plain values of `State` that a portrait has by name.
PLAIN = (
    *("now", "revision", "seed", "submitted", "ended", "refused", "stale_results", "renumbered"),
    *("dirty", "turnover", "acked", "left_out", "heed_at", "fills", "deciding", "asked_policy", "last_decided"),
    *("rejections", "last_rejection", "next_try", "policy_wake", "guard_wake", "next_alarm", "last_rung", "told_wake"),
    *("may_issue", "unsent", "may_cycle"),
)
_NAMES = ("workloads", "entities", "queue_names", "tags")
_NODE_COLUMNS = ("foreign_cpu", "foreign_memory", "reserved_cpu", "reserved_memory")
_DEVICE_COLUMNS = ("foreign", "foreign_gpu_memory", "reserved", "reserved_gpu_memory")


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Who is where; sums per node are reckoned."""

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
    #: Devices that somebody holds and no node has, by number of the node.
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


class Portrait(msgspec.Struct, frozen=True, kw_only=True):
    """An engine between two turns."""

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


# --- from an engine ---------------------------------------------------------------------------------------------------


def portrait(state: State) -> Portrait:
    """*state* as it is; columns are shared with it, so that it must be written before the next turn."""
    state.learn()
    if not isinstance(state.perf, Estimator):
        raise LevadaError("only what an Estimator believes can be kept")
    world = state.world
    return Portrait(
        plain={name: getattr(state, name) for name in PLAIN},
        policy=state.policy_named,
        policy_options=state.policy_options,
        policy_state=state.policy_state,
        in_view=state.in_view,
        options=msgspec.to_builtins(state.options),
        queues=tuple(world.queues.values),
        prices=world.prices,
        foreign=tuple(world.foreign.values()),
        reservations=tuple(state.reservations.values()),
        names={name: tuple(getattr(world, name)) for name in _NAMES},
        machines=_machines(world.inventory),
        jobs=_jobs(state),
        target=_places(world.target),
        held=_places(world.held),
        learned=state.perf.state(),
    )


def _machines(inventory: Inventory) -> Machines:
    return Machines(
        types=tuple(inventory.types),
        nodes=tuple(inventory.node_values),
        lost=inventory.lost,
        cordoned=inventory.cordoned,
        draining=inventory.draining,
        devices=tuple(inventory.device_keys()),
        absent={node: tuple(devices) for node, devices in inventory._absent.items()},
        by_node={name: getattr(inventory, name) for name in _NODE_COLUMNS},
        by_device={name: getattr(inventory, name) for name in _DEVICE_COLUMNS},
    )


def _jobs(state: State) -> Jobs:
    world, table = state.world, state.world.table
    return Jobs(
        ints={name: getattr(table, name) for name in INT_COLUMNS},
        floats={name: getattr(table, name) for name in FLOAT_COLUMNS},
        preference=table.preference,
        ids=world.ids,
        next_number=world.next_number,
        free=table.free_slots,
        dependents={number: tuple(after) for number, after in state.dependents.items()},
        claimed_rows=state.claimed_rows,
        leaves=state.leaves,
    )


def _places(plane: Plane) -> Places:
    return Places(owner=plane.owner, index=plane.index, claimed=plane.claimed, rows=plane.rows)


# --- to an engine -----------------------------------------------------------------------------------------------------


def revived(kept: Portrait) -> Engine:
    """The engine that *kept* shows; raises all kinds of errors where that cannot be."""
    engine = Engine(make_policy=find_policy)
    state, world = engine.state, engine.state.world
    for name, value in kept.plain.items():
        if name in PLAIN:
            setattr(state, name, value)
    _take_policy(state, kept)
    state.options = _options(kept.options)
    if kept.in_view is not None:
        state.in_view = kept.in_view
    for name in _NAMES:
        if name in kept.names:
            setattr(world, name, Names(kept.names[name]))
    moved = _take_machines(world, kept.machines)
    _take_jobs(state, kept.jobs)
    world.set_queues(kept.queues)
    world.prices = dict(kept.prices)
    world.foreign = {each.id: each for each in kept.foreign}
    devices, nodes = len(world.inventory.node_of), len(world.inventory.nodes)
    world.target, world.held = (_plane(each).remapped(moved, devices, nodes) for each in (kept.target, kept.held))
    for plane in (world.target, world.held):
        plane.cpu, plane.memory = world.use_of(plane)
    if np.array_equal(moved, np.arange(devices)):
        # They name devices by number; where those are others by now, the policy asks for the room again.
        state.reservations = {each.id: each for each in kept.reservations}
    for rows in state.claimed_rows.values():
        on_device = rows[DEVICE] >= 0
        rows[DEVICE][on_device] = moved[rows[DEVICE][on_device]]
    state.perf = Estimator.restore(kept.learned)
    return engine


def _take_policy(state: State, kept: Portrait) -> None:
    """The policy that decided, with its memory; another one where there is none of that name any more."""
    try:
        policy = queued(find_policy(kept.policy, kept.policy_options))
    except Exception as missing:
        other = state.policy.name
        _log.error("the policy %s cannot be had (%s): %s decides until you set one", kept.policy, missing, other)
        state.policy_state = state.policy.initial(state.seed)
        return
    state.policy, state.policy_named, state.policy_options = policy, kept.policy, kept.policy_options
    try:
        state.policy_state = policy.restored(kept.policy_state)
    except (msgspec.ValidationError, TypeError, ValueError) as other:
        _log.warning("the policy %s begins anew, for it remembers other things in this version: %s", kept.policy, other)
        state.policy_state = policy.initial(state.seed)


def _options(kept: Mapping[str, Any]) -> Options:
    """Options as they were; one that this version does not have, or not with that value, is as in a new engine."""
    options = Options()
    for name, value in kept.items():
        if name in Options.__struct_fields__:
            try:
                options = msgspec.convert({**msgspec.to_builtins(options), name: value}, Options)
            except (msgspec.ValidationError, ValueError) as bad:
                _log.warning("the setting %s=%s is not kept: %s", name, value, bad)
    return options


def _take_machines(world: World, kept: Machines) -> Ints:
    """The cluster as it was; the number of each device by now, -1 where it is gone."""
    inventory = world.inventory = Inventory(types=Names(kept.types))
    inventory.put(kept.nodes)
    inventory._absent = {node: list(devices) for node, devices in kept.absent.items()}
    inventory._lay_out()
    inventory.lost, inventory.cordoned = kept.lost.copy(), kept.cordoned.copy()
    inventory.draining = kept.draining
    number_of = {key: number for number, key in enumerate(inventory.device_keys())}
    moved = np.array([number_of.get(key, -1) for key in kept.devices], np.int64)
    stays = moved >= 0
    for name in _NODE_COLUMNS:
        if name in kept.by_node:
            setattr(inventory, name, kept.by_node[name].copy())
    for name in _DEVICE_COLUMNS:
        column = np.zeros(len(inventory.node_of), np.int64)
        if name in kept.by_device:
            column[moved[stays]] = kept.by_device[name][stays]
        setattr(inventory, name, column)
    inventory.changed()
    return moved


def _take_jobs(state: State, kept: Jobs) -> None:
    world = state.world
    types, capacity = kept.preference.shape
    table = world.table = JobTable(types, capacity)
    table.ints[:], table.floats[:] = NEW_INTS, NEW_FLOATS
    table.number[:] = -1
    for columns, known in ((kept.ints, INT_COLUMNS), (kept.floats, FLOAT_COLUMNS)):
        for name, column in columns.items():
            if name in known:
                getattr(table, name)[:] = column
    _derive_missing(table, kept)
    table.preference[:] = kept.preference
    table.list_anew(kept.free)
    table.add_types(len(world.inventory.types))
    world.ids = dict(kept.ids)
    world.numbers = {job: number for number, job in kept.ids.items()}
    world.next_number = kept.next_number
    state.dependents = {number: list(after) for number, after in kept.dependents.items()}
    state.leaves = dict(kept.leaves)
    state.claimed_rows = {number: rows.copy() for number, rows in kept.claimed_rows.items()}


def _derive_missing(table: JobTable, kept: Jobs) -> None:
    """Columns that the version which wrote *kept* did not have, from those it had."""
    for name, source in (("own_min", "min"), ("own_max", "max")):
        if name not in kept.ints:
            getattr(table, name)[:] = getattr(table, source)
    if "retried" not in kept.ints:
        free = np.array([kept.displaced.get(number, 0) for number in table.number.tolist()], np.int64)
        table.retried[:] = np.maximum(table.restarts - free, 0)
    if "ran" not in kept.ints:
        table.ran[:] = np.where(table.phase == Phase.RUNNING, table.generation, 0)


def _plane(kept: Places) -> Plane:
    plane = Plane(len(kept.owner), 0)
    plane.owner[:], plane.index[:], plane.claimed[:] = kept.owner, kept.index, kept.claimed
    plane.rows = kept.rows.copy()
    return plane
