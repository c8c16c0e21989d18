"""Jobs of a user's own workload, drawn by its spec."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import cos, exp, log, nan, pi
from typing import TypeVar

import numpy as np

from levada.errors import BadInput
from levada.sim.catalogue import templates
from levada.sim.traces.trace import Rate, TraceJob
from levada.sim.workloads import spec as given

T = TypeVar("T")

DAY_S = 86400.0


def drawn(spec: given.Spec, seed: int, rate: Rate) -> Iterator[TraceJob]:
    """Jobs without end; raises BadInput where there can be none.

    The streams of arrivals and of what arrives are apart, so that a change of one leaves the other as it was.
    """
    when, what = (np.random.default_rng([seed, stream]) for stream in range(2))
    scale, weight = _mix(spec.scale, what), _mix(spec.weight, what)
    slo = _mix(spec.slo, what) if spec.slo else lambda: nan
    law = _mix({place: each.share for place, each in enumerate(spec.duration)}, what)
    workload = _workloads(spec, what)

    def job(arrival_s: float) -> TraceJob:
        size = scale()
        duration_s = _duration_s(spec.duration[law()], what)
        name = workload(size)
        steps = duration_s * rate(name, size)
        return TraceJob(arrival_s, name, size, steps, duration_s, float(weight()), float(slo()))

    return map(job, _arrivals(spec.arrivals, when))


def _mix(shares: Mapping[T, float], rng: np.random.Generator) -> Callable[[], T]:
    """A draw among values by their shares."""
    values, edges = list(shares), np.cumsum(list(shares.values()))
    return lambda: values[int(np.searchsorted(edges[:-1], rng.random() * edges[-1], side="right"))]


def _workloads(spec: given.Spec, rng: np.random.Generator) -> Callable[[int], str]:
    """A draw of a workload that can have so many GPUs; raises BadInput where none can."""
    able = {each.name: each.distributed for each in templates()}
    shares = spec.workloads or dict.fromkeys(able, 1.0)
    # A name that the catalogue does not know may be in the user's table; it is taken at its word.
    several = {name: share for name, share in shares.items() if able.get(name, True)}
    if not several and max(spec.scale) > 1:
        raise BadInput.one("none of them can have several GPUs, which scale asks for", "workloads")
    one, many = _mix(shares, rng), _mix(several, rng) if several else None
    return lambda scale: one() if scale == 1 or many is None else many()


def _arrivals(process: given.Arrivals, rng: np.random.Generator) -> Iterator[float]:
    """Times from 0 on."""
    at = 0.0
    match process:
        case given.AtOnce():
            while True:
                yield 0.0
        case given.Regular():
            place = 0
            while True:
                yield place * 3600.0 / process.rate
                place += 1
        case given.Bursts():
            while True:
                for _ in range(int(rng.geometric(1.0 / process.size))):
                    yield at
                at += float(rng.exponential()) * 3600.0 / process.rate * process.size
        case given.Poisson():
            while True:
                yield at
                at = _next_of_the_day(at, process, rng)


def _next_of_the_day(at: float, process: given.Poisson, rng: np.random.Generator) -> float:
    """The next arrival: drawn at the busiest rate, and kept as often as the hour is that busy (thinning)."""
    busiest = 1.0 + process.daily
    while True:
        at += float(rng.exponential()) * 3600.0 / (process.rate * busiest)
        # Midnight is the start of the trace.
        if not process.daily or rng.random() * busiest <= 1.0 - process.daily * cos(2 * pi * at / DAY_S):
            return at


def _duration_s(law: given.Law, rng: np.random.Generator) -> float:
    match law:
        case given.Fixed():
            return law.value
        case given.Uniform():
            return float(rng.uniform(law.min, law.max))
        case given.LogUniform():
            return exp(float(rng.uniform(log(law.min), log(law.max))))
        case given.LogNormal():
            return law.median * exp(float(rng.normal()) * law.sigma)
        case given.Exponential():
            return float(rng.exponential()) * law.mean
