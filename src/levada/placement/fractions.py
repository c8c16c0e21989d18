"""GPU fractions: the device for one more share, by the rule of KubeShare.

Each node offers its open devices (those with a share) on which compute, memory and tags allow the new share, and an
idle device only if it has no such device. The offer with the least compute left over wins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from levada.core.types import Bools, Ints


class DeviceColumns(NamedTuple):
    """Devices by column. A device that must not be used has `free_milli` 0; a tag is a number, 0 = none."""

    free_milli: Ints
    free_memory: Ints
    is_open: Bools
    node_of: Ints
    affinity: Ints
    anti_affinity: Ints
    exclusion: Ints


class ShareRequest(NamedTuple):
    """Compute, memory and tags of one share of a device."""

    milli: int
    memory: int = 0
    affinity: int = 0
    anti_affinity: int = 0
    exclusion: int = 0


def best_device(devices: DeviceColumns, want: ShareRequest) -> int:
    """The device for a share, or -1: the lowest (leftover compute, node, device)."""
    free_milli, node_of = devices.free_milli, devices.node_of
    fits = (free_milli >= max(want.milli, 1)) & (devices.free_memory >= want.memory)
    offered = fits & devices.is_open
    offered &= tags_allow(
        devices.affinity,
        devices.anti_affinity,
        devices.exclusion,
        want.affinity,
        want.anti_affinity,
        want.exclusion,
    )
    idle = (fits & ~devices.is_open).nonzero()[0]
    if len(idle):
        has_offer = np.zeros(int(node_of.max()) + 1, bool)
        has_offer[node_of[offered]] = True
        offered[idle[~has_offer[node_of[idle]]]] = True
    best = offered.nonzero()[0]
    if not len(best):
        return -1
    best = best[free_milli[best] == free_milli[best].min()]
    # argmin returns the first, that is, the lowest device of a node.
    return int(best[node_of[best].argmin()])


def tags_allow(
    affinity: Ints,
    anti_affinity: Ints,
    exclusion: Ints,
    want_affinity: int,
    want_anti_affinity: int,
    want_exclusion: int,
) -> Bools:
    """Which open devices a share with these tags may join.

    Affinity requires the same tag, anti-affinity a different one; exclusion must be equal, also if there is none.
    """
    allowed: Bools = exclusion == want_exclusion
    if want_affinity:
        allowed &= affinity == want_affinity
    if want_anti_affinity:
        allowed &= anti_affinity != want_anti_affinity
    return allowed
