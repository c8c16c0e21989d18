"""Plan which pods of a job to pin, keep and delete for its grant.

Pure: the reconciler carries it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from levada.backends.kubernetes.kinds import JobKind
from levada.backends.kubernetes.kinds.kind import SERVER, WORKER
from levada.backends.kubernetes.objects import JobObject, PodObject
from levada.backends.kubernetes.ordinals import Seating, seat
from levada.core.grant import WorkerPlace


class PodPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The next writes to the pods of a job, and how far it is."""

    #: Gated pods and their nodes.
    pins: tuple[tuple[PodObject, str], ...] = ()
    #: Pods that are on the wrong node or have no place.
    deletes: tuple[PodObject, ...] = ()
    #: Ordinals and nodes of pods that Levada must create.
    creates: tuple[tuple[int, str], ...] = ()
    #: No node has more pods of the job than the grant has places there.
    is_released: bool = True
    #: All workers run in their places.
    is_running: bool = False
    running: int = 0
    #: Pods of workers by ordinal, and their places.
    members: Mapping[int, PodObject] = {}
    seating: Seating = Seating(places=())

    def shortfall(self) -> str:
        """Which worker does not run, where, and why."""
        for ordinal, place in enumerate(self.seating.places):
            pod = self.members.get(ordinal)
            if pod is None:
                return f"worker {ordinal} has no pod yet"
            if not _is_up(pod):
                return f"{pod.metadata.name} on {place.node}: {pod.trouble() or pod.status.phase}"
        return "a worker is not in its place"


def holders(pods: Sequence[PodObject]) -> list[PodObject]:
    """The pods that hold resources of a node, also while they are being deleted."""
    return [pod for pod in pods if pod.node and not pod.is_over]


def members_of(kind: JobKind, job: JobObject, pods: Sequence[PodObject], group: str) -> dict[int, PodObject]:
    """The pods of one group by ordinal: the newest that is not being deleted, one that lives before one that ended."""
    members: dict[int, PodObject] = {}
    unordered = []
    for pod in sorted(pods, key=lambda pod: (not pod.is_over, pod.metadata.creation_timestamp, pod.metadata.name)):
        owner_group, ordinal = kind.place_of(job, pod)
        if owner_group != group or pod.is_leaving or pod.status.phase == "Failed":
            continue
        if ordinal is None:
            unordered.append(pod)
        else:
            members[ordinal] = pod
    unordered.sort(key=lambda pod: (not pod.node, pod.metadata.name))
    return members | dict(enumerate(unordered, len(members)))


def plan_pods(kind: JobKind, job: JobObject, pods: Sequence[PodObject], places: Sequence[WorkerPlace]) -> PodPlan:
    """The next step towards *places*."""
    workers = _plan_group(kind, job, pods, [place for place in places if place.group == WORKER], WORKER)
    servers = [place for place in places if place.group == SERVER]
    if not servers and workers.seating.places:
        # A launcher without a place of its own stays beside worker 0.
        servers = [
            WorkerPlace(index=index, node=workers.seating.places[0].node, group=SERVER)
            for index in range(kind.servers(job))
        ]
    others = _plan_group(kind, job, pods, servers, SERVER, fixed=True)
    return msgspec.structs.replace(
        workers,
        pins=workers.pins + others.pins,
        deletes=workers.deletes + others.deletes,
        is_running=workers.is_running and others.is_running,
    )


def _plan_group(
    kind: JobKind,
    job: JobObject,
    pods: Sequence[PodObject],
    places: Sequence[WorkerPlace],
    group: str,
    fixed: bool = False,
) -> PodPlan:
    """*fixed*: pods that run stay where they are."""
    members = members_of(kind, job, pods, group)
    current = {ordinal: pod.node for ordinal, pod in members.items() if pod.node and not pod.is_over}
    if fixed:
        places = [
            msgspec.structs.replace(place, node=current.get(ordinal, place.node))
            for ordinal, place in enumerate(sorted(places, key=lambda place: place.index))
        ]
    seating = seat(places, current)
    held = Counter(pod.node for pod in holders(pods) if kind.place_of(job, pod)[0] == group)
    room = Counter(place.node for place in places)
    released = all(count <= room[node] for node, count in held.items())
    room.subtract(held)
    pins, deletes, creates = [], [members[ordinal] for ordinal in seating.moves], []
    for ordinal, place in enumerate(seating.places):
        pod = members.get(ordinal)
        if pod is None:
            if kind.makes_pods and room[place.node] > 0:
                room[place.node] -= 1
                creates.append((ordinal, place.node))
        elif pod.is_gated:
            if room[place.node] > 0:
                room[place.node] -= 1
                pins.append((pod, place.node))
        elif not pod.node and not pod.is_over and not pod.spec.scheduling_gates:
            deletes.append(pod)  # released without a node: it could go anywhere
    if kind.makes_pods:
        deletes += [pod for ordinal, pod in members.items() if ordinal >= len(places)]
    up = [_is_up(members[o]) and o not in seating.moves for o in range(len(places)) if o in members]
    return PodPlan(
        pins=tuple(pins),
        deletes=tuple(deletes),
        creates=tuple(creates),
        is_released=released,
        is_running=released and len(up) == len(places) and all(up),
        running=sum(pod.status.phase == "Running" for pod in members.values()),
        members=members,
        seating=seating,
    )


def _is_up(pod: PodObject) -> bool:
    return pod.status.phase in ("Running", "Succeeded") and bool(pod.node)
