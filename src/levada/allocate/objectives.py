"""The objectives of share policies, computed from the shares, not by the solver.

Names are those of Gavel's objectives. x is a share, T a rate, c the GPUs of a type, s the GPUs of a job, w its weight;
y is the rate of a job, alone and in pairs. Jobs that can run nowhere are ignored.


    max_min_normalized, leximin_normalized   min s y / (w p),  p = sum of T c / sum of c
    geo_mean_normalized                      the geometric mean of the same, before the discount
    finish_time_rho                          max (elapsed + left / y) / (isolated so far + left / isolated rate)
    makespan                                 max left / y
    sum_throughput                           sum y
    sum_throughput_per_cost                  sum T x / price
    allox_assignment_cost                    of the whole assignment; shares contain only the first of each queue
    none_sum_throughput                      sum y, for policies without an objective


`_agnostic`: all types are equal (T = 1; for times, the rate on the reference type). `_packed`: with pairs; y / w
instead of y in finish times.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from levada.core.types import Floats
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.isolated import equal_shares
from levada.policies.gavel.lp_common import reference_rates, unit_rates
from levada.policies.gavel.share import Shares

#: The measure of policies without an objective.
NO_OBJECTIVE = "none_sum_throughput"

_WORST_OFF = "speed of the worst-off job relative to its weight; 1 = an average GPU of the cluster all the time"
_MEANINGS = {
    "max_min_normalized": _WORST_OFF,
    "leximin_normalized": _WORST_OFF,
    "geo_mean_normalized": "geometric mean of the speeds of max_min_normalized, before the discount",
    "finish_time_rho": "largest ratio of a job's duration to its duration on 1/n of the cluster; below 1 it gains",
    "makespan": "seconds until all jobs are done",
    "sum_throughput": "total steps/s of all jobs",
    "sum_throughput_per_cost": "total steps/s of all jobs per dollar per hour",
    "allox_assignment_cost": "sum of completion times, in seconds, of the whole assignment",
    "none_sum_throughput": "total steps/s of all jobs; the policy itself has no objective",
}


def meaning(name: str) -> str:
    """A short description of the objective *name*."""
    kind = name.removesuffix("_packed").removesuffix("_agnostic")
    return _MEANINGS[kind] + ("; all GPU types are equal" if name.endswith("_agnostic") else "")


def value(name: str, instance: Instance, shares: Shares, isolated_s: Mapping[int, float]) -> float | None:
    """The objective *name* at these shares; None without jobs or if not finite.

    *isolated_s* is the isolated time so far by job number.
    """
    kind, agnostic = name.removesuffix("_packed").removesuffix("_agnostic"), name.endswith("_agnostic")
    if kind in ("allox_assignment_cost", "geo_mean_normalized"):
        return _finite(shares.objective)
    by_time = kind in ("finish_time_rho", "makespan")
    rate = (reference_rates if by_time else unit_rates)(instance) if agnostic else instance.rate
    reached, per_cost = _reached(instance, shares, rate)
    runs = instance.rate.any(axis=1)
    busy = runs & (instance.steps_left > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        match kind:
            case "max_min_normalized" | "leximin_normalized":
                proportional = rate @ instance.capacity / instance.capacity.sum()
                return _finite(_least((instance.scale * reached / (instance.weight * proportional))[runs]))
            case "finish_time_rho":
                if name.endswith("_packed"):
                    reached = reached / instance.weight
                alone = (rate * equal_shares(instance.capacity, instance.scale)).sum(axis=1)
                so_far = np.array([isolated_s.get(number, 0.0) for number in instance.number.tolist()])
                ratio = (instance.elapsed + instance.steps_left / reached) / (so_far + instance.steps_left / alone)
                return _finite(-_least(-ratio[busy]))
            case "makespan":
                return _finite(-_least(-(instance.steps_left / reached)[busy]))
            case "sum_throughput_per_cost":
                return _finite(per_cost)
            case _:
                return _finite(float(reached.sum()))


def _reached(instance: Instance, shares: Shares, rate: Floats) -> tuple[Floats, float]:
    """The rate of each job, and the sum of all rates over prices.

    *rate* applies to jobs alone; pairs use the real rates.
    """
    parts = rate * shares.share
    reached, per_cost = parts.sum(axis=1), float((parts / instance.prices).sum())
    if shares.pair_share is not None and len(shares.pairs):
        numbers, types = instance.number[shares.pairs], np.arange(len(instance.capacity))
        sizes = instance.size[shares.pairs[:, 0]]
        together = instance.perf.pair_rates(numbers[:, :1], numbers[:, 1:], types[None, :], sizes[:, None])
        parts = together * shares.pair_share[:, :, None]
        for side in (0, 1):
            np.add.at(reached, shares.pairs[:, side], parts[:, :, side].sum(axis=1))
        per_cost += float((parts.sum(axis=2) / instance.prices).sum())
    return reached, per_cost


def _least(values: Floats) -> float:
    return float(values.min(initial=np.inf))


def _finite(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None
