"""Replay logged turns and reconcile the result with the logged commands.

Another version of the engine may return other commands for the same events: other placements, a rejected decision, a
failed job. Jobs run as they were commanded, so the logged commands win: `reconcile` makes the engine agree with them.
Plans that were not commanded are dropped and decided again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from levada.core.assignment import DEVICE, GPU_MEMORY, INDEX, MILLI, NO_DEVICE, NODE, Assignment
from levada.core.commands import Command
from levada.core.events import Event, JobsSubmitted
from levada.core.job import Phase
from levada.core.layout import NOT_ALLOWED
from levada.core.plan import OpKind
from levada.core.reasons import Code
from levada.core.types import CPU_TYPE, WHOLE, Ints
from levada.engine.completion import end
from levada.engine.engine import Engine
from levada.engine.operations import plan_operations
from levada.engine.state import Intent, State

#: The reason of a reconciled job until it gets a newer one.
_REASONS = {
    Phase.PENDING: Code.INTERRUPTED,
    Phase.STARTING: Code.STARTING,
    Phase.RUNNING: Code.RUNS,
    Phase.RESIZING: Code.RUNS,
    Phase.STOPPING: Code.STOPPING,
    Phase.SUSPENDED: Code.SUSPENDED,
}


class CommandedPlace(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A place of a worker: a device or a part of one, or a node."""

    index: int
    node: str
    device: str
    milli: int
    gpu_memory: int
    #: Commanded but not confirmed yet.
    claimed: bool


class CommandedState(msgspec.Struct, frozen=True, array_like=True):
    """The last commands to a job, with names instead of node and device numbers."""

    number: int
    phase: int
    generation: int
    #: The issued operation, an `OpKind`.
    op: int = OpKind.NONE
    intent: int = Intent.WAIT
    unsure: int = 0
    waits_for: int = 0
    aside: int = 0
    failures: int = 0
    held: tuple[CommandedPlace, ...] = ()
    #: The target of the issued operation; empty without one, or for a stop.
    target: tuple[CommandedPlace, ...] = ()


def replay(
    engine: Engine, events: Sequence[Event], *, before: int, after: int, next_number: int, asked: Ints | None
) -> list[Command]:
    """Replay a logged turn; returns its commands, which have been carried out already.

    *before* and *after* are the revisions around it, *next_number* is the number of its first new job (-1 = not
    logged), *asked* are the numbers of the jobs in the snapshot, if a decision was requested. Progress is not in the
    log, but affects revisions and snapshots.
    """
    state = engine._state
    state.revision = before
    if next_number >= 0:
        state.world.next_number = next_number
    commands = engine.handle(*events)
    state.revision = after
    if asked is not None:
        state.deciding, state.in_view = after, asked
    return commands


def admit(engine: Engine, events: Iterable[Event], next_number: int) -> None:
    """Apply only the submissions of a logged turn to *engine*."""
    engine._state.world.next_number = next_number
    engine.handle(*(event for event in events if isinstance(event, JobsSubmitted)))


def commanded(engine: Engine, numbers: Iterable[int] | None = None) -> dict[int, CommandedState]:
    """The commanded state of active jobs by number: of all, or of those in *numbers*."""
    state = engine._state
    slots = state.living() if numbers is None else state.world.table.find(np.fromiter(numbers, np.int64))
    return {job.number: job for job in (_commanded(state, slot) for slot in slots.tolist() if slot >= 0)}


def _commanded(state: State, slot: int) -> CommandedState:
    world, table = state.world, state.world.table
    op = int(table.op[slot]) if table.issued[slot] else OpKind.NONE
    takes = op in (OpKind.START, OpKind.RESIZE) and table.count[slot] > 0
    return CommandedState(
        number=int(table.number[slot]),
        phase=int(table.phase[slot]),
        generation=int(table.generation[slot]),
        op=op,
        intent=int(table.intent[slot]),
        unsure=int(table.unsure[slot]),
        waits_for=int(table.waits_for[slot]),
        aside=int(table.aside[slot]),
        failures=int(table.failures[slot]),
        held=_commanded_places(state, world.held, slot) if table.held[slot] else (),
        target=_commanded_places(state, world.target, slot) if takes else (),
    )


def _commanded_places(state: State, plane: Assignment, slot: int) -> tuple[CommandedPlace, ...]:
    inventory = state.world.inventory
    rows = state.world.places(plane, slot).T.tolist()
    claimed = set()
    if plane is state.world.held and (number := int(state.world.table.number[slot])) in state.claimed_rows:
        claimed = {tuple(row) for row in state.claimed_rows[number].T.tolist()}
    return tuple(
        sorted(
            CommandedPlace(
                index=row[INDEX],
                node=inventory.nodes[row[NODE]],
                device=inventory.device_id(row[DEVICE]) if row[DEVICE] >= 0 else "",
                milli=row[MILLI],
                gpu_memory=row[GPU_MEMORY],
                claimed=(row[DEVICE] >= 0 and bool(plane.claimed[row[DEVICE]])) or tuple(row) in claimed,
            )
            for row in rows
        )
    )


class Differences(NamedTuple):
    """Numbers of the jobs for which an engine and the log differ."""

    #: Active in both, with different commands.
    other: list[int]
    #: Active only in the log.
    lost: list[int]
    #: Active only in the engine.
    over: list[int]

    @staticmethod
    def between(engine: Engine, recorded: Mapping[int, CommandedState]) -> Differences:
        """The differences between *engine* and the log."""
        jobs = commanded(engine)
        return Differences(
            other=[number for number, job in jobs.items() if number in recorded and recorded[number] != job],
            lost=[number for number in recorded if number not in jobs],
            over=[number for number in jobs if number not in recorded],
        )

    def __bool__(self) -> bool:
        return any(self)


def reconcile(
    engine: Engine,
    recorded: Mapping[int, CommandedState],
    differ: Differences,
    ended: Mapping[int, int],
    before: Engine,
) -> None:
    """Make *engine* agree with the *recorded* commands.

    *ended* has the final phases of ended jobs; *before* is an engine in which all jobs are still active. Raises
    KeyError for a job that neither engine knows.
    """
    state, world, table = engine._state, engine._state.world, engine._state.world.table
    state.learn()
    for number in differ.over:
        end(state, table.find(np.array([number])), ended[number], Code.CANCELLED)
    state.commands.clear()
    for number in differ.lost:
        _restore_job(state, before._state, number)
    differing = [*differ.other, *differ.lost]
    slots = table.find(np.array(differing, np.int64))
    world.clear_workers(world.held, slots)
    for number, slot in zip(differing, slots.tolist(), strict=True):
        _set_commanded(state, slot, recorded[number])
    _drop_plans(state, [recorded[int(number)] for number in table.number[state.living()]])
    for plane in (world.target, world.held):
        plane.nodes[:] = world.use_of(plane)
    state.dependents = {
        number: [dependent for dependent in dependents if dependent in recorded]
        for number, dependents in before._state.dependents.items()
        if number in recorded
    }
    state.ended = max(state.submitted - len(table), 0)
    state.submitted = state.ended + len(table)
    state.next_alarm = state.now
    state.reset_rejections()


def _set_commanded(state: State, slot: int, was: CommandedState) -> None:
    """Restore the held devices and the issued operation of a job."""
    table, world = state.world.table, state.world
    rows = _rows(state, was.held, slot)
    if was.held and not rows.shape[1]:
        # All its devices are gone. If workers still run, an observation will find and stop them.
        was = msgspec.structs.replace(was, phase=Phase.PENDING, op=OpKind.NONE, unsure=0, held=(), target=())
    world.put_workers(world.held, slot, rows)
    claimed = _rows(state, tuple(place for place in was.held if place.claimed), slot)
    state.claimed_rows.pop(was.number, None)
    if (rows[MILLI] != WHOLE).any():
        table.has_rows[slot] = 1
        if claimed.shape[1]:
            state.claimed_rows[was.number] = claimed
    else:
        world.held.claimed[claimed[DEVICE]] = True
    table.phase[slot], table.generation[slot], table.intent[slot] = was.phase, was.generation, was.intent
    table.waits_for[slot], table.aside[slot], table.failures[slot] = was.waits_for, was.aside, was.failures
    table.retry_at[slot] = state.now
    aside = was.aside and was.phase == Phase.PENDING
    state.set_reason(np.array([slot]), Code.SET_ASIDE if aside else _REASONS[was.phase], was.failures if aside else 0)
    table.unsure[slot], table.op[slot], table.issued[slot] = was.unsure, was.op, int(was.op != OpKind.NONE)
    table.held[slot], table.held_type[slot] = _size(state, rows)
    table.observed[slot] = min(int(table.observed[slot]), int(table.held[slot]))
    if was.op != OpKind.NONE:
        table.issued_at[slot], table.op_deadline[slot] = state.now, state.now + state.options.op_timeout_s
    else:
        table.op_deadline[slot] = np.inf


def _drop_plans(state: State, recorded: list[CommandedState]) -> None:
    """Set targets to those of issued operations, else to the held devices; drop plans that were not commanded."""
    table, world = state.world.table, state.world
    slots = table.find(np.array([was.number for was in recorded], np.int64))
    world.clear_workers(world.target, slots)
    for slot, was in zip(slots.tolist(), recorded, strict=True):
        # A job whose devices are unknown stops, too, and starts again.
        stops = was.phase == Phase.STOPPING or was.intent != Intent.WAIT or was.aside or was.unsure
        target = was.target if was.op != OpKind.NONE else () if stops else was.held
        rows = _rows(state, target, slot)
        world.put_workers(world.target, slot, rows)
        table.count[slot], table.type[slot] = _size(state, rows)
    plan_operations(state, slots)


def _rows(state: State, places: tuple[CommandedPlace, ...], slot: int) -> Ints:
    """These places as rows of an assignment, without missing nodes and devices."""
    inventory = state.world.inventory
    rows = []
    for place in places:
        node = inventory.nodes.find(place.node)
        devices = [device for device in inventory.devices_of(node) if inventory.device_id(device) == place.device]
        if node >= 0 and (devices or not place.device):
            device = int(devices[0]) if devices else NO_DEVICE
            rows.append((slot, place.index, node, device, place.milli, place.gpu_memory))
    return np.array(rows, np.int64).reshape(-1, 6).T.copy()


def _size(state: State, rows: Ints) -> tuple[int, int]:
    """The number of workers in these rows and their GPU type; parameter servers alone count as one worker."""
    workers = len(np.unique(rows[INDEX][rows[INDEX] >= 0]))
    on_device = rows[DEVICE][(rows[DEVICE] >= 0) & (rows[INDEX] >= 0)]
    gpu_type = int(state.world.inventory.type_of[on_device[0]]) if len(on_device) else CPU_TYPE
    return (max(workers, 1), gpu_type) if rows.shape[1] else (0, -1)


def _restore_job(state: State, before: State, number: int) -> None:
    """Copy a job from the engine *before*."""
    world, source = state.world, before.world
    old_slot = int(source.table.find(np.array([number]))[0])
    if old_slot < 0:
        raise KeyError(f"job {number} is unknown")
    any_type = bool(source.table.any_type[old_slot])
    preference = np.array([rank if any_type else NOT_ALLOWED for rank in range(len(world.inventory.types))], np.int16)
    for gpu_type, name in enumerate(world.inventory.types):
        if (old_type := source.inventory.types.find(name)) >= 0:
            preference[gpu_type] = source.table.preference[old_type, old_slot]
    slot = world.table.adopt(source.table, old_slot, preference)
    for column, names, old_names in (
        ("workload", world.workloads, source.workloads),
        ("entity", world.entities, source.entities),
        ("queue_name", world.queue_names, source.queue_names),
        *((tag, world.tags, source.tags) for tag in ("affinity", "anti_affinity", "exclusion")),
    ):
        values = getattr(world.table, column)
        values[slot] = names.add(old_names[int(values[slot])])
    world.table.node_class[slot] = world.inventory.add_class(
        source.inventory.classes[source.table.node_class[old_slot]]
    )
    world.ids[number] = source.ids[number]
    world.numbers[source.ids[number]] = number
    world.table.queue[slot] = world.queue_number(world.queue_names[int(world.table.queue_name[slot])])
    state.perf.bind(np.array([number]), world.table.workload[[slot]])
