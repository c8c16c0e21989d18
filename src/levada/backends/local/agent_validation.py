"""Validation of agent messages.

An agent may report only its own nodes and the workers it was told to run there. Everything else is rejected: counted,
logged, and without effect on jobs or nodes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence

import msgspec

from levada.backends.local import agent_protocol
from levada.backends.local.job_state import ControllerState
from levada.backends.local.logs import Chunk
from levada.backends.local.members import started_in
from levada.backends.local.supervisor_protocol import (
    ENDED,
    LOST,
    RUNS,
    STARTING,
    CheckpointStatus,
    StatusUpdate,
    WorkerStatus,
)
from levada.core.cluster import Foreign, Node

#: Names of agents and nodes, like host names.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_WORKER = re.compile(r"g[0-9]{1,15}-(ps)?[0-9]{1,9}")
_JOB = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
_STATES = (STARTING, RUNS, ENDED, LOST)
#: Upper bound of counts, sizes and times.
_LIMIT = 1 << 62
_FIRST_PORT, _LAST_PORT = 1024, 65535


def registration_error(register: agent_protocol.Register) -> str:
    """Why a registration is invalid; empty if it is valid."""
    if not register.name:
        return "an agent needs a name: give one with --name"
    if not _NAME.fullmatch(register.name):
        return f"{register.name!r} is not a valid agent name: use letters, digits, '.', '_' and '-' in --name"
    return nodes_error(register.nodes)


def nodes_error(nodes: Sequence[Node]) -> str:
    """Why the nodes of an agent are invalid; empty if they are valid."""
    names = [node.name for node in nodes]
    for node in nodes:
        devices = [device.id for device in node.devices]
        if not _NAME.fullmatch(node.name):
            return f"{node.name!r} is not a valid node name: use letters, digits, '.', '_' and '-'"
        if names.count(node.name) > 1:
            return f"node {node.name} exists twice: give each node its own name"
        if len(set(devices)) < len(devices) or not all(device.type for device in node.devices):
            return f"node {node.name} has GPUs without a unique id or without a type"
        if not _in_range(node.cpu or 0, node.memory or 0, *(device.memory for device in node.devices)):
            return f"node {node.name} has impossible sizes"
    return ""


def own_foreign(foreign: Sequence[Foreign], nodes: Collection[str]) -> tuple[Foreign, ...]:
    """The valid reports of foreign use that concern *nodes*."""
    return tuple(
        use
        for use in foreign
        if use.node in nodes
        and use.id.startswith(f"{use.node}/")
        and not use.serving
        and _in_range(use.milli, use.gpu_memory, use.cpu, use.memory)
    )


def usable_ports(ports: Sequence[int]) -> list[int]:
    """The unprivileged ports among *ports*."""
    return [port for port in ports if _FIRST_PORT <= port <= _LAST_PORT]


def is_chunk(chunk: Chunk) -> bool:
    """Whether each line of a log has a time."""
    return len(chunk.lines) == len(chunk.times) and all(math.isfinite(at) for at in chunk.times)


class ValidatedReport(msgspec.Struct):
    """A status update of an agent after validation."""

    #: The part that the agent may report.
    news: StatusUpdate
    #: Why other parts were rejected, one line each.
    rejected: list[str]
    #: Live workers that the agent was never told to run: it must stop them.
    strays: list[WorkerStatus]
    #: For jobs without a record here: the newest generation of workers that the agent knows.
    worlds: dict[str, int]


def validate(
    update: StatusUpdate, nodes: Collection[str], record_of: Callable[[str], ControllerState | None]
) -> ValidatedReport:
    """Check what the agent of *nodes* reports.

    A worker belongs to the node in its job's record, so no agent can end a worker of another machine or keep it alive.
    `last_commands` is never accepted from an agent: the server owns numbers and generations of jobs.
    """
    checked = ValidatedReport(news=StatusUpdate(), rejected=[], strays=[], worlds={})
    statuses: list[WorkerStatus] = []
    for status in update.workers:
        if not (_JOB.fullmatch(status.job) and _WORKER.fullmatch(status.name) and status.state in _STATES):
            checked.rejected.append(f"{status.name[:40]!r} of {status.job[:40]!r}: invalid name or state")
            continue
        record = record_of(status.job)
        if record is None:
            checked.worlds[status.job] = max(checked.worlds.get(status.job, 0), started_in(status.name))
        node = None if record is None else record.placed.get(status.name)
        if node in nodes:
            statuses.append(status)
            continue
        if status.alive:
            checked.strays.append(status)
        if node is not None:
            checked.rejected.append(f"worker {status.name} of {status.job} is on {node}")
        elif status.alive or (record is not None and started_in(status.name) >= record.world):
            # Agents also report folders of workers that ended long ago; those are ignored.
            checked.rejected.append(f"worker {status.name} of {status.job} was not started there")
    checkpoints: list[CheckpointStatus] = []
    for checkpoint in update.checkpoints:
        record = record_of(checkpoint.job)
        if record is None:
            continue
        members = (*record.members, *record.newcomers, *record.leavers)
        if not (_in_range(checkpoint.saved_at) and (checkpoint.epochs is None or 0.0 < checkpoint.epochs < math.inf)):
            checked.rejected.append(f"impossible progress of {checkpoint.job}")
        elif any(member.node in nodes for member in members):
            checkpoints.append(checkpoint)
        elif not any(node in nodes for node in record.placed.values()):
            checked.rejected.append(f"checkpoint of {checkpoint.job}, which has no worker there")
    checked.news = StatusUpdate(workers=tuple(statuses), checkpoints=tuple(checkpoints))
    return checked


def _in_range(*numbers: int) -> bool:
    return all(0 <= number < _LIMIT for number in numbers)
