"""Generate the jobs of a workload file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import cos, exp, log, nan, pi
from typing import TypeVar

import numpy as np

from levada.errors import BadInput
from levada.sim.catalogue import templates
from levada.sim.traces.trace import Rate, TraceJob
from levada.sim.workloads import spec as specs

T = TypeVar("T")

DAY_S = 86400.0


def jobs_from_spec(spec: specs.WorkloadSpec, seed: int, rate: Rate) -> Iterator[TraceJob]:
    """Return an endless stream of jobs; raises BadInput if the spec allows none.

    Arrivals and jobs have separate random streams, so a change of one does not affect the other.
    """
    arrival_rng, rng = (np.random.default_rng([seed, stream]) for stream in range(2))
    scale, weight = _mix(spec.scale, rng), _mix(spec.weight, rng)
    slo = _mix(spec.slo, rng) if spec.slo else lambda: nan
    choose_law = _mix({index: law.share for index, law in enumerate(spec.duration)}, rng)
    workload = _workloads(spec, rng)

    def job(arrival_s: float) -> TraceJob:
        size = scale()
        duration_s = _duration_s(spec.duration[choose_law()], rng)
        name = workload(size)
        steps = duration_s * rate(name, size)
        return TraceJob(arrival_s, name, size, steps, duration_s, float(weight()), float(slo()))

    return map(job, _arrivals(spec.arrivals, arrival_rng))


def _mix(shares: Mapping[T, float], rng: np.random.Generator) -> Callable[[], T]:
    """Return a function that draws a value by its share."""
    values, edges = list(shares), np.cumsum(list(shares.values()))
    return lambda: values[int(np.searchsorted(edges[:-1], rng.random() * edges[-1], side="right"))]


def _workloads(spec: specs.WorkloadSpec, rng: np.random.Generator) -> Callable[[int], str]:
    """Return a function that draws a workload for a number of GPUs; raises BadInput if none is distributed."""
    distributed = {template.name: template.distributed for template in templates()}
    shares = spec.workloads or dict.fromkeys(distributed, 1.0)
    # A name outside the catalogue may be in the user's table; it is assumed to be distributed.
    several = {name: share for name, share in shares.items() if distributed.get(name, True)}
    if not several and max(spec.scale) > 1:
        raise BadInput.one("none can run on several GPUs, which scale requests", "workloads")
    one, many = _mix(shares, rng), _mix(several, rng) if several else None
    return lambda scale: one() if scale == 1 or many is None else many()


def _arrivals(process: specs.Arrivals, rng: np.random.Generator) -> Iterator[float]:
    """Yield arrival times from 0."""
    at = 0.0
    match process:
        case specs.AtOnce():
            while True:
                yield 0.0
        case specs.Regular():
            index = 0
            while True:
                yield index * 3600.0 / process.rate
                index += 1
        case specs.Bursts():
            while True:
                for _ in range(int(rng.geometric(1.0 / process.size))):
                    yield at
                at += float(rng.exponential()) * 3600.0 / process.rate * process.size
        case specs.Poisson():
            while True:
                yield at
                at = _next_daily(at, process, rng)


def _next_daily(at: float, process: specs.Poisson, rng: np.random.Generator) -> float:
    """Return the next arrival: drawn at the highest rate and accepted with the relative rate of its hour (thinning)."""
    busiest = 1.0 + process.daily
    while True:
        at += float(rng.exponential()) * 3600.0 / (process.rate * busiest)
        # The trace begins at midnight.
        if not process.daily or rng.random() * busiest <= 1.0 - process.daily * cos(2 * pi * at / DAY_S):
            return at


def _duration_s(law: specs.Law, rng: np.random.Generator) -> float:
    match law:
        case specs.Fixed():
            return law.value
        case specs.Uniform():
            return float(rng.uniform(law.min, law.max))
        case specs.LogUniform():
            return exp(float(rng.uniform(log(law.min), log(law.max))))
        case specs.LogNormal():
            return law.median * exp(float(rng.normal()) * law.sigma)
        case specs.Exponential():
            return float(rng.exponential()) * law.mean
