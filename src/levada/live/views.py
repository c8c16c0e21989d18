"""JSON views of jobs, nodes, queues and operations for the API."""

from __future__ import annotations

import math
import shlex
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, cast

import msgspec

from levada.api.types import JobView, NodeView, OperationView, PhaseName, QueueView
from levada.backends.protocol import WorkerSeen
from levada.core.commands import JobsEnded
from levada.core.job import Phase, Preemptible
from levada.core.plan import Op, OpKind
from levada.core.queue import Queue
from levada.core.reasons import Code, reason
from levada.core.types import WHOLE
from levada.engine.queries import JobState, NodeState, Queries
from levada.jobfile.model import ALL_TYPES
from levada.live.records import JobRecord

_MAX_COMMAND = 200


def moment(seconds: float | None) -> str | None:
    """Format a unix time like `timestamp`; None for never."""
    return None if seconds is None or not math.isfinite(seconds) else timestamp(seconds)


def timestamp(seconds: float) -> str:
    """Format a unix time as RFC 3339 in UTC, with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def whole(number: float) -> int | float:
    """Return an int if the number is whole, else round to 3 decimals."""
    return int(number) if float(number).is_integer() else round(float(number), 3)


def preemptible(code: int) -> Literal["auto"] | bool:
    """Return a `Preemptible` code as in a job file."""
    return "auto" if code == Preemptible.AUTO else code != Preemptible.NEVER


def in_file(value: Any) -> str:
    """Format a value as in YAML."""
    return str(value).lower() if isinstance(value, bool) else "none" if value is None else str(value)


def living_job(
    record: JobRecord, query: Queries, job: JobState, now: float, workers: list[WorkerSeen], position: int | None
) -> JobView:
    """Return the view of an active job; *position*: its place in the queue."""
    held, milli, runs = job.held, job.milli, job.observed
    elapsed_s = max(0.0, now - job.since)
    suspended = job.phase == Phase.SUSPENDED
    grant = query.held_grant(job.number) if held else None
    by_index = {worker.index: worker for worker in workers}
    phase = _phase(job.phase)
    places = [] if grant is None else grant.places
    total = None if math.isnan(job.steps) else whole(job.steps)
    rate = record.rate if phase in ("Running", "Resizing") else None
    eta_s = None if total is None or not rate else max(0.0, total - job.steps_done) / rate
    why, launch = query.reason(record.id), record.about.launch
    return {
        "id": record.id,
        "name": record.id,
        "workload": record.about.workload,
        "kind": record.about.kind,
        "user": record.user,
        "gpus_per_worker": 1 if launch is None else whole(launch.gpus_milli / WHOLE),
        "array_index": None if launch is None else launch.array_index,
        "command": None if launch is None else _command_line(launch.command),
        "workdir": None if launch is None else launch.workdir,
        "queue": query.queue_of(job),
        "priority": job.priority,
        "phase": phase,
        "reason": {"code": why.code, "text": why.text},
        "position": position,
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
                "phase": by_index[place.index].phase if place.index in by_index else phase,
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
        "eta_s": None if eta_s is None else round(eta_s, 1),
        "submitted": timestamp(record.submitted),
        "started": moment(job.first_started),
        "finished": None,
        "waiting_s": round(job.waiting_s + (0.0 if runs or suspended else elapsed_s), 3),
        "running_s": round(job.running_s + (elapsed_s if runs else 0.0), 3),
        "gpu_seconds": round(job.gpu_seconds + elapsed_s * runs * milli / WHOLE, 3),
        "restarts": job.restarts,
        "retries": job.retries,
        "retried": job.retried,
        "resizes": job.resizes,
        "moves": job.moves,
        "exit_code": None,
        "labels": dict(record.about.labels),
    }


def ended_job(record: JobRecord, ended: JobsEnded, row: int, last: JobView) -> JobView:
    """Return the final view of a job; *last*: its view before the end."""
    why = reason(int(ended.reason[row]), 0)
    phase = _phase(int(ended.phase[row]))
    progress = last["progress"]
    text, (cause, lost_code) = why.text, record.failure
    exit_code, steps = record.exit_code, ended.last_step(row)
    if why.code == "time-limit":
        text = f"Reached its time limit after {ended.running_s.item(row):.0f} s of running."
    if phase == "Failed":
        exit_code = lost_code if exit_code is None else exit_code
        if why.code == "failed" and cause:
            retries = int(last.get("retries") or 0)
            remedy = f"All {retries} retries are used" if retries else "Set `retries` to restart from the checkpoint"
            text = f"Failed: {cause}. {remedy}."
        if exit_code is not None:
            code = "" if f"code {exit_code}." in text else f"The exit code was {exit_code}; "
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
            "total": None if progress is None else progress["total"],
            "step": None if (steps := ended.last_step(row)) is None else whole(steps),
            "rate": None,
        },
        "eta_s": None,
        "started": moment(float(ended.first_started[row])),
        "finished": moment(ended.finished),
        "waiting_s": round(float(ended.waiting_s[row]), 3),
        "running_s": round(float(ended.running_s[row]), 3),
        "gpu_seconds": round(float(ended.gpu_seconds[row]), 3),
        "restarts": int(ended.restarts[row]),
        "resizes": int(ended.resizes[row]),
        "moves": int(ended.moves[row]),
        "exit_code": 0 if phase == "Succeeded" and exit_code is None else exit_code,
    }


def plain_job(record: JobRecord) -> JobView:
    """Return the view of a job that the engine does not have, from its record alone."""
    document = msgspec.json.decode(record.about.document).get("spec") or {}
    launch = record.about.launch
    return {
        "id": record.id,
        "name": record.id,
        "workload": record.about.workload,
        "kind": record.about.kind,
        "user": record.user,
        "gpus_per_worker": 1 if launch is None else whole(launch.gpus_milli / WHOLE),
        "array_index": None if launch is None else launch.array_index,
        "command": None if launch is None else _command_line(launch.command),
        "workdir": None if launch is None else launch.workdir,
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
        "submitted": timestamp(record.submitted),
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


def _phase(code: int) -> PhaseName:
    return cast(PhaseName, Phase.label(code))


@lru_cache(4096)
def _command_line(command: tuple[str, ...]) -> str:
    """Return a command as one line of at most 200 characters: a list must not contain whole scripts."""
    line = " ".join(shlex.join(command[:50]).split())
    return line if len(line) <= _MAX_COMMAND else f"{line[: _MAX_COMMAND - 1]}…"


def _node_phase(node: NodeState) -> Literal["Ready", "Cordoned", "Draining", "Drained", "Lost"]:
    if node.lost:
        return "Lost"
    if node.draining is not None:
        return "Draining" if node.jobs else "Drained"
    return "Cordoned" if node.cordoned else "Ready"


def nodes(query: Queries) -> list[NodeView]:
    """Return views of all nodes."""
    return [
        {
            "name": state.node.name,
            "phase": _node_phase(state),
            "gpus": {kind: {"total": gpus.total, "used": gpus.used} for kind, gpus in state.gpus.items()},
            "cpu": None if state.cpu is None else whole(state.cpu / WHOLE),
            "memory_mib": state.memory,
            "labels": dict(state.node.labels),
            "jobs": list(state.jobs),
            "draining": None if state.draining is None else [{"job": job, "why": why} for job, why in state.draining],
            "devices": [
                {"id": device.id, "type": device.type, "healthy": device.healthy} for device in state.node.devices
            ],
        }
        for state in query.nodes()
    ]


def _per_user(queue: Queue) -> dict[str, float]:
    total = {} if queue.per_user_total is None else {ALL_TYPES: queue.per_user_total}
    return {**queue.per_user_limit, **total}


def queues(query: Queries) -> list[QueueView]:
    """Return views of all queues, with the GPUs and numbers of their jobs."""
    return [
        {
            "name": state.queue.name,
            "parent": state.queue.parent,
            "weight": state.queue.weight,
            "guaranteed": dict(state.queue.guaranteed),
            "limit": dict(state.queue.limit),
            "per_user_limit": _per_user(state.queue),
            "borrow": state.queue.borrow,
            "used": {kind: whole(amount) for kind, amount in sorted(state.used.items())},
            "running": state.running,
            "waiting": state.waiting,
        }
        for state in query.queues()
    ]


def operation(op: Op) -> OperationView:
    """Return the view of an operation of a plan."""
    return {
        "job": op.job,
        "kind": OpKind.name(op.kind).lower(),
        "generation": op.generation,
        "workers": 0 if op.grant is None else op.grant.workers,
        "gpu_type": None if op.grant is None else op.grant.gpu_type,
        "adds": [f"{node}/{device}" for node, device in op.adds],
        "drops": [f"{node}/{device}" for node, device in op.drops],
    }
