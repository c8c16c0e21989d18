"""Serving pods of a simulated day: each comes, waits until there is room for it, runs for a while, and goes.

It does what a cluster's own scheduler does with them: it starts a pod where room is kept for it, as soon as that room
is seen to be free.
"""

from __future__ import annotations

import msgspec

from levada.core.cluster import Foreign
from levada.core.decision import Bind
from levada.core.events import Event, ForeignAppeared, ForeignGone
from levada.core.types import WHOLE
from levada.engine.queries import Queries

#: From "there is room" to "it runs".
START_S = 2.0


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that had its room."""

    pod: str
    begin: float
    end: float
    node: str
    gpu_type: str | None
    gpus: float


class ServingPods:
    """Pods that wait, and those that have had room."""

    def __init__(self, query: Queries) -> None:
        self._query = query
        #: Pods without room, and how long each will run.
        self.waiting: dict[str, tuple[Foreign, float]] = {}
        self.served: list[Served] = []

    def arrival(self, pod: Foreign, at: float, lasts_s: float) -> Event:
        """The event that makes *pod* wait for room from *at*; it runs for *lasts_s* when it has some."""
        self.waiting[pod.id] = (pod, lasts_s)
        return ForeignAppeared(at=at, foreign=(pod,))

    def start(self, now: float, binds: tuple[Bind, ...] = ()) -> list[Event]:
        """What happens to the pods that can start: by order of a policy (*binds*), or where room is kept and free."""
        query = self._query
        cluster = query.cluster
        events: list[Event] = []
        for bind in binds:
            device = cluster.device_id(bind.device) if bind.device >= 0 else None
            events += self._runs(bind.pod, bind.node, (device,) if device is not None else (), now)
        for kept in list(query.reservations.values()):
            if kept.id in self.waiting and query.is_vacant(kept):
                devices = tuple(cluster.device_id(device) for device, _, _ in kept.devices)
                events += self._runs(kept.id, kept.node, devices, now)
        return events

    def _runs(self, name: str, node: int, devices: tuple[str, ...], now: float) -> list[Event]:
        if name not in self.waiting:
            return []
        pod, lasts_s = self.waiting.pop(name)
        where = self._query.cluster.nodes[node]
        begin, end = now + START_S, now + START_S + lasts_s
        self.served.append(
            Served(pod=name, begin=begin, end=end, node=where, gpu_type=pod.gpu_type, gpus=pod.milli / WHOLE)
        )
        bound = msgspec.structs.replace(pod, node=where, devices=devices)
        return [ForeignAppeared(at=begin, foreign=(bound,)), ForeignGone(at=end, ids=(name,))]
