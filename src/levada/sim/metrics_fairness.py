"""The time a job would have taken with 1/n of the cluster, n being the jobs that were there at each moment.

With N GPUs in all, job m of scale s_m gets, of each type, 1/n of its GPUs for 1/s_m of the time, and never more than
all of the time: its rate is then sum_j T_mj N_j / max(s_m n, N), as in Gavel's `isolated` policy. n changes as jobs
come and go, so the time is found from the integral of 1 / max(s_m n(t), N), the same for all jobs of a scale.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints


def isolated_s(
    *, arrival_s: Floats, finished_s: Floats, scale: Ints, steps: Floats, rates: Floats, gpus: Ints, end_s: float
) -> Floats:
    """Seconds that each job would have taken; nan where steps or rates are unknown, or no GPU could run it.

    *rates*: steps/s by job and GPU type, at the job's scale; *gpus* by type. A job that did not finish (nan) was there
    until *end_s*; after the end nothing changes any more, but that there is always the job itself.
    """
    if not len(arrival_s):
        return np.zeros(0)
    times, present = _present(arrival_s, np.where(np.isnan(finished_s), end_s, finished_s))
    with np.errstate(divide="ignore", invalid="ignore"):
        need = np.where((work := rates @ gpus) > 0, steps / work, np.nan)
    answer = np.full(len(arrival_s), np.nan)
    for size in np.unique(scale).tolist():
        speed = 1.0 / np.maximum(size * present, gpus.sum())
        passed = np.concatenate(([0.0], np.cumsum(np.diff(times) * speed[:-1])))
        rows = (scale == size).nonzero()[0]
        done = np.interp(arrival_s[rows], times, passed) + need[rows]
        beyond = np.maximum(done - passed[-1], 0.0) / speed[-1]
        answer[rows] = np.interp(done, passed, times) + beyond - arrival_s[rows]
    return answer


def _present(arrival_s: Floats, gone_s: Floats) -> tuple[Floats, Floats]:
    """When the number of jobs changes, and how many there are from then on; never fewer than one."""
    moments = np.concatenate((arrival_s, gone_s))
    change = np.concatenate((np.ones(len(arrival_s)), -np.ones(len(gone_s))))
    times, place = np.unique(moments, return_inverse=True)
    return times, np.maximum(np.cumsum(np.bincount(place, change, len(times))), 1.0)
