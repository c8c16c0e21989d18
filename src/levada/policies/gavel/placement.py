"""Rates by placement: a job larger than every node is spread over several.

Source: Narayanan et al., OSDI 2020, whose policies can distinguish consolidated from spread jobs (the published
scheduler never did). The placer uses as few nodes as possible, so the policy sees each job's rate on the fewest nodes
that can hold it.
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
        """The state of the wrapped policy."""
        return self.policy.initial(seed)

    def shares(self, instance: Instance, perf: ThroughputModel, state: S) -> tuple[Shares, S]:
        """The shares of the wrapped policy at rates by placement."""
        return self.policy.shares(rates_by_placement(instance), perf, state)


def rates_by_placement(instance: Instance) -> Instance:
    """The instance with the rates of jobs on the fewest nodes that can hold them."""
    adjusted = copy(instance)
    adjusted.rate = instance.rate.copy()
    nodes = fewest_nodes(instance)
    for row, kind in np.argwhere((nodes > 1) & (instance.rate > 0)).tolist():
        number, size = int(instance.number[row]), int(instance.size[row])
        adjusted.rate[row, kind] = instance.perf.rate(number, kind, size, spread=int(nodes[row, kind]))
    return adjusted


def fewest_nodes(instance: Instance) -> Ints:
    """Per job and type the fewest nodes for its workers; 0 if they do not fit."""
    inventory, jobs = instance.snap.inventory, instance.snap.jobs
    gpus = np.maximum(jobs.milli // WHOLE, 1)
    nodes = np.ones((len(instance), len(instance.capacity)), np.int64)
    present = np.bincount(inventory.type_of * len(inventory.nodes) + inventory.node_of, inventory.present)
    for kind in np.unique(inventory.type_of).tolist():
        on_node = present[kind * len(inventory.nodes) : (kind + 1) * len(inventory.nodes)].astype(np.int64)
        for per_worker in np.unique(gpus).tolist():
            rows = np.flatnonzero((gpus == per_worker) & (jobs.milli >= WHOLE))
            held = np.cumsum(np.sort(on_node // per_worker)[::-1])
            needed = np.searchsorted(held, instance.size[rows]) + 1
            nodes[rows, kind] = np.where(needed <= len(held), needed, 0)
    return nodes
