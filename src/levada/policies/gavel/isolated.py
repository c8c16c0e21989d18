"""Each job gets 1/n of every GPU type, as if the cluster were cut into equal pieces.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020.
A job of s GPUs can use that piece for 1/s of the time; nobody runs more than all the time.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from levada.core.types import Floats
from levada.perf.model import ThroughputModel
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.share import Shares, Sharing


def equal_shares(capacity: Floats, scale: Floats) -> Floats:
    """Per job and type the share of one in n equal pieces of the cluster."""
    share = (capacity / len(scale))[None, :] / scale[:, None]
    return share / np.maximum(share.sum(axis=1), 1.0)[:, None]


class Isolated(Sharing):
    """Equal pieces of every type."""

    name: ClassVar[str] = "isolated"

    def initial(self, seed: int) -> None:
        """It remembers nothing."""

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """One n-th of everything for everybody."""
        if not len(instance):
            return Shares(share=np.zeros_like(instance.rate)), None
        share = equal_shares(instance.capacity, instance.scale)
        # What it cannot use of its piece, nobody else gets either: that is the point of a piece.
        return Shares(share=np.where(instance.rate > 0, share, 0.0)), None
