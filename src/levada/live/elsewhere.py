"""Jobs that run where this server cannot look: on what the server of another machine had of its own.

Processes outlive their server, and only a server of their machine, in their folder, sees them. Whoever takes the store
over from elsewhere must neither start such jobs a second time nor take them for lost.
"""

from __future__ import annotations

import msgspec

from levada.core.plane import NODE
from levada.engine import Engine
from levada.errors import Refused
from levada.live.store import Lease, Store

#: The setting that names the machine of the last server that acted.
_LAST = "machine"
#: So many jobs are named.
_MOST_NAMED = 3


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server is, and what it has itself."""

    host: str
    #: Of its folder, which may be found again under another name of the machine.
    id: str
    #: Names of its own nodes, without those of agents.
    nodes: tuple[str, ...] = ()


class Elsewhere(Refused):
    """Jobs run that this server could only start again."""


async def take_over(store: Store, lease: Lease, engine: Engine, here: Machine, gone: str | None) -> None:
    """Notes that the server of *here* acts; raises Elsewhere where jobs run on another machine's own nodes.

    *gone*: the host of a machine of which an operator says that nothing runs there any more.
    """
    told = await store.setting(_LAST)
    last = None if told is None else msgspec.json.decode(told, type=Machine)
    if last is not None and last.host not in (here.host, gone) and last.id != here.id:
        jobs = _jobs_on(engine, frozenset(last.nodes))
        if jobs:
            some = ", ".join(jobs[:_MOST_NAMED]) + (" and others" if len(jobs) > _MOST_NAMED else "")
            raise Elsewhere(
                f"{some} run on {last.host}, where only a server of that machine sees them: start it there again, or, "
                f"when nothing runs there any more, say so with --take-over {last.host}, and they start again here"
            )
    if last != here:
        await store.set_setting(_LAST, msgspec.json.encode(here).decode(), lease)


def _jobs_on(engine: Engine, nodes: frozenset[str]) -> list[str]:
    """Ids of the jobs that hold something of these nodes, or were told to take it."""
    world = engine.state.world
    holders = (slot for slot in engine.state.living().tolist() if world.table.held[slot])
    return [
        world.ids[int(world.table.number[slot])]
        for slot in holders
        if nodes.intersection(world.inventory.nodes[node] for node in world.places(world.held, slot)[NODE].tolist())
    ]
