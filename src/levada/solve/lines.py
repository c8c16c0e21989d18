"""AlloX with a column for every place in every GPU's line, as it was published.

`allox.assign` finds the same cost much faster, but GPUs of one type are alike to it: which of two equally good jobs
stands behind which is then a matter of taste. This one settles it as the published matrix does, for comparison.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats


def first_in_line(time: Floats, waited: Floats) -> tuple[float, dict[int, int]]:
    """The least cost, and by line (column of *time*) the job (row) that stands first in it.

    *time* (jobs, GPUs) is how long each job needs on each GPU, *waited* how long it has been there already.
    """
    from scipy.optimize import linear_sum_assignment

    jobs, lines = time.shape
    place = np.arange(1, jobs + 1)
    cost = (place[None, :, None] * time[:, None, :]).reshape(jobs, -1) + waited[:, None]
    at, column = linear_sum_assignment(cost)
    first: dict[int, tuple[int, int]] = {}
    for job, where in zip(at.tolist(), column.tolist(), strict=True):
        from_end, line = where // lines, where % lines
        first[line] = max(first.get(line, (-1, -1)), (from_end, job))
    return float(cost[at, column].sum()), {line: job for line, (_, job) in first.items()}
