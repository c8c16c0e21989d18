"""Rates that know where a job would stand: one that is too large for any node runs spread over several.

Source: Narayanan et al., OSDI 2020, whose policies can tell consolidated from spread jobs (the published scheduler
never did). Whoever places jobs keeps them on as few nodes as possible, so each job is taken at the rate that it has on
the fewest nodes that can hold it: what it loses by being larger than a node is known to the policy.
"""

from __future__ import annotations

from copy import copy
from typing import Generic

import numpy as np

from levada.core.types import WHOLE, Ints
from levada.perf.model import ThroughputModel
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.share import S, SharePolicy, Shares


class Placed(Generic[S]):
    """A share policy that sees the rates of jobs on the fewest nodes that hold them."""

    def __init__(self, policy: SharePolicy[S]) -> None:
        self.policy = policy
        self.name, self.needs, self.objective = policy.name, policy.needs, policy.objective
        self.aware, self.packs, self.strict = policy.aware, policy.packs, policy.strict

    def initial(self, seed: int) -> S:
        """The policy's own."""
        return self.policy.initial(seed)

    def shares(self, instance: Instance, perf: ThroughputModel, state: S) -> tuple[Shares, S]:
        """The policy's shares, with rates as they are where jobs would stand."""
        return self.policy.shares(where_they_stand(instance), perf, state)


def where_they_stand(instance: Instance) -> Instance:
    """The same moment with the rates that jobs have on the fewest nodes that can hold them."""
    seen = copy(instance)
    seen.rate = instance.rate.copy()
    nodes = fewest_nodes(instance)
    for row, kind in np.argwhere((nodes > 1) & (instance.rate > 0)).tolist():
        number, size = int(instance.number[row]), int(instance.size[row])
        seen.rate[row, kind] = instance.perf.rate(number, kind, size, spread=int(nodes[row, kind]))
    return seen


def fewest_nodes(instance: Instance) -> Ints:
    """Per job and type how many nodes its workers need at least; 0 where all nodes together cannot hold them."""
    inventory, jobs = instance.snap.inventory, instance.snap.jobs
    gpus = np.maximum(jobs.milli // WHOLE, 1)
    nodes = np.ones((len(instance), len(instance.capacity)), np.int64)
    present = np.bincount(inventory.type_of * len(inventory.nodes) + inventory.node_of, inventory.present)
    for kind in np.unique(inventory.type_of).tolist():
        on_node = present[kind * len(inventory.nodes) : (kind + 1) * len(inventory.nodes)].astype(np.int64)
        for each in np.unique(gpus).tolist():
            rows = np.flatnonzero((gpus == each) & (jobs.milli >= WHOLE))
            held = np.cumsum(np.sort(on_node // each)[::-1])
            needed = np.searchsorted(held, instance.size[rows]) + 1
            nodes[rows, kind] = np.where(needed <= len(held), needed, 0)
    return nodes
