"""Held or target devices of a job as objects, for users and backends."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class WorkerPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A worker or parameter server and its devices."""

    index: int
    node: str
    #: Device ids on the node; empty for a worker without a GPU.
    devices: tuple[str, ...] = ()
    #: "worker" or "server".
    group: str = "worker"
    #: 1/1000ths of each of its devices; below 1000 for shared devices.
    milli: int = 1000


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Allocation and placement of a job."""

    gpu_type: str
    workers: int
    places: tuple[WorkerPlace, ...] = ()

    @property
    def allocation(self) -> Mapping[str, int]:
        """The number of workers by GPU type."""
        return {self.gpu_type: self.workers} if self.workers else {}
