"""Stretches of time in which jobs ran: what charts are drawn from."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats, Ints
from levada.core.world import World
from levada.sim.speeds import node_pairs


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

    def __init__(self, world: World) -> None:
        self._world = world
        self.over: list[Segment] = []
        self._open: dict[int, Segment] = {}

    def open(self, slots: Ints, types: Ints, workers: Ints, begin: Floats, *, held: bool = False) -> None:
        """These jobs run so from then on, where they should be, or where they are (*held*)."""
        world = self._world
        row, node = node_pairs(world, world.held if held else world.target, slots)
        for place, slot in enumerate(slots.tolist()):
            number = int(world.table.number[slot])
            self._open[number] = Segment(
                job=world.ids[number],
                begin=float(begin[place]),
                end=float(begin[place]),
                gpu_type=world.inventory.types[int(types[place])],
                workers=int(workers[place]),
                nodes=tuple(world.inventory.nodes[int(each)] for each in node[row == place]),
            )

    def close(self, numbers: Ints, now: float) -> None:
        """These jobs do not run on as they did."""
        for number in np.asarray(numbers).tolist():
            segment = self._open.pop(number, None)
            if segment is not None and now > segment.begin:
                segment.end = now
                self.over.append(segment)
