"""Jobs like Philly's: mostly small and short, a few that last weeks.

Large jobs are longer. The tables summarize, in two digits, the 33,192 jobs of at least an hour that Gavel's authors
took from the public trace: the frequency of each scale, and durations at some quantiles, interpolated linearly in the
logarithm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from levada.sim.catalogue import templates
from levada.sim.traces.trace import Rate, TraceJob

SCALES: Mapping[int, float] = {1: 0.76, 2: 0.02, 4: 0.09, 8: 0.13}

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
#: Hours at those quantiles, by scale.
HOURS: Mapping[int, tuple[float, ...]] = {
    1: (1.0, 1.2, 1.6, 3.0, 8.8, 39.0, 510.0, 1400.0),
    2: (1.0, 3.6, 9.1, 28.0, 92.0, 160.0, 500.0, 1400.0),
    4: (1.0, 2.2, 4.7, 20.0, 49.0, 110.0, 570.0, 1400.0),
    8: (1.0, 2.1, 4.2, 18.0, 61.0, 150.0, 610.0, 1400.0),
}


def philly(seed: int, rate: Rate, *, lam_s: float = 0.0, multi_gpu: bool = True) -> Iterator[TraceJob]:
    """Generate endless jobs with Poisson arrivals from 0; without *multi_gpu* only single-GPU jobs.

    *lam_s*: mean seconds between arrivals; 0: all at once. *rate*: on the GPU type that durations refer to.
    """
    rng = np.random.default_rng(seed)
    names_by_multi = {
        multi: [template.name for template in templates() if template.distributed or not multi] for multi in (0, 1)
    }
    scales, shares = list(SCALES), np.cumsum(list(SCALES.values()))
    arrival_s = 0.0
    while True:
        scale = scales[int(np.searchsorted(shares, rng.random() * shares[-1], side="right"))] if multi_gpu else 1
        duration_s = float(np.exp(np.interp(rng.random(), QUANTILES, np.log(HOURS[scale])))) * 3600.0
        names = names_by_multi[scale > 1]
        workload = names[int(rng.integers(len(names)))]
        yield TraceJob(arrival_s, workload, scale, duration_s * rate(workload, scale), duration_s)
        arrival_s += float(rng.exponential()) * lam_s
