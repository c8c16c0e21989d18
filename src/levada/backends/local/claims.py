"""Validation of agent messages: an agent reports on its own nodes, and on workers it was told to run there.

Everything else is rejected: counted, logged, and without any effect on jobs or nodes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence

import msgspec

from levada.backends.local import wire
from levada.backends.local.logs import Chunk
from levada.backends.local.messages import ENDED, LOST, RUNS, STARTING, Kept, News, Sighting
from levada.backends.local.record import Record
from levada.backends.local.roster import started_in
from levada.core.cluster import Foreign, Node

#: As names of machines are; an agent's own and its nodes'.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_WORKER = re.compile(r"g[0-9]{1,15}-(ps)?[0-9]{1,9}")
_JOB = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
_STATES = (STARTING, RUNS, ENDED, LOST)
#: No count, size or moment is larger.
_MOST = 1 << 62
_FIRST_PORT, _LAST_PORT = 1024, 65535


def fault_of_register(register: wire.Register) -> str:
    """Why an agent that says this of itself cannot join; empty where it can."""
    if not register.name:
        return "an agent needs a name: give one with --name"
    if not _NAME.fullmatch(register.name):
        return f"{register.name!r} is no name for an agent: give one of letters, digits, '.', '_' and '-' with --name"
    return fault_of_nodes(register.nodes)


def fault_of_nodes(nodes: Sequence[Node]) -> str:
    """What is wrong with nodes that an agent tells of; empty where nothing is."""
    names = [node.name for node in nodes]
    for node in nodes:
        devices = [device.id for device in node.devices]
        if not _NAME.fullmatch(node.name):
            return f"{node.name!r} is no name for a node: use letters, digits, '.', '_' and '-'"
        if names.count(node.name) > 1:
            return f"there are two nodes {node.name}: each needs a name of its own"
        if len(set(devices)) < len(devices) or not all(device.type for device in node.devices):
            return f"node {node.name} has GPUs without an id of their own or without a type"
        if not _is_sound(node.cpu or 0, node.memory or 0, *(device.memory for device in node.devices)):
            return f"node {node.name} has impossible sizes"
    return ""


def own_foreign(foreign: Sequence[Foreign], nodes: Collection[str]) -> tuple[Foreign, ...]:
    """What others use of these nodes; anything else is left out."""
    return tuple(
        each
        for each in foreign
        if each.node in nodes
        and each.id.startswith(f"{each.node}/")
        and not each.serving
        and _is_sound(each.milli, each.gpu_memory, each.cpu, each.memory)
    )


def usable_ports(ports: Sequence[int]) -> list[int]:
    """Those that a worker can listen on."""
    return [port for port in ports if _FIRST_PORT <= port <= _LAST_PORT]


def is_chunk(chunk: Chunk) -> bool:
    """Whether lines of a log have a time each."""
    return len(chunk.lines) == len(chunk.times) and all(math.isfinite(at) for at in chunk.times)


class Verdict(msgspec.Struct):
    """One message of an agent after validation."""

    #: What the agent may report.
    news: News
    #: Why other parts were rejected, one line each.
    rejected: list[str]
    #: Workers said to run that the agent was never told to run: it must stop them.
    strays: list[Sighting]
    #: The newest generation of workers it knows of jobs that have no record here, by job.
    worlds: dict[str, int]


def check_news(news: News, nodes: Collection[str], record_of: Callable[[str], Record | None]) -> Verdict:
    """What the agent of *nodes* may report of *news*.

    A worker belongs to the node that its job's record names, so no agent can end, or keep alive, a worker of another
    machine. `stood` is never taken from an agent: numbers and generations of jobs are the server's.
    """
    verdict = Verdict(news=News(), rejected=[], strays=[], worlds={})
    sightings: list[Sighting] = []
    for seen in news.sightings:
        if not (_JOB.fullmatch(seen.job) and _WORKER.fullmatch(seen.name) and seen.state in _STATES):
            verdict.rejected.append(f"{seen.name[:40]!r} of {seen.job[:40]!r} is no worker, or in no known state")
            continue
        record = record_of(seen.job)
        if record is None:
            verdict.worlds[seen.job] = max(verdict.worlds.get(seen.job, 0), started_in(seen.name))
        node = None if record is None else record.placed.get(seen.name)
        if node in nodes:
            sightings.append(seen)
            continue
        if seen.alive:
            verdict.strays.append(seen)
        if node is not None:
            verdict.rejected.append(f"worker {seen.name} of {seen.job} is on {node}")
        elif seen.alive or (record is not None and started_in(seen.name) >= record.world):
            # Folders of workers that ended long ago are reported, too, and mean nothing.
            verdict.rejected.append(f"worker {seen.name} of {seen.job} was not started there")
    kept: list[Kept] = []
    for saves in news.kept:
        record = record_of(saves.job)
        if record is None:
            continue
        crew = (*record.members, *record.newcomers, *record.leavers)
        if not (_is_sound(saves.saved_at) and (saves.epochs is None or 0.0 < saves.epochs < math.inf)):
            verdict.rejected.append(f"impossible progress of {saves.job}")
        elif any(member.node in nodes for member in crew):
            kept.append(saves)
        elif not any(node in nodes for node in record.placed.values()):
            verdict.rejected.append(f"{saves.job} has no worker there, and so no checkpoint")
    verdict.news = News(sightings=tuple(sightings), kept=tuple(kept))
    return verdict


def _is_sound(*numbers: int) -> bool:
    return all(0 <= number < _MOST for number in numbers)
