"""Isolated: each job gets 1/n of every GPU type.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020.
The shares are as if the cluster were split into n equal parts. A job of s GPUs can use its part for 1/s of the time;
the total share of a job is at most 1.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from levada.core.types import Floats
from levada.perf.model import ThroughputModel
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.share import ShareDefaults, Shares


def equal_shares(capacity: Floats, scale: Floats) -> Floats:
    """Per job and type the share that 1/n of the cluster gives."""
    share = (capacity / len(scale))[None, :] / scale[:, None]
    return share / np.maximum(share.sum(axis=1), 1.0)[:, None]


class Isolated(ShareDefaults):
    """Equal parts of every type."""

    name: ClassVar[str] = "isolated"

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """1/n of every type for each job."""
        if not len(instance):
            return Shares(share=np.zeros_like(instance.rate)), None
        share = equal_shares(instance.capacity, instance.scale)
        # Isolation: no other job gets the time that a job cannot use of its own part.
        return Shares(share=np.where(instance.rate > 0, share, 0.0)), None
