"""What the agent of a machine may say: only of its own nodes, in names and numbers that mean something.

An agent is trusted with what runs on its machine, and with nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import msgspec

from levada.backends.local import wire
from levada.backends.local.messages import ENDED, LOST, RUNS, STARTING, News
from levada.core.cluster import Foreign, Node

#: As names of machines are; an agent's own and its nodes'.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_WORKER = re.compile(r"g[0-9]{1,15}-[0-9]{1,9}")
_JOB = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
_STATES = (STARTING, RUNS, ENDED, LOST)
#: No count, size or moment is larger.
_MOST = 1 << 62


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


def sound_news(news: News) -> News:
    """Without what names no job, no worker, or nothing that happens."""
    return msgspec.structs.replace(
        news,
        sightings=tuple(
            seen
            for seen in news.sightings
            if _JOB.fullmatch(seen.job) and _WORKER.fullmatch(seen.name) and seen.state in _STATES
        ),
        kept=tuple(kept for kept in news.kept if _JOB.fullmatch(kept.job) and _is_sound(kept.saved_at)),
        stood=tuple(
            stood for stood in news.stood if _JOB.fullmatch(stood.job) and _is_sound(stood.number, stood.generation)
        ),
    )


def _is_sound(*numbers: int) -> bool:
    return all(0 <= number < _MOST for number in numbers)
