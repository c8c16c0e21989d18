"""From what a class gets to what each of its jobs gets, with few types per job."""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels import shadow as kernel


def shadow(rate: Floats, mass: Floats, of: Ints, need: Floats, last: Ints | None = None) -> Floats:
    """Shares (jobs, types) that give each job the rate it *needs* out of the *mass* of time that its class has.

    Jobs in descending order of need take, from what is left sorted by speed with idle time first, the slowest interval
    of one unit that is fast enough. Whenever needs can be met at all with these masses, this meets them; nearly every
    job gets one or two types. Jobs of equal need whose *last* type is nearest to what they need choose first.
    """
    distance = np.zeros(len(of))
    if last is not None:
        known = np.where(last >= 0, rate[of, last], np.inf)
        distance = np.abs(known - need)
    order = np.lexsort((distance, -need, of))
    return kernel.shadow(np.ascontiguousarray(rate), np.ascontiguousarray(mass), of, order, need)
