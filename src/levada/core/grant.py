"""What a job holds or should hold, as objects for people and backends."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class WorkerPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One worker (or parameter server) and where it is."""

    index: int
    node: str
    #: Device ids on the node; empty for a worker without a GPU.
    devices: tuple[str, ...] = ()
    #: "worker" or "server".
    group: str = "worker"
    #: 1/1000ths that it has of each of its devices; less than all where somebody else is on them too.
    milli: int = 1000


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Allocation and placement: what a job should hold now."""

    gpu_type: str
    workers: int
    places: tuple[WorkerPlace, ...] = ()

    @property
    def allocation(self) -> Mapping[str, int]:
        """How many workers on which GPU type."""
        return {self.gpu_type: self.workers} if self.workers else {}
