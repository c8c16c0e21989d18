"""Recordings of an engine: decisions, operations and reasons per call, as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from levada.core import codec
from levada.core import events as ev
from levada.core.commands import Apply, Command, Faulted, JobsEnded, Wake
from levada.core.job import Phase
from levada.core.plan import Op, OpKind
from levada.core.reasons import Code
from levada.engine import Engine

#: The compared parts of each step.
PARTS = ("decisions", "operations", "reasons", "ends", "wakes")


class Step(NamedTuple):
    """One call of `Engine.handle`."""

    at: float
    #: Types of the events except progress.
    events: tuple[str, ...]
    #: Encoded, by name of `PARTS`.
    parts: dict[str, bytes]


class Recorder:
    """Records every call of an engine's `handle` from now on."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self._handle = engine, engine.handle
        self.steps: list[Step] = []
        #: Time and events of the calls with anything but decisions.
        self.heard: list[tuple[float, tuple[ev.Event, ...]]] = []
        engine.handle = self.handle  # type: ignore[method-assign]

    def handle(self, *events: ev.Event) -> list[Command]:
        """Handle events as the engine does, and record the step."""
        commands = self._handle(*events)
        faults = [command for command in commands if isinstance(command, Faulted)]
        assert not faults, faults[0].traceback
        if not all(isinstance(event, ev.Decided | ev.DecideFailed) for event in events):
            self.heard.append((self.engine.query.now, events))
        self.record(events, commands)
        return commands

    def record(self, events: Sequence[ev.Event], commands: Sequence[Command]) -> None:
        """Add a step."""
        query = self.engine.query
        jobs, order = query.jobs, query.jobs.order
        plans = [command.plan for command in commands if isinstance(command, Apply)]
        parts = {
            "decisions": [_decision(event) for event in events if isinstance(event, ev.Decided | ev.DecideFailed)],
            "operations": [(plan, [_operation(op) for op in self.engine.ops(plan)]) for plan in plans],
            "reasons": [getattr(jobs, name)[order] for name in ("number", "phase", "reason", "evidence")],
            "ends": [_end(command) for command in commands if isinstance(command, JobsEnded)],
            "wakes": [command.at for command in commands if isinstance(command, Wake)],
        }
        types = tuple(type(event).__name__ for event in events if not isinstance(event, ev.Progress))
        self.steps.append(Step(query.now, types, {name: codec.pack(part) for name, part in parts.items()}))


def _decision(event: ev.Decided | ev.DecideFailed) -> Any:
    """All columns of a decision without its duration."""
    return event.decision if isinstance(event, ev.Decided) else event.why


def _operation(op: Op) -> tuple[Any, ...]:
    """An operation for a backend by job number, since job ids have a random suffix."""
    return op.number, op.kind, op.generation, op.grant, op.adds, op.drops, op.batch


def _end(command: JobsEnded) -> list[Any]:
    """All columns except ids and progress, which is not in the log."""
    without = ("id", "steps_done", "reported", "resized")
    return [getattr(command, name) for name in command.__struct_fields__ if name not in without]


def first_difference(expected: Sequence[Step], actual: Sequence[Step]) -> str:
    """Describe the first step in which two recordings differ; empty where all bytes are the same."""
    for number, (one, two) in enumerate(zip(expected, actual, strict=False)):
        headers = (one.at, one.events), (two.at, two.events)
        if headers[0] != headers[1]:
            return f"step {number}: events {headers[1]} instead of {headers[0]}"
        wrong = [name for name in PARTS if one.parts[name] != two.parts[name]]
        if wrong:
            lines = [f"step {number} at {one.at} s, {', '.join(one.events)}:"]
            for name in wrong:
                lines += _describe(name, one.parts[name], two.parts[name])
            return "\n".join(lines)
    if len(expected) != len(actual):
        return f"{len(actual)} steps instead of {len(expected)}"
    return ""


def _describe(name: str, one: bytes, two: bytes) -> list[str]:
    """The leaves in which two encoded parts differ."""
    expected, actual = (dict(_leaves(name, _readable(msgspec.msgpack.decode(data)))) for data in (one, two))
    places = list(dict.fromkeys([*expected, *actual]))
    differ = [place for place in places if expected.get(place) != actual.get(place)]
    return [f"  {place}: {actual.get(place)} instead of {expected.get(place)}" for place in differ]


def _readable(value: Any) -> Any:
    """Columns as lists."""
    if isinstance(value, list) and len(value) == 3 and isinstance(value[0], str) and isinstance(value[2], bytes):
        return f"{value[0]} {np.frombuffer(value[2], value[0]).reshape(value[1]).tolist()}"
    if isinstance(value, list):
        return [_readable(item) for item in value]
    return {name: _readable(item) for name, item in value.items()} if isinstance(value, dict) else value


def _leaves(place: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, list):
        return [leaf for number, item in enumerate(value) for leaf in _leaves(f"{place}[{number}]", item)]
    if isinstance(value, dict):
        return [leaf for name, item in value.items() for leaf in _leaves(f"{place}.{name}", item)]
    return [(place, value)]


class Features:
    """Counts of what a history exercises: events, operations, reasons, ends, kinds of jobs started."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, name: str, times: int = 1) -> None:
        """Count a feature."""
        if times:
            self.counts[name] = self.counts.get(name, 0) + times

    def observe(self, engine: Engine, events: Sequence[ev.Event], commands: Sequence[Command]) -> None:
        """Count what one call of `Engine.handle` did."""
        jobs = engine.query.jobs
        for event in events:
            self.add(type(event).__name__)
        for command in commands:
            if isinstance(command, JobsEnded):
                for phase in command.phase.tolist():
                    self.add(f"ended {Phase.label(phase)}")
            if not isinstance(command, Apply):
                continue
            slots = jobs.find(command.plan.number)
            for slot, kind in zip(slots.tolist(), command.plan.kind.tolist(), strict=True):
                self.add(OpKind.name(kind))
                # A job with a target stops only to break a cycle of waits.
                self.add("cycle broken", int(kind == OpKind.STOP and jobs.count[slot] > 0))
                if kind == OpKind.START:
                    milli = int(jobs.milli[slot])
                    self.add("fraction started", int(0 < milli < 1000))
                    self.add("CPU job started", int(milli == 0))
                    self.add("several GPUs per worker started", int(milli > 1000))
                    self.add("servers started", int(jobs.servers[slot] > 0))
                    self.add("cores and memory taken", int(jobs.cpu[slot] > 0 and jobs.memory[slot] > 0))
                    self.add("restarted", int(jobs.restarts[slot] > 0))
            self.add("moved", len(np.intersect1d(command.plan.add_row, command.plan.drop_row)))
        for code in set(jobs.reason[jobs.order].tolist()):
            self.add(f"reason {Code.name(code)}")
