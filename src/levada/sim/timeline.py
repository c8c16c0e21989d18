"""Intervals in which jobs ran, for charts."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats, Ints
from levada.engine.queries import Queries


class Segment(msgspec.Struct, kw_only=True):
    """An interval in which a job ran on one grant."""

    job: str
    begin: float
    end: float
    gpu_type: str
    workers: int
    nodes: tuple[str, ...]


class SegmentLog:
    """Closed segments, and one open segment per running job."""

    def __init__(self, query: Queries) -> None:
        self._query = query
        self.closed: list[Segment] = []
        self._open: dict[int, Segment] = {}

    def open(self, slots: Ints, types: Ints, workers: Ints, begin: Floats, *, held: bool = False) -> None:
        """Open segments of these jobs on their target devices, or on the devices that they hold (*held*)."""
        query = self._query
        cluster, numbers = query.cluster, query.jobs.number
        row, node = (query.held if held else query.target).node_pairs(slots)
        for index, slot in enumerate(slots.tolist()):
            number = int(numbers[slot])
            self._open[number] = Segment(
                job=query.job_id(number),
                begin=float(begin[index]),
                end=float(begin[index]),
                gpu_type=cluster.types[int(types[index])],
                workers=int(workers[index]),
                nodes=tuple(cluster.nodes[int(number)] for number in node[row == index]),
            )

    def close(self, numbers: Ints, now: float) -> None:
        """Close the open segments of these jobs."""
        for number in np.asarray(numbers).tolist():
            segment = self._open.pop(number, None)
            if segment is not None and now > segment.begin:
                segment.end = now
                self.closed.append(segment)
