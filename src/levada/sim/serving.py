"""Simulated serving pods: arrive, wait for capacity, run a fixed time, end.

As the cluster's own scheduler would, it starts a pod on its reservation as soon as the reserved devices are free.
"""

from __future__ import annotations

import msgspec

from levada.core.cluster import Foreign
from levada.core.decision import Bind
from levada.core.events import Event, ForeignAppeared, ForeignGone
from levada.core.types import WHOLE
from levada.engine.queries import Queries

#: Seconds that the start of a pod takes.
START_S = 2.0


class ServingInterval(msgspec.Struct, frozen=True, kw_only=True):
    """The time and place where a pod ran."""

    pod: str
    begin: float
    end: float
    node: str
    gpu_type: str | None
    gpus: float


class ServingPods:
    """Waiting pods, and the intervals of those that started."""

    def __init__(self, query: Queries) -> None:
        self._query = query
        #: Waiting pods and how long each will run, by id.
        self.waiting: dict[str, tuple[Foreign, float]] = {}
        self.served: list[ServingInterval] = []

    def arrival(self, pod: Foreign, at: float, lasts_s: float) -> Event:
        """Return the event with which *pod* requests capacity at *at*; once started, it runs for *lasts_s*."""
        self.waiting[pod.id] = (pod, lasts_s)
        return ForeignAppeared(at=at, foreign=(pod,))

    def start(self, now: float, binds: tuple[Bind, ...] = ()) -> list[Event]:
        """Return start and end events of the pods that can start: bound by a policy (*binds*) or by a reservation."""
        query = self._query
        cluster = query.cluster
        events: list[Event] = []
        for bind in binds:
            device = cluster.device_id(bind.device) if bind.device >= 0 else None
            events += self._start_pod(bind.pod, bind.node, (device,) if device is not None else (), now)
        for reservation in list(query.reservations.values()):
            if reservation.id in self.waiting and query.is_vacant(reservation):
                devices = tuple(cluster.device_id(device) for device, _, _ in reservation.devices)
                events += self._start_pod(reservation.id, reservation.node, devices, now)
        return events

    def _start_pod(self, name: str, node: int, devices: tuple[str, ...], now: float) -> list[Event]:
        if name not in self.waiting:
            return []
        pod, lasts_s = self.waiting.pop(name)
        node_name = self._query.cluster.nodes[node]
        begin, end = now + START_S, now + START_S + lasts_s
        self.served.append(
            ServingInterval(
                pod=name, begin=begin, end=end, node=node_name, gpu_type=pod.gpu_type, gpus=pod.milli / WHOLE
            )
        )
        bound = msgspec.structs.replace(pod, node=node_name, devices=devices)
        return [ForeignAppeared(at=begin, foreign=(bound,)), ForeignGone(at=end, ids=(name,))]
