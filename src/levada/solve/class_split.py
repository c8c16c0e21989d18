"""Split the time of a class of jobs among its jobs, with few types per job."""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels import class_split


def split_classes(rate: Floats, mass: Floats, of: Ints, need: Floats, last: Ints | None = None) -> Floats:
    """Shares (jobs, types) that give each job the rate in *need* from the *mass* of time of its class.

    Sort the remaining time by speed, idle time first. In descending order of need, each job takes the slowest interval
    of length 1 that is fast enough. This meets all needs if these masses can meet them; nearly every job gets one or
    two types. Among jobs of equal need, those whose *last* type has a speed near their need choose first.
    """
    distance = np.zeros(len(of))
    if last is not None:
        last_rate = np.where(last >= 0, rate[of, last], np.inf)
        distance = np.abs(last_rate - need)
    order = np.lexsort((distance, -need, of))
    return class_split.split_classes(np.ascontiguousarray(rate), np.ascontiguousarray(mass), of, order, need)
