"""Dump and load a whole engine.

Fields are stored by name, so that later versions can read them.

A version ignores unknown fields; missing ones have the values of a new engine. Computed values (sums, orders, caches)
are not dumped. Numbers of phases, operations and reasons never change their meaning; `live.snapshot` migrates dumps if
the meaning of anything else changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from levada.core.assignment import DEVICE, Assignment
from levada.core.foreign_use import ForeignUse
from levada.core.inventory import Inventory
from levada.core.job import Phase
from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS
from levada.core.names import Names
from levada.core.types import Ints
from levada.engine.dump_format import EngineDump, JobsDump, MachinesDump, PlacesDump
from levada.engine.engine import Engine
from levada.engine.options import Options
from levada.engine.queries import Queries
from levada.engine.state import MakePolicy, State
from levada.engine.state_fields import CACHES, PARTS, FieldKind, values
from levada.errors import LevadaError
from levada.perf import Estimator
from levada.policies.queued import queued
from levada.tables.cluster_state import ClusterState
from levada.tables.job_table import NEW_FLOATS, NEW_INTS, JobTable

_NAMES = ("workloads", "entities", "queue_names", "tags")
_NODE_COLUMNS = ("foreign_cpu", "foreign_memory", "reserved_cpu", "reserved_memory")
_DEVICE_COLUMNS = ("foreign", "foreign_gpu_memory", "reserved", "reserved_gpu_memory")


class Loaded(NamedTuple):
    """An engine from a dump."""

    engine: Engine
    #: Why the stored policy could not be loaded and the default one is used; empty if it was loaded.
    missing_policy: str
    #: Other values that this version could not load, as sentences for the log.
    warnings: tuple[str, ...]


# --- fields for simulator checkpoints of the same version -------------------------------------------------------------


def fields(query: Queries) -> dict[str, object]:
    """All fields of an engine, not copied: a codec that follows references preserves shared objects."""
    kinds = [kind for kind in FieldKind if kind is not FieldKind.CACHE]
    return dict(values(query._state, *kinds))


def from_fields(known: Mapping[str, object]) -> Engine:
    """The engine with these `fields`; raises TypeError if some are missing or unknown."""
    state = State.__new__(State)
    vars(state).update(known, **{name: empty() for name, empty in CACHES.items()})
    if vars(state).keys() != PARTS.keys():
        raise TypeError("these are not the fields of an engine")
    return Engine.of(state)


# --- dump -------------------------------------------------------------------------------------------------------------


def dump(engine: Engine) -> EngineDump:
    """Dump *engine*. Columns are shared with it, so the dump must be written before the next event."""
    state = engine._state
    state.learn()
    if not isinstance(state.perf, Estimator):
        raise LevadaError("cannot dump the engine: its throughput model is not an Estimator")
    world = state.world
    return EngineDump(
        plain=dict(values(state, FieldKind.VALUE)),
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


def _machines(inventory: Inventory) -> MachinesDump:
    return MachinesDump(
        types=tuple(inventory.types),
        nodes=tuple(inventory.node_values),
        lost=inventory.lost,
        cordoned=inventory.cordoned,
        draining=inventory.draining,
        cordoned_by_operator=inventory.cordoned_by_operator,
        classes=tuple(inventory.classes),
        devices=tuple(inventory.device_keys()),
        absent=inventory.absent_devices,
        by_node={name: getattr(inventory, name) for name in _NODE_COLUMNS},
        by_device={name: getattr(inventory, name) for name in _DEVICE_COLUMNS},
    )


def _jobs(state: State) -> JobsDump:
    world, table = state.world, state.world.table
    return JobsDump(
        ints={name: getattr(table, name) for name in INT_COLUMNS},
        floats={name: getattr(table, name) for name in FLOAT_COLUMNS},
        preference=table.preference,
        ids=world.ids,
        next_number=world.next_number,
        free=table.free_slots,
        dependents={number: tuple(dependents) for number, dependents in state.dependents.items()},
        claimed_rows=state.claimed_rows,
        leaves=state.leaves,
        unmet=state.unmet,
    )


def _places(plane: Assignment) -> PlacesDump:
    return PlacesDump(owner=plane.owner, index=plane.index, claimed=plane.claimed, rows=plane.rows)


# --- load -------------------------------------------------------------------------------------------------------------


def load(stored: EngineDump, make_policy: MakePolicy) -> Loaded:
    """The engine that was dumped; an invalid dump can raise any exception."""
    engine = Engine(make_policy=make_policy)
    state, world = engine._state, engine._state.world
    for name, value in stored.plain.items():
        if PARTS.get(name) is FieldKind.VALUE:
            setattr(state, name, value)
    missing, warnings = _load_policy(state, stored)
    warnings += _load_options(state, stored.options)
    if stored.in_view is not None:
        state.in_view = stored.in_view.copy()  # kernels are compiled for writable arrays
    for name in _NAMES:
        if name in stored.names:
            setattr(world, name, Names(stored.names[name]))
    moved = _load_machines(world, stored.machines)
    _load_jobs(state, stored.jobs)
    world.set_queues(stored.queues)
    world.prices = dict(stored.prices)
    world.foreign = ForeignUse(stored.foreign)
    devices, nodes = len(world.inventory.node_of), len(world.inventory.nodes)
    world.target, world.held = (
        _assignment(places).remapped(moved, devices, nodes) for places in (stored.target, stored.held)
    )
    for plane in (world.target, world.held):
        plane.nodes[:] = world.use_of(plane)
    if np.array_equal(moved, np.arange(devices)):
        # Reservations contain device numbers; if these have changed, the next decision reserves again.
        state.reservations = {reservation.id: reservation for reservation in stored.reservations}
    for rows in state.claimed_rows.values():
        on_device = rows[DEVICE] >= 0
        rows[DEVICE][on_device] = moved[rows[DEVICE][on_device]]
    state.perf = Estimator.restore(stored.learned)
    return Loaded(engine, missing, tuple(warnings))


def _load_policy(state: State, stored: EngineDump) -> tuple[str, list[str]]:
    """Load the policy and its state; returns why the policy cannot be loaded, and warnings."""
    try:
        policy = queued(state.make_policy(stored.policy, stored.policy_options))
    except Exception as error:
        default = state.policy.name
        state.policy_state = state.policy.initial(state.seed)
        return f"cannot load policy {stored.policy}: {error}; {default} decides until you set one", []
    state.policy, state.policy_named, state.policy_options = policy, stored.policy, stored.policy_options
    try:
        state.policy_state = policy.restored(stored.policy_state)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        state.policy_state = policy.initial(state.seed)
        return "", [f"resetting policy {stored.policy}: this version cannot read its state: {error}"]
    return "", []


def _load_options(state: State, stored: Mapping[str, Any]) -> list[str]:
    """Load options; unknown names and invalid values are replaced by defaults. Returns warnings."""
    options, warnings = Options(), []
    for name, value in stored.items():
        if name in Options.__struct_fields__:
            try:
                options = msgspec.convert({**msgspec.to_builtins(options), name: value}, Options)
            except (msgspec.ValidationError, ValueError) as error:
                warnings.append(f"ignoring setting {name}={value}: {error}")
    state.options = options
    return warnings


def _load_machines(world: ClusterState, stored: MachinesDump) -> Ints:
    """Load the cluster; returns the new number of each device, -1 for missing ones."""
    inventory = world.inventory = Inventory(types=Names(stored.types))
    inventory.classes = Names(stored.classes)
    nodes, cordoned = stored.nodes, stored.cordoned_by_operator
    if cordoned is None:
        # Only operators could cordon nodes, and the nodes themselves said so.
        nodes = tuple(msgspec.structs.replace(node, cordoned=False) for node in nodes)
        cordoned = frozenset(stored.cordoned.nonzero()[0].tolist())
    inventory.cordoned_by_operator, inventory.draining = cordoned, stored.draining
    inventory.put(nodes)
    inventory.add_absent(stored.absent)
    inventory.lost = stored.lost.copy()
    number_of = {key: number for number, key in enumerate(inventory.device_keys())}
    moved = np.array([number_of.get(key, -1) for key in stored.devices], np.int64)
    stays = moved >= 0
    for name in _NODE_COLUMNS:
        if name in stored.by_node:
            setattr(inventory, name, stored.by_node[name].copy())
    for name in _DEVICE_COLUMNS:
        column = np.zeros(len(inventory.node_of), np.int64)
        if name in stored.by_device:
            column[moved[stays]] = stored.by_device[name][stays]
        setattr(inventory, name, column)
    inventory.changed()
    return moved


def _load_jobs(state: State, stored: JobsDump) -> None:
    world = state.world
    types, capacity = stored.preference.shape
    table = world.table = JobTable(types, capacity)
    table.ints[:], table.floats[:] = NEW_INTS, NEW_FLOATS
    table.number[:] = -1
    for columns, known in ((stored.ints, INT_COLUMNS), (stored.floats, FLOAT_COLUMNS)):
        for name, column in columns.items():
            if name in known:
                getattr(table, name)[:] = column
    _derive_missing(table, stored)
    table.preference[:] = stored.preference
    table.rebuild_index(stored.free)
    table.add_types(len(world.inventory.types))
    world.ids = dict(stored.ids)
    world.numbers = {job: number for number, job in stored.ids.items()}
    world.next_number = stored.next_number
    state.dependents = {number: list(dependents) for number, dependents in stored.dependents.items()}
    state.leaves, state.unmet = dict(stored.leaves), dict(stored.unmet)
    state.claimed_rows = {number: rows.copy() for number, rows in stored.claimed_rows.items()}


def _derive_missing(table: JobTable, stored: JobsDump) -> None:
    """Compute columns that an older version did not have."""
    for name, source in (("own_min", "min"), ("own_max", "max")):
        if name not in stored.ints:
            getattr(table, name)[:] = getattr(table, source)
    if "retried" not in stored.ints:
        free = np.array([stored.displaced.get(number, 0) for number in table.number.tolist()], np.int64)
        table.retried[:] = np.maximum(table.restarts - free, 0)
    if "ran" not in stored.ints:
        table.ran[:] = np.where(table.phase == Phase.RUNNING, table.generation, 0)


def _assignment(stored: PlacesDump) -> Assignment:
    plane = Assignment(len(stored.owner), 0)
    plane.owner[:], plane.index[:], plane.claimed[:] = stored.owner, stored.index, stored.claimed
    plane.rows = stored.rows.copy()
    return plane
