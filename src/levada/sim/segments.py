"""Stretches of time in which jobs ran: what charts are drawn from."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats, Ints
from levada.engine.queries import Queries


class Segment(msgspec.Struct, kw_only=True):
    """A stretch of time in which a job ran on one grant."""

    job: str
    begin: float
    end: float
    gpu_type: str
    workers: int
    nodes: tuple[str, ...]


class Segments:
    """Those that are over, and the one of each job that runs."""

    def __init__(self, query: Queries) -> None:
        self._query = query
        self.over: list[Segment] = []
        self._open: dict[int, Segment] = {}

    def open(self, slots: Ints, types: Ints, workers: Ints, begin: Floats, *, held: bool = False) -> None:
        """These jobs run so from then on, where they should be, or where they are (*held*)."""
        query = self._query
        cluster, numbers = query.cluster, query.jobs.number
        row, node = (query.held if held else query.target).node_pairs(slots)
        for place, slot in enumerate(slots.tolist()):
            number = int(numbers[slot])
            self._open[number] = Segment(
                job=query.job_id(number),
                begin=float(begin[place]),
                end=float(begin[place]),
                gpu_type=cluster.types[int(types[place])],
                workers=int(workers[place]),
                nodes=tuple(cluster.nodes[int(each)] for each in node[row == place]),
            )

    def close(self, numbers: Ints, now: float) -> None:
        """These jobs do not run on as they did."""
        for number in np.asarray(numbers).tolist():
            segment = self._open.pop(number, None)
            if segment is not None and now > segment.begin:
                segment.end = now
                self.over.append(segment)
