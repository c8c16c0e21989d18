"""Gavel's two job generators, bit for bit.

They draw the same numbers from the same random streams in the same order. `GavelJobs` is the generator of its
simulator, `gavel_trace` that of its `generate_trace.py`. The streams are those of Python's `random`, with consecutive
seeds from one base seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log, nan

import numpy as np

from levada.compat.gavel.mersenne import Mersenne
from levada.sim.catalogue import templates
from levada.sim.traces.trace import Rate, TraceJob

_TEMPLATES = templates()


class GavelJobs:
    """Endless jobs: durations of minutes to a week, log-uniform in two pieces, and Poisson arrivals from 0."""

    def __init__(
        self,
        seed: int,
        rate: Rate,
        *,
        lam_s: float = 0.0,
        multi_gpu: bool = False,
        priorities: bool = False,
        slos: bool = False,
        fixed_duration_s: float | None = None,
    ) -> None:
        """*lam_s*: mean seconds between arrivals; 0: all at once. *rate*: on a v100."""
        self._jobs, self._gaps, self._slos = Mersenne(seed + 2), Mersenne(seed + 3), Mersenne(seed + 6)
        self._rate, self._lam_s, self._fixed_s = rate, lam_s, fixed_duration_s
        self._multi_gpu, self._priorities, self._with_slos = multi_gpu, priorities, slos

    def __iter__(self) -> Iterator[TraceJob]:
        arrival_s = 0.0
        while True:
            yield self.draw(arrival_s)
            arrival_s += self.gap_s()

    def gap_s(self) -> float:
        """Draw the time to the next arrival."""
        return -log(1.0 - self._gaps.random()) * self._lam_s if self._lam_s > 0 else 0.0

    def draw(self, arrival_s: float) -> TraceJob:
        """Draw the next job, which arrives at *arrival_s*."""
        rng = self._jobs
        # Always drawn, because the following draws depend on it.
        scale = _scale(rng.uniform(0.0, 1.0))
        if not self._multi_gpu:
            scale = 1
        duration_s = self._duration_s(rng) if self._fixed_s is None else self._fixed_s
        template = rng.choice(_TEMPLATES)
        while scale > 1 and not template.distributed:
            template = rng.choice(_TEMPLATES)
        weight = 5.0 if self._priorities and rng.uniform(0.0, 1.0) <= 0.2 else 1.0
        slo = _slo(self._slos.uniform(0.0, 1.0)) if self._with_slos else nan
        steps = duration_s * self._rate(template.name, scale)
        return TraceJob(arrival_s, template.name, scale, steps, duration_s, weight, slo)

    @staticmethod
    def _duration_s(rng: Mersenne) -> float:
        long = rng.random() >= 0.8
        exponent = rng.uniform(3.0, 4.0) if long else rng.uniform(1.5, 3.0)
        return float(60 * 10**exponent)


def _scale(drawn: float) -> int:
    if drawn < 0.7:
        return 1
    if drawn <= 0.8:
        return 2
    return 4 if drawn <= 0.95 else 8


def _slo(drawn: float) -> float:
    if drawn < 0.33:
        return 1.2
    return 2.0 if drawn < 0.67 else 10.0


def durations_s(shortest_h: float = 1.0, longest_h: float = 4.0, number: int = 4) -> list[float]:
    """Return the durations for `gavel_trace`: *number* values, evenly spaced between two numbers of hours."""
    return [float(3600 * hours) for hours in np.linspace(shortest_h, longest_h, number)]


def gavel_trace(
    seed: int,
    rate: Rate,
    *,
    lam_s: float = 0.0,
    lengths_s: Sequence[float] = (),
    multi_gpu: bool = False,
    priorities: bool = False,
) -> Iterator[TraceJob]:
    """Generate endless jobs like `generate_trace.py`: with whole steps, at whole seconds.

    *lengths_s*: the durations to choose from; default: 1 to 4 hours.
    """
    jobs, gaps, lengths, scales = (Mersenne(seed + stream) for stream in range(4))
    choices = lengths_s or durations_s()
    arrival_s = 0.0
    while True:
        template = jobs.choice(_TEMPLATES)
        duration_s = lengths.choice(choices)
        scale = _small_scale(scales.uniform(0.0, 1.0)) if multi_gpu and template.distributed else 1
        weight = 5.0 if priorities and jobs.uniform(0.0, 1.0) <= 0.2 else 1.0
        steps = float(int(duration_s * rate(template.name, scale)))
        yield TraceJob(float(int(arrival_s)), template.name, scale, steps, duration_s, weight)
        if lam_s > 0:
            arrival_s += -log(1.0 - gaps.random()) * lam_s


def _small_scale(drawn: float) -> int:
    if drawn < 0.7:
        return 1
    return 2 if drawn <= 0.8 else 4
