"""Machines that break, each by itself and without memory, and come back after a repair; the same for the same seed."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.cluster import Cluster, Node
from levada.core.events import Event, NodesAdded, NodesLost


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """How often machines break and for how long they are away, in seconds."""

    #: Mean time of a machine from its start, or its return, to its next failure.
    every_s: float
    #: Always the same.
    repair_s: float = 3600.0
    seed: int = 0


class Breakdowns:
    """The next failure or return of every machine."""

    def __init__(self, cluster: Cluster, failures: Failures) -> None:
        self._failures = failures
        self._nodes: dict[str, Node] = {node.name: node for node in cluster.nodes}
        # One stream per machine: what happens to one does not depend on the others.
        self._streams = {name: np.random.default_rng([failures.seed, place]) for place, name in enumerate(self._nodes)}

    def first(self) -> list[Event]:
        """The first failure of each."""
        return [self._failure(name, 0.0) for name in self._nodes]

    def after(self, event: NodesLost | NodesAdded) -> list[Event]:
        """What follows: a return follows a failure, and the next failure a return."""
        if isinstance(event, NodesLost):
            back = event.at + self._failures.repair_s
            return [NodesAdded(at=back, nodes=tuple(self._nodes[name] for name in event.names))]
        return [self._failure(node.name, event.at) for node in event.nodes]

    def _failure(self, name: str, now: float) -> Event:
        at = now + float(self._streams[name].exponential(self._failures.every_s))
        return NodesLost(at=at, names=(name,))
