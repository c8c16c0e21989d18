"""Jobs, nodes and queues as the plain values that users and programs see."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from levada.backends.protocol import WorkerSeen
from levada.core.commands import JobsEnded
from levada.core.job import Phase, Preemptible
from levada.core.plan import Op, OpKind
from levada.core.queue import Queue
from levada.core.reasons import Code, reason
from levada.core.types import WHOLE
from levada.engine.queries import JobState, Queries
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


def living_job(
    record: Record, query: Queries, job: JobState, now: float, workers: list[WorkerSeen], place: int | None
) -> dict[str, Any]:
    """A job that is not over."""
    held, milli, runs = job.held, job.milli, job.observed
    passed = max(0.0, now - job.since)
    suspended = job.phase == Phase.SUSPENDED
    grant = query.held_grant(job.number) if held else None
    seen = {worker.index: worker for worker in workers}
    phase = Phase.label(job.phase)
    places = [] if grant is None else grant.places
    total = None if math.isnan(job.steps) else whole(job.steps)
    shown = phase in ("Running", "Resizing") and record.rate is not None
    rate = record.rate if shown else None
    left = None if total is None or not rate else max(0.0, total - job.steps_done) / rate
    why = reason(job.reason, job.evidence)
    return {
        **_head(record),
        "queue": query.queue_of(job),
        "priority": job.priority,
        "phase": phase,
        "reason": {"code": why.code, "text": why.text},
        "position": place,
        "gpus": whole(held * milli / WHOLE),
        "min": job.own_min,
        "max": job.own_max,
        "fixed": job.fixed or None,
        "preemptible": preemptible(job.preemptible),
        "gpu_type": query.cluster.types[job.held_type] if held and milli else None,
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
        "generation": job.generation,
        "progress": {
            "step": whole(job.steps_done) if job.has_reported else None,
            "total": total,
            "rate": None if rate is None else round(rate, 4),
        },
        "eta_s": None if left is None else round(left, 1),
        "submitted": moment(record.submitted),
        "started": moment(job.first_started),
        "finished": None,
        "waiting_s": round(job.waiting_s + (0.0 if runs or suspended else passed), 3),
        "running_s": round(job.running_s + (passed if runs else 0.0), 3),
        "gpu_seconds": round(job.gpu_seconds + passed * runs * milli / WHOLE, 3),
        "restarts": job.restarts,
        "retries": job.retries,
        "retried": job.retried,
        "resizes": job.resizes,
        "moves": job.moves,
        "exit_code": None,
        "labels": dict(record.about.labels),
    }


def ended_job(record: Record, told: JobsEnded, row: int, last: Mapping[str, Any]) -> dict[str, Any]:
    """A job at its end; *last* is how it looked before."""
    why = reason(int(told.reason[row]), 0)
    phase = Phase.label(int(told.phase[row]))
    text, (cause, lost_code) = why.text, record.failure
    exit_code, steps = record.exit_code, told.last_step(row)
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
        "progress": {
            **last["progress"],
            "step": None if (steps := told.last_step(row)) is None else whole(steps),
            "rate": None,
        },
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


def nodes(query: Queries) -> list[dict[str, Any]]:
    """All machines."""
    return [
        {
            "name": each.node.name,
            "phase": "Lost" if each.lost else "Cordoned" if each.cordoned else "Ready",
            "gpus": {kind: {"total": gpus.total, "used": gpus.used} for kind, gpus in each.gpus.items()},
            "cpu": None if each.cpu is None else whole(each.cpu / WHOLE),
            "memory_mib": each.memory,
            "labels": dict(each.node.labels),
            "jobs": list(each.jobs),
            "draining": None if each.draining is None else [{"job": job, "why": why} for job, why in each.draining],
            "devices": [
                {"id": device.id, "type": device.type, "healthy": device.healthy} for device in each.node.devices
            ],
        }
        for each in query.nodes()
    ]


def _per_user(queue: Queue) -> dict[str, float]:
    total = {} if queue.per_user_total is None else {ALL_TYPES: queue.per_user_total}
    return {**queue.per_user_limit, **total}


def queues(query: Queries) -> list[dict[str, Any]]:
    """All queues, with what their jobs have and ask for."""
    return [
        {
            "name": each.queue.name,
            "parent": each.queue.parent,
            "weight": each.queue.weight,
            "guaranteed": dict(each.queue.guaranteed),
            "limit": dict(each.queue.limit),
            "per_user_limit": _per_user(each.queue),
            "borrow": each.queue.borrow,
            "used": {kind: whole(amount) for kind, amount in sorted(each.used.items())},
            "running": each.running,
            "waiting": each.waiting,
        }
        for each in query.queues()
    ]


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
