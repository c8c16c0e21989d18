"""Replay of logged turns, and reconciliation of the result with the commands in the log.

An engine of another version may answer the same events with other commands: find other places, reject a decision, give
up a job. Jobs run as they were commanded all the same, so the logged commands win: `reconcile` makes the engine agree
with them. What was planned and not commanded is decided anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from levada.core.commands import Command
from levada.core.events import Event, JobsSubmitted
from levada.core.job import Phase
from levada.core.layout import NOT_ALLOWED
from levada.core.plan import OpKind
from levada.core.plane import DEVICE, GPU_MEMORY, INDEX, MILLI, NO_DEVICE, NODE, Plane
from levada.core.reasons import Code
from levada.core.types import CPU_TYPE, WHOLE, Ints
from levada.engine.ends import end
from levada.engine.engine import Engine
from levada.engine.operations import plan_operations
from levada.engine.state import Intent, State

#: The reason of a job that was reconciled, until there is a newer one.
_REASONS = {
    Phase.PENDING: Code.INTERRUPTED,
    Phase.STARTING: Code.STARTING,
    Phase.RUNNING: Code.RUNS,
    Phase.RESIZING: Code.RUNS,
    Phase.STOPPING: Code.STOPPING,
    Phase.SUSPENDED: Code.SUSPENDED,
}


class CommandedPlace(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One place of a worker, on one device or none."""

    index: int
    node: str
    device: str
    milli: int
    gpu_memory: int
    #: It was told to take it, and is not seen to have it yet.
    claimed: bool


class CommandedState(msgspec.Struct, frozen=True, array_like=True):
    """What a job was last commanded to do, by names that outlive all numbering."""

    number: int
    phase: int
    generation: int
    #: The operation that is out, an `OpKind`.
    op: int = OpKind.NONE
    intent: int = Intent.WAIT
    unsure: int = 0
    waits_for: int = 0
    aside: int = 0
    failures: int = 0
    held: tuple[CommandedPlace, ...] = ()
    #: What it shall have after the operation that is out; empty where none is, or it is a stop.
    target: tuple[CommandedPlace, ...] = ()


def replay(
    engine: Engine, events: Sequence[Event], *, before: int, after: int, next_number: int, asked: Ints | None
) -> list[Command]:
    """Bring *engine* to its state after a logged turn; its commands, which have been carried out already.

    *before* and *after* are the revisions around it, *next_number* the number of its first new job (-1 = not logged),
    *asked* the numbers of the jobs that the policy was asked about, if it was. Progress is not in the log; it changes
    the first and the last of these.
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
    """Let *engine* know of the jobs that were submitted in a logged turn, and of nothing else."""
    engine._state.world.next_number = next_number
    engine.handle(*(event for event in events if isinstance(event, JobsSubmitted)))


def commanded(engine: Engine, numbers: Iterable[int] | None = None) -> dict[int, CommandedState]:
    """What active jobs were last commanded to do, by number: all, or those of *numbers*."""
    state = engine._state
    slots = state.living() if numbers is None else state.world.table.find(np.fromiter(numbers, np.int64))
    return {each.number: each for each in (_commanded(state, slot) for slot in slots.tolist() if slot >= 0)}


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
        held=_spots(state, world.held, slot) if table.held[slot] else (),
        target=_spots(state, world.target, slot) if takes else (),
    )


def _spots(state: State, plane: Plane, slot: int) -> tuple[CommandedPlace, ...]:
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
    """Jobs about which an engine and the log say different things, by number."""

    #: The engine has them otherwise.
    other: list[int]
    #: The engine has them no more.
    lost: list[int]
    #: The engine has them still.
    over: list[int]

    @staticmethod
    def between(engine: Engine, recorded: Mapping[int, CommandedState]) -> Differences:
        """What differs between *engine* and the log."""
        found = commanded(engine)
        return Differences(
            other=[number for number, each in found.items() if number in recorded and recorded[number] != each],
            lost=[number for number in recorded if number not in found],
            over=[number for number in found if number not in recorded],
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
    """Make *engine* agree with the commands that were *recorded*.

    *ended* are the phases in which jobs ended; *before* is an engine that knows all jobs and the end of none.
    Raises KeyError for a job that neither engine knows.
    """
    state, world, table = engine._state, engine._state.world, engine._state.world.table
    state.learn()
    for number in differ.over:
        end(state, table.find(np.array([number])), ended[number], Code.CANCELLED)
    state.commands.clear()
    for number in differ.lost:
        _bring_back(state, before._state, number)
    wrong = [*differ.other, *differ.lost]
    slots = table.find(np.array(wrong, np.int64))
    world.clear_workers(world.held, slots)
    for number, slot in zip(wrong, slots.tolist(), strict=True):
        _tell(state, slot, recorded[number])
    _forget_plans(state, [recorded[int(number)] for number in table.number[state.living()]])
    for plane in (world.target, world.held):
        plane.nodes[:] = world.use_of(plane)
    state.dependents = {
        number: [each for each in after if each in recorded]
        for number, after in before._state.dependents.items()
        if number in recorded
    }
    state.ended = max(state.submitted - len(table), 0)
    state.submitted = state.ended + len(table)
    state.next_alarm = state.now
    state.give_another_chance()


def _tell(state: State, slot: int, was: CommandedState) -> None:
    """The job holds what it held, and the operation that was out is out."""
    table, world = state.world.table, state.world
    rows = _rows(state, was.held, slot)
    if was.held and not rows.shape[1]:
        # All that it had is gone. Whatever should run of it after all is seen, and stopped.
        was = msgspec.structs.replace(was, phase=Phase.PENDING, op=OpKind.NONE, unsure=0, held=(), target=())
    world.put_workers(world.held, slot, rows)
    claimed = _rows(state, tuple(spot for spot in was.held if spot.claimed), slot)
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
    state.say(np.array([slot]), Code.SET_ASIDE if aside else _REASONS[was.phase], was.failures if aside else 0)
    table.unsure[slot], table.op[slot], table.issued[slot] = was.unsure, was.op, int(was.op != OpKind.NONE)
    table.held[slot], table.held_type[slot] = _size(state, rows)
    table.observed[slot] = min(int(table.observed[slot]), int(table.held[slot]))
    if was.op != OpKind.NONE:
        table.issued_at[slot], table.op_deadline[slot] = state.now, state.now + state.options.op_timeout_s
    else:
        table.op_deadline[slot] = np.inf


def _forget_plans(state: State, recorded: list[CommandedState]) -> None:
    """Targets are what operations that are out lead to, and what jobs hold: nothing else was commanded."""
    table, world = state.world.table, state.world
    slots = table.find(np.array([was.number for was in recorded], np.int64))
    world.clear_workers(world.target, slots)
    for slot, was in zip(slots.tolist(), recorded, strict=True):
        # One of which nobody knows what it has stops, too, and starts again.
        stops = was.phase == Phase.STOPPING or was.intent != Intent.WAIT or was.aside or was.unsure
        goal = was.target if was.op != OpKind.NONE else () if stops else was.held
        rows = _rows(state, goal, slot)
        world.put_workers(world.target, slot, rows)
        table.count[slot], table.type[slot] = _size(state, rows)
    plan_operations(state, slots)


def _rows(state: State, spots: tuple[CommandedPlace, ...], slot: int) -> Ints:
    """These places as columns of a plane, without those that are nowhere any more."""
    inventory = state.world.inventory
    found = []
    for spot in spots:
        node = inventory.nodes.find(spot.node)
        devices = [device for device in inventory.devices_of(node) if inventory.device_id(device) == spot.device]
        if node >= 0 and (devices or not spot.device):
            device = int(devices[0]) if devices else NO_DEVICE
            found.append((slot, spot.index, node, device, spot.milli, spot.gpu_memory))
    return np.array(found, np.int64).reshape(-1, 6).T.copy()


def _size(state: State, rows: Ints) -> tuple[int, int]:
    """How many workers are on these places, and of which type; parameter servers alone are one, as something runs."""
    workers = len(np.unique(rows[INDEX][rows[INDEX] >= 0]))
    on_device = rows[DEVICE][(rows[DEVICE] >= 0) & (rows[INDEX] >= 0)]
    kind = int(state.world.inventory.type_of[on_device[0]]) if len(on_device) else CPU_TYPE
    return (max(workers, 1), kind) if rows.shape[1] else (0, -1)


def _bring_back(state: State, before: State, number: int) -> None:
    """A job that only the engine before knows is in this one, too."""
    world, theirs = state.world, before.world
    there = int(theirs.table.find(np.array([number]))[0])
    if there < 0:
        raise KeyError(f"nothing is known of job {number}")
    any_type = bool(theirs.table.any_type[there])
    likes = np.array([rank if any_type else NOT_ALLOWED for rank in range(len(world.inventory.types))], np.int16)
    for kind, name in enumerate(world.inventory.types):
        if (known := theirs.inventory.types.find(name)) >= 0:
            likes[kind] = theirs.table.preference[known, there]
    slot = world.table.adopt(theirs.table, there, likes)
    for column, names, others in (
        ("workload", world.workloads, theirs.workloads),
        ("entity", world.entities, theirs.entities),
        ("queue_name", world.queue_names, theirs.queue_names),
        *((tag, world.tags, theirs.tags) for tag in ("affinity", "anti_affinity", "exclusion")),
    ):
        values = getattr(world.table, column)
        values[slot] = names.add(others[int(values[slot])])
    world.ids[number] = theirs.ids[number]
    world.numbers[theirs.ids[number]] = number
    world.table.queue[slot] = world.queue_number(world.queue_names[int(world.table.queue_name[slot])])
    state.perf.bind(np.array([number]), world.table.workload[[slot]])
