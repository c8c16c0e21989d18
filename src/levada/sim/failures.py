"""Node failures: independent, memoryless, fixed repair time, seeded."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.cluster import Cluster, Node
from levada.core.events import Event, NodesAdded, NodesLost


class FailureRates(msgspec.Struct, frozen=True, kw_only=True):
    """How often nodes fail and how long a repair takes, in seconds."""

    #: Mean time between the start or repair of a node and its next failure.
    every_s: float
    repair_s: float = 3600.0
    seed: int = 0


class NodeFailures:
    """Generates the next failure or repair of every node."""

    def __init__(self, cluster: Cluster, rates: FailureRates) -> None:
        self._rates = rates
        self._nodes: dict[str, Node] = {node.name: node for node in cluster.nodes}
        # One stream per node, so that nodes are independent of each other.
        self._streams = {name: np.random.default_rng([rates.seed, index]) for index, name in enumerate(self._nodes)}

    def first(self) -> list[Event]:
        """Return the first failure of each node."""
        return [self._failure(name, 0.0) for name in self._nodes]

    def after(self, event: NodesLost | NodesAdded) -> list[Event]:
        """Return the repair after a failure, or the next failures after a repair."""
        if isinstance(event, NodesLost):
            back = event.at + self._rates.repair_s
            return [NodesAdded(at=back, nodes=tuple(self._nodes[name] for name in event.names))]
        return [self._failure(node.name, event.at) for node in event.nodes]

    def _failure(self, name: str, now: float) -> Event:
        at = now + float(self._streams[name].exponential(self._rates.every_s))
        return NodesLost(at=at, names=(name,))
