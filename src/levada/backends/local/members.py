"""Processes of a grant by framework, and those that survive a resize in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from levada.core.grant import WorkerPlace

SERVER = "server"
#: Frameworks with a single launcher process, which reads the hosts from `discover_hosts.sh`.
ONE_LAUNCHER = ("horovod", "mpi")


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process of a job.

    It is one worker, or for torchrun all workers of a node, or for a launcher all workers.
    """

    name: str
    index: int
    node: str
    devices: tuple[str, ...] = ()
    group: str = "worker"
    milli: int = 1000
    #: Number of workers of the grant that it represents.
    workers: int = 1
    address: str = "127.0.0.1"
    #: Port at which other members reach it; 0 if they need not.
    port: int = 0

    @property
    def is_server(self) -> bool:
        """Whether the process is a parameter server."""
        return self.group == SERVER


def name_of(world: int, place: WorkerPlace) -> str:
    """The name of a worker started in generation *world*; it keeps the name for life."""
    return f"g{world}-{'ps' if place.group == SERVER else ''}{place.index}"


def started_in(name: str) -> int:
    """The generation in which the worker of this name was started."""
    return int(name[1:].partition("-")[0])


def in_order(places: Sequence[WorkerPlace]) -> list[WorkerPlace]:
    """Workers by index, then parameter servers: rank 0 is a worker."""
    return sorted(places, key=lambda place: (place.group == SERVER, place.index))


def members_of(
    places: Sequence[WorkerPlace],
    *,
    framework: str,
    world: int,
    address: Callable[[str], str],
    port: Callable[[str], int],
) -> tuple[Member, ...]:
    """The processes to start for *places*."""
    ordered = in_order(places)
    if framework == "torchrun":
        groups = _by_node(ordered)
    elif framework in ONE_LAUNCHER:
        groups = [ordered]
    else:
        groups = [[place] for place in ordered]
    return tuple(
        Member(
            name=name_of(world, group[0]),
            index=group[0].index,
            node=group[0].node,
            devices=tuple(device for place in group for device in place.devices),
            group=group[0].group,
            milli=group[0].milli,
            workers=len(group),
            address=address(group[0].node),
            port=port(group[0].node) if framework == "tensorflow" else 0,
        )
        for group in groups
    )


def _by_node(places: Sequence[WorkerPlace]) -> list[list[WorkerPlace]]:
    groups: dict[str, list[WorkerPlace]] = {}
    for place in places:
        groups.setdefault(place.node, []).append(place)
    return list(groups.values())


def matched(members: Sequence[Member], places: Sequence[WorkerPlace]) -> tuple[list[Member], list[WorkerPlace]]:
    """Match members to places of a resize: members that stay, with their new index, and places that are new.

    Assumes one process per worker.
    """
    free = list(members)
    stay, new = [], []
    for place in in_order(places):
        fits = [
            member
            for member in free
            if (member.node, member.devices, member.group, member.milli)
            == (place.node, place.devices, place.group, place.milli)
        ]
        # Prefer the member that already has this index, then the first in the list.
        best = min(fits, key=lambda member: (member.index != place.index, free.index(member)), default=None)
        if best is None:
            new.append(place)
        else:
            free.remove(best)
            stay.append(msgspec.structs.replace(best, index=place.index))
    return stay, new


def covering(members: Sequence[Member], place: WorkerPlace) -> Member | None:
    """The process that runs the worker of a place; None if there is none."""
    for member in members:
        if (member.index, member.node, member.group) == (place.index, place.node, place.group):
            return member
    shared = [member for member in members if member.workers > 1]
    return next((member for member in shared if member.node == place.node), shared[0] if shared else None)
