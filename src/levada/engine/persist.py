"""Dump and load of a whole engine, by names that later versions can read.

A version ignores what it does not know, and what a dump lacks begins as in a new engine. What follows from the rest
(sums, orders, caches) is not dumped. Numbers of phases, operations and reasons never change their meaning; where the
meaning of something else changes, `live.snapshot` has a step from the old format to the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from levada.core.inventory import Inventory
from levada.core.job import Phase
from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS
from levada.core.names import Names
from levada.core.plane import DEVICE, Plane
from levada.core.types import Ints
from levada.engine.dump_format import EngineDump, Jobs, Machines, Places
from levada.engine.engine import Engine
from levada.engine.options import Options
from levada.engine.parts import CACHES, PARTS, Part, values
from levada.engine.state import MakePolicy, State
from levada.errors import LevadaError
from levada.perf import Estimator
from levada.policies.queued import queued
from levada.tables.jobtable import NEW_FLOATS, NEW_INTS, JobTable
from levada.tables.world import World

_NAMES = ("workloads", "entities", "queue_names", "tags")
_NODE_COLUMNS = ("foreign_cpu", "foreign_memory", "reserved_cpu", "reserved_memory")
_DEVICE_COLUMNS = ("foreign", "foreign_gpu_memory", "reserved", "reserved_gpu_memory")


class Loaded(NamedTuple):
    """An engine from a dump."""

    engine: Engine
    #: Why the policy that decided could not be loaded, so that the default one decides; empty where it was.
    missing_policy: str
    #: What else this version could not take over, in sentences for the log.
    warnings: tuple[str, ...]


# --- with all that it shares with others, for the same version --------------------------------------------------------


def fields(engine: Engine) -> dict[str, object]:
    """All that *engine* is made of, itself and not a copy: a codec that follows references keeps what is shared."""
    kinds = [kind for kind in Part if kind is not Part.CACHE]
    return dict(values(engine._state, *kinds))


def from_fields(known: Mapping[str, object]) -> Engine:
    """The engine of these `fields`; raises TypeError where some are missing or unknown."""
    state = State.__new__(State)
    vars(state).update(known, **{name: empty() for name, empty in CACHES.items()})
    if vars(state).keys() != PARTS.keys():
        raise TypeError("these are not the fields of an engine")
    return Engine.of(state)


# --- from an engine ---------------------------------------------------------------------------------------------------


def dump(engine: Engine) -> EngineDump:
    """*engine* as it is; columns are shared with it, so that the dump must be written before the next event."""
    state = engine._state
    state.learn()
    if not isinstance(state.perf, Estimator):
        raise LevadaError("only what an Estimator believes can be kept")
    world = state.world
    return EngineDump(
        plain=dict(values(state, Part.VALUE)),
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
        absent=inventory.absent_devices,
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


def load(kept: EngineDump, make_policy: MakePolicy) -> Loaded:
    """The engine that was dumped; raises errors of any kind where *kept* is none."""
    engine = Engine(make_policy=make_policy)
    state, world = engine._state, engine._state.world
    for name, value in kept.plain.items():
        if PARTS.get(name) is Part.VALUE:
            setattr(state, name, value)
    missing, warnings = _take_policy(state, kept)
    warnings += _take_options(state, kept.options)
    if kept.in_view is not None:
        state.in_view = kept.in_view.copy()  # kernels are compiled for arrays that can be written to
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
        plane.nodes[:] = world.use_of(plane)
    if np.array_equal(moved, np.arange(devices)):
        # They name devices by number; where those are others by now, the policy asks for the room again.
        state.reservations = {each.id: each for each in kept.reservations}
    for rows in state.claimed_rows.values():
        on_device = rows[DEVICE] >= 0
        rows[DEVICE][on_device] = moved[rows[DEVICE][on_device]]
    state.perf = Estimator.restore(kept.learned)
    return Loaded(engine, missing, tuple(warnings))


def _take_policy(state: State, kept: EngineDump) -> tuple[str, list[str]]:
    """The policy that decided, with its memory; why it cannot be loaded, and warnings."""
    try:
        policy = queued(state.make_policy(kept.policy, kept.policy_options))
    except Exception as missing:
        other = state.policy.name
        state.policy_state = state.policy.initial(state.seed)
        return f"cannot load policy {kept.policy}: {missing}; {other} decides until you set one", []
    state.policy, state.policy_named, state.policy_options = policy, kept.policy, kept.policy_options
    try:
        state.policy_state = policy.restored(kept.policy_state)
    except (msgspec.ValidationError, TypeError, ValueError) as other:
        state.policy_state = policy.initial(state.seed)
        return "", [f"the policy {kept.policy} begins anew: this version cannot read its memory: {other}"]
    return "", []


def _take_options(state: State, kept: Mapping[str, Any]) -> list[str]:
    """Options as they were; one that this version does not have, or not with that value, has its default."""
    options, warnings = Options(), []
    for name, value in kept.items():
        if name in Options.__struct_fields__:
            try:
                options = msgspec.convert({**msgspec.to_builtins(options), name: value}, Options)
            except (msgspec.ValidationError, ValueError) as bad:
                warnings.append(f"the setting {name}={value} is not kept: {bad}")
    state.options = options
    return warnings


def _take_machines(world: World, kept: Machines) -> Ints:
    """The cluster as it was; the number of each device by now, -1 where it is gone."""
    inventory = world.inventory = Inventory(types=Names(kept.types))
    inventory.put(kept.nodes)
    inventory.add_absent(kept.absent)
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
