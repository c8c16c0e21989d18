"""Jobs, nodes and queues as the plain values that users and programs see."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import numpy as np

from levada.backends.protocol import WorkerSeen
from levada.core.commands import JobsEnded
from levada.core.inventory import UNLIMITED
from levada.core.job import Phase, Preemptible
from levada.core.plan import Op, OpKind
from levada.core.plane import FREE
from levada.core.queue import Queue
from levada.core.reasons import Code, reason
from levada.core.types import WHOLE, Ints
from levada.engine.because import why_it_stays
from levada.engine.drains import staying
from levada.engine.state import State
from levada.jobfile.model import ALL_TYPES
from levada.live.records import Record

_LONGEST_COMMAND = 200


def moment(seconds: float | None) -> str | None:
    """RFC 3339 in UTC; None for never."""
    if seconds is None or not math.isfinite(seconds):
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def whole(number: float) -> int | float:
    """Without a needless fraction."""
    return int(number) if float(number).is_integer() else round(float(number), 3)


def preemptible(code: int) -> str | bool:
    """A `Preemptible` as a job file says it."""
    return "auto" if code == Preemptible.AUTO else code != Preemptible.NEVER


def in_file(value: Any) -> str:
    """A value as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else "none" if value is None else str(value)


def positions(state: State) -> dict[int, int]:
    """The place of each waiting job in the policy's order, from 1, by slot."""
    table, line = state.world.table, _line(state)
    line = line[np.lexsort((table.number[line], table.submitted[line], table.rank[line]))]
    return {slot: place for place, slot in enumerate(line.tolist(), 1)}


def position(state: State, slot: int) -> int | None:
    """The same of one job, for less; None where it does not wait in line."""
    table, line = state.world.table, _line(state)
    if slot not in line:
        return None
    rank, submitted, number = table.rank[line], table.submitted[line], table.number[line]
    as_early = (submitted == table.submitted[slot]) & (number <= table.number[slot])
    as_good = (rank == table.rank[slot]) & ((submitted < table.submitted[slot]) | as_early)
    return int(((rank < table.rank[slot]) | as_good).sum())


def _line(state: State) -> Ints:
    """Slots of the jobs that wait for GPUs and nothing else, in no order."""
    table, slots = state.world.table, state.living()
    waits = (table.phase[slots] == Phase.PENDING) & (table.count[slots] == 0) & (table.aside[slots] == 0)
    return slots[waits & (table.feasible[slots] > 0) & (table.waits_for[slots] == 0)]


def living_job(
    record: Record, state: State, slot: int, now: float, workers: list[WorkerSeen], place: int | None
) -> dict[str, Any]:
    """A job that is not over."""
    world, table = state.world, state.world.table
    held, milli = int(table.held[slot]), int(table.milli[slot])
    passed = max(0.0, now - float(table.since[slot]))
    runs = int(table.observed[slot])
    suspended = table.phase[slot] == Phase.SUSPENDED
    grant = world.grant(world.held, slot) if held else None
    seen = {worker.index: worker for worker in workers}
    phase = Phase.label(int(table.phase[slot]))
    places = [] if grant is None else grant.places
    total = None if math.isnan(table.steps[slot]) else whole(table.steps[slot])
    steps = max(record.steps, float(table.steps_done[slot]))
    told = record.reported_at is not None or steps > 0
    shown = phase in ("Running", "Resizing") and record.rate is not None
    rate = record.rate if shown else None
    left = None if total is None or not rate else max(0.0, total - steps) / rate
    why = reason(int(table.reason[slot]), int(table.evidence[slot]))
    return {
        **_head(record),
        "queue": world.queue_names[int(table.queue_name[slot])],
        "priority": int(table.priority[slot]),
        "phase": phase,
        "reason": {"code": why.code, "text": why.text},
        "position": place,
        "gpus": whole(held * milli / WHOLE),
        "min": int(table.own_min[slot]),
        "max": int(table.own_max[slot]),
        "fixed": int(table.fixed[slot]) or None,
        "preemptible": preemptible(int(table.preemptible[slot])),
        "gpu_type": world.inventory.types[int(table.held_type[slot])] if held and milli else None,
        "nodes": sorted({place.node for place in places}),
        "workers": [
            {
                "index": place.index,
                "node": place.node,
                "devices": list(place.devices),
                "phase": seen[place.index].phase if place.index in seen else phase,
            }
            for place in places
            if place.group == "worker"
        ],
        "generation": int(table.generation[slot]),
        "progress": {
            "step": whole(steps) if told else None,
            "total": total,
            "rate": None if rate is None else round(rate, 4),
        },
        "eta_s": None if left is None else round(left, 1),
        "submitted": moment(record.submitted),
        "started": moment(float(table.first_started[slot])),
        "finished": None,
        "waiting_s": round(float(table.waiting_s[slot]) + (0.0 if runs or suspended else passed), 3),
        "running_s": round(float(table.running_s[slot]) + (passed if runs else 0.0), 3),
        "gpu_seconds": round(float(table.gpu_seconds[slot]) + passed * runs * milli / WHOLE, 3),
        "restarts": int(table.restarts[slot]),
        "retries": int(table.retries[slot]),
        "retried": int(table.retried[slot]),
        "resizes": int(table.resizes[slot]),
        "moves": int(table.moves[slot]),
        "exit_code": None,
        "labels": dict(record.about.labels),
    }


def ended_job(record: Record, told: JobsEnded, row: int, last: Mapping[str, Any]) -> dict[str, Any]:
    """A job at its end; *last* is how it looked before."""
    why = reason(int(told.reason[row]), 0)
    phase = Phase.label(int(told.phase[row]))
    text, (cause, lost_code) = why.text, record.failure
    exit_code = record.exit_code
    if phase == "Failed":
        exit_code = lost_code if exit_code is None else exit_code
        if why.code == "failed" and cause:
            retries = int(last.get("retries") or 0)
            remedy = f"All {retries} retries are used" if retries else "Set `retries` to restart from the checkpoint"
            text = f"Failed: {cause}. {remedy}."
        if exit_code is not None:
            code = "" if f"exit code {exit_code}." in text else f"The exit code was {exit_code}; "
            text += f" {code}`levada logs {record.id}` shows its output."
    return {
        **last,
        "phase": phase,
        "reason": {"code": why.code, "text": text},
        "position": None,
        "gpus": 0,
        "nodes": [],
        "workers": [],
        "progress": {**last["progress"], "step": _last_step(record, last), "rate": None},
        "eta_s": None,
        "started": moment(float(told.first_started[row])),
        "finished": moment(told.finished),
        "waiting_s": round(float(told.waiting_s[row]), 3),
        "running_s": round(float(told.running_s[row]), 3),
        "gpu_seconds": round(float(told.gpu_seconds[row]), 3),
        "restarts": int(told.restarts[row]),
        "resizes": int(told.resizes[row]),
        "moves": int(told.moves[row]),
        "exit_code": 0 if phase == "Succeeded" and exit_code is None else exit_code,
    }


def _last_step(record: Record, last: Mapping[str, Any]) -> int | float | None:
    """How far a job came, which it may have told after it was last looked at; None where it never told."""
    return last["progress"]["step"] if record.reported_at is None else whole(record.steps)


def plain_job(record: Record) -> dict[str, Any]:
    """A job of which only its record is known."""
    document = record.about.document.get("spec") or {}
    launch = record.about.launch
    return {
        **_head(record),
        "queue": document.get("queue", "default"),
        "priority": document.get("priority", 0),
        "phase": "Pending",
        "reason": {"code": "new", "text": reason(Code.NEW).text},
        "position": None,
        "gpus": 0,
        "min": 1 if launch is None else launch.min_workers,
        "max": 1 if launch is None else launch.max_workers,
        "fixed": None,
        "preemptible": document.get("preemptible", "auto"),
        "gpu_type": None,
        "nodes": [],
        "workers": [],
        "generation": 0,
        "progress": {"step": None, "total": None if launch is None else launch.steps, "rate": None},
        "eta_s": None,
        "submitted": moment(record.submitted),
        "started": None,
        "finished": None,
        "waiting_s": 0.0,
        "running_s": 0.0,
        "gpu_seconds": 0.0,
        "restarts": 0,
        "retries": document.get("retries", 0),
        "retried": 0,
        "resizes": 0,
        "moves": 0,
        "exit_code": None,
        "labels": dict(record.about.labels),
    }


def _head(record: Record) -> dict[str, Any]:
    about, launch = record.about, record.about.launch
    return {
        "id": record.id,
        "name": record.id,
        "workload": about.workload,
        "kind": about.kind,
        "user": record.user,
        "gpus_per_worker": 1 if launch is None else whole(launch.gpus_milli / WHOLE),
        "array_index": None if launch is None else launch.array_index,
        "command": None if launch is None else _command_line(launch.command),
        "workdir": None if launch is None else launch.workdir,
    }


@lru_cache(4096)
def _command_line(command: tuple[str, ...]) -> str:
    """A command as people read it; the whole text of a script would be too long for lists."""
    line = " ".join(shlex.join(command[:50]).split())
    return line if len(line) <= _LONGEST_COMMAND else f"{line[: _LONGEST_COMMAND - 1]}…"


def nodes(state: State) -> list[dict[str, Any]]:
    """All machines."""
    world, inventory = state.world, state.world.inventory
    found = []
    for number in (~inventory.removed).nonzero()[0].tolist():
        node = inventory.node_values[number]
        devices = inventory.devices_of(number)
        gpus: dict[str, dict[str, int]] = {}
        for device in devices.tolist():
            if inventory.absent[device]:
                continue
            kind = gpus.setdefault(inventory.types[int(inventory.type_of[device])], {"total": 0, "used": 0})
            kind["total"] += 1
            kind["used"] += int(world.held.owner[device] != FREE)
        there = "Lost" if inventory.lost[number] else "Cordoned" if inventory.cordoned[number] else "Ready"
        found.append(
            {
                "name": node.name,
                "phase": there,
                "gpus": gpus,
                "cpu": None if inventory.cpu[number] >= UNLIMITED else whole(inventory.cpu[number] / WHOLE),
                "memory_mib": None if inventory.memory[number] >= UNLIMITED else int(inventory.memory[number]),
                "labels": dict(node.labels),
                "jobs": world.holders_on(number),
                "draining": _staying(state, number) if number in inventory.draining else None,
                "devices": [
                    {"id": device.id, "type": device.type, "healthy": device.healthy} for device in node.devices
                ],
            }
        )
    return found


def _staying(state: State, node: int) -> list[dict[str, str]]:
    """Jobs that a node which is being drained waits for, and why they need not leave yet."""
    ids, numbers = state.world.ids, state.world.table.number
    slots = staying(state, frozenset({node})).tolist()
    return [{"job": ids[int(numbers[slot])], "why": why_it_stays(state, slot)} for slot in slots]


def _per_user(queue: Queue) -> dict[str, float]:
    total = {} if queue.per_user_total is None else {ALL_TYPES: queue.per_user_total}
    return {**queue.per_user_limit, **total}


def queues(state: State) -> list[dict[str, Any]]:
    """All queues, with what their jobs have and ask for."""
    world, table = state.world, state.world.table
    slots = state.living()
    of = table.queue[slots]
    found = []
    for number, name in enumerate(world.queues.names):
        mine = slots[of == number]
        used: dict[str, float] = {}
        for slot in mine[table.held[mine] > 0].tolist():
            kind = world.inventory.types[int(table.held_type[slot])]
            used[kind] = used.get(kind, 0) + int(table.held[slot]) * int(table.milli[slot]) / WHOLE
        queue = world.queues.values[number]
        running = int((table.held[mine] > 0).sum())
        found.append(
            {
                "name": name,
                "parent": queue.parent,
                "weight": queue.weight,
                "guaranteed": dict(queue.guaranteed),
                "limit": dict(queue.limit),
                "per_user_limit": _per_user(queue),
                "borrow": queue.borrow,
                "used": {kind: whole(amount) for kind, amount in sorted(used.items())},
                "running": running,
                "waiting": len(mine) - running,
            }
        )
    return found


def operation(op: Op) -> dict[str, Any]:
    """An operation of a plan."""
    return {
        "job": op.job,
        "kind": OpKind.name(op.kind).lower(),
        "generation": op.generation,
        "workers": 0 if op.grant is None else op.grant.workers,
        "gpu_type": None if op.grant is None else op.grant.gpu_type,
        "adds": [f"{node}/{device}" for node, device in op.adds],
        "drops": [f"{node}/{device}" for node, device in op.drops],
    }
