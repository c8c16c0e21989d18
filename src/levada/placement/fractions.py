"""Parts of a GPU: which device takes one more share.

KubeShare's rule: each node offers those of its open devices (some share is on them) where compute, memory and tags
allow the newcomer, and a fresh device only if it has none such; of all offers the smallest leftover compute wins.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Bools, Ints


def best_device(
    free_milli: Ints,
    free_memory: Ints,
    is_open: Bools,
    node_of: Ints,
    affinity: Ints,
    anti_affinity: Ints,
    exclusion: Ints,
    *,
    want_milli: int,
    want_memory: int = 0,
    want_affinity: int = 0,
    want_anti_affinity: int = 0,
    want_exclusion: int = 0,
) -> int:
    """The device for a share, or -1: of those where it fits, the lowest (leftover compute, node, device).

    Columns are per device; tags are numbers, 0 = none. A device that must not be used has `free_milli` 0. Neither
    compute nor memory is ever given twice, on a fresh device either.
    """
    fits = (free_milli >= max(want_milli, 1)) & (free_memory >= want_memory)
    offered = fits & is_open
    offered &= tags_allow(affinity, anti_affinity, exclusion, want_affinity, want_anti_affinity, want_exclusion)
    fresh = (fits & ~is_open).nonzero()[0]
    if len(fresh):
        has_offer = np.zeros(int(node_of.max()) + 1, bool)
        has_offer[node_of[offered]] = True
        offered[fresh[~has_offer[node_of[fresh]]]] = True
    devices = offered.nonzero()[0]
    if not len(devices):
        return -1
    devices = devices[free_milli[devices] == free_milli[devices].min()]
    # argmin takes the first, so devices of one node count by number.
    return int(devices[node_of[devices].argmin()])


def tags_allow(
    affinity: Ints,
    anti_affinity: Ints,
    exclusion: Ints,
    want_affinity: int,
    want_anti_affinity: int,
    want_exclusion: int,
) -> Bools:
    """Which open devices a newcomer with these tags may join.

    Affinity asks for the same tag, anti-affinity for another one; exclusion must be equal, and none is a value too.
    """
    allowed: Bools = exclusion == want_exclusion
    if want_affinity:
        allowed &= affinity == want_affinity
    if want_anti_affinity:
        allowed &= anti_affinity != want_anti_affinity
    return allowed
