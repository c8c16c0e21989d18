"""Jobs that run where this server cannot look: on what the server of another machine had of its own.

Processes outlive their server, and only a server of their machine, in their folder, sees them. Whoever takes the store
over from elsewhere must neither start such jobs a second time nor take them for lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping

import msgspec

from levada.backends.protocol import Report, Seen
from levada.core.cluster import Cluster
from levada.core.events import NodesLost
from levada.core.plan import Op, OpKind
from levada.core.plane import NODE
from levada.engine import Engine
from levada.errors import Refused
from levada.live.loop import Loop
from levada.live.store import Lease, Store

#: The setting that names the machine of the last server that acted.
_LAST = "machine"
#: So many jobs are named.
_MOST_NAMED = 3
#: Machines of agents have so long to join a server that has taken over, and how often it looks.
AWAIT_S = 30.0
_LOOK_S = 0.1


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server is, and what it has itself."""

    host: str
    #: Of its folder, which may be found again under another name of the machine.
    id: str
    #: Names of its own nodes, without those of agents.
    nodes: tuple[str, ...] = ()


class Elsewhere(Refused):
    """Jobs run that this server could only start again."""


async def take_over(
    store: Store, lease: Lease, engine: Engine, here: Machine, gone: str | None
) -> frozenset[str] | None:
    """Notes that the server of *here* acts; raises Elsewhere where jobs run on another machine's own nodes.

    *gone*: the host of a machine of which an operator says that nothing runs there any more. The answer is None where
    the server of the same folder acted before; else the own nodes of the one that did.
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
    return None if last is None or last.id == here.id else frozenset(last.nodes)


class Awaited:
    """Nodes of agents that had joined the server which acted before: until they join, what ran there is taken to run.

    Their agents join whoever answers at the address that they were given. The records of their jobs lie with the other
    server, so that what they run is taken on as it is found.
    """

    def __init__(self, engine: Engine, cluster: Cluster, theirs: frozenset[str]) -> None:
        """*theirs*: nodes that the other server had of its own, for which nobody waits."""
        inventory = engine.state.world.inventory
        known = [name for number, name in enumerate(inventory.nodes) if not inventory.lost[number]]
        here = {node.name for node in cluster.nodes}
        self._engine = engine
        self.nodes = frozenset(known) - here - theirs
        self._jobs = set(_jobs_on(engine, self.nodes))

    def believed(self) -> Mapping[str, Seen]:
        """What is taken to run there."""
        table = self._engine.state.world.table
        return {
            job: Seen(
                number=int(table.number[slot]),
                generation=int(table.generation[slot]),
                running=max(1, int(table.observed[slot])),
            )
            for job, slot in self._holders()
        }

    async def run(self, loop: Loop) -> None:
        """Takes on what has come; what has not come in time is lost."""
        until = time.monotonic() + AWAIT_S
        missing = self.nodes
        while (missing or self._jobs) and time.monotonic() < until:
            await asyncio.sleep(_LOOK_S)
            missing = self.nodes - {node.name for node in (await loop.backend.cluster()).nodes}
            for op in list(self._found(missing)):
                self._jobs.discard(op.job)
                await loop.adopt(op)
        if missing:
            loop.hear(Report(events=(NodesLost(at=0.0, names=tuple(sorted(missing))),)))

    def _holders(self) -> Iterator[tuple[str, int]]:
        """Jobs that are waited for and hold something still, with their slots."""
        world = self._engine.state.world
        for job in sorted(self._jobs):
            slot = world.slot(job)
            if slot >= 0 and world.table.held[slot]:
                yield job, slot
            else:
                self._jobs.discard(job)

    def _found(self, missing: frozenset[str]) -> Iterator[Op]:
        """What jobs were started with all of whose machines are there."""
        world = self._engine.state.world
        table = world.table
        for job, slot in self._holders():
            grant = world.grant(world.held, slot)
            if table.issued[slot] or not missing.isdisjoint(place.node for place in grant.places):
                continue
            number, generation = int(table.number[slot]), int(table.generation[slot])
            batch = int(table.batch[slot])
            yield Op(job=job, number=number, kind=OpKind.START, generation=generation, grant=grant, batch=batch)


def _jobs_on(engine: Engine, nodes: frozenset[str]) -> list[str]:
    """Ids of the jobs that hold something of these nodes, or were told to take it."""
    world = engine.state.world
    holders = (slot for slot in engine.state.living().tolist() if world.table.held[slot])
    return [
        world.ids[int(world.table.number[slot])]
        for slot in holders
        if nodes.intersection(world.inventory.nodes[node] for node in world.places(world.held, slot)[NODE].tolist())
    ]
