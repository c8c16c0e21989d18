"""Metrics of a simulation: from columns of jobs to the report of `levada sim run`.

- The completion time (JCT) of a job is the time from its arrival to its end. Averages and percentiles are over the
  *measured* jobs that finished: all, or those of a window. Percentiles are interpolated linearly (numpy's default).
- Finish-time fairness is the JCT divided by the time that the job would take with 1/n of the cluster (`isolated_s`); a
  job is treated unfairly above 1.05.
- A deadline is a time on the simulation's clock. A job misses it if it ends later, is dropped, or has not ended when
  the simulation ends after the deadline.
- Utilization is GPU-seconds in use divided by GPU-seconds of the cluster, from time 0 to the end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf, nan

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from levada.core.types import Bools, Floats, Ints
from levada.errors import BadInput
from levada.sim.traces.trace import Trace

UNFAIR = 1.05


class Window(msgspec.Struct, frozen=True):
    """The measured jobs: positions `start` (inclusive) to `stop` (exclusive) in the trace."""

    start: int = 0
    stop: int | None = None

    @staticmethod
    def parse(text: str) -> Window:
        """Parse `A:B`, `A:` or `:B`; raises BadInput."""
        match = re.fullmatch(r"([0-9]{0,15}):([0-9]{0,15})", text)
        if not match:
            raise BadInput.one(
                f"--window {text!r} must be A:B: the first measured job and the first one after the window"
            )
        start, stop = int(match[1] or 0), int(match[2]) if match[2] else None
        if stop is not None and stop <= start:
            raise BadInput.one(f"--window {text!r} is empty: the second number must be above the first")
        return Window(start, stop)

    def __str__(self) -> str:
        """Return the syntax of `--window`."""
        return f"{self.start}:{'' if self.stop is None else self.stop}"

    def rows(self, jobs: int) -> slice:
        """Return the rows of the measured jobs among *jobs* jobs."""
        return slice(min(self.start, jobs), jobs if self.stop is None else min(self.stop, jobs))


ALL = Window()


class Outcomes(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Outcomes of all arrived jobs, in the order of arrival."""

    arrival_s: Floats
    #: nan: never ran.
    started_s: Floats
    #: nan: not finished.
    finished_s: Floats
    #: Dropped jobs have no end.
    dropped: Bools
    #: inf: none.
    deadline_s: Floats
    #: Time with 1/n of the cluster; nan: unknown.
    isolated_s: Floats
    scale: Ints
    weight: Floats
    workload: tuple[str, ...]

    @staticmethod
    def of(
        trace: Trace,
        *,
        finished_s: ArrayLike,
        started_s: ArrayLike = nan,
        dropped: ArrayLike = False,
        isolated_s: ArrayLike = nan,
    ) -> Outcomes:
        """Return the outcomes of the first jobs of *trace*, as many as *finished_s* has."""
        ends = np.asarray(finished_s, np.float64)
        count = len(ends)

        def column(values: ArrayLike) -> Floats:
            return np.broadcast_to(np.asarray(values, np.float64), count)

        return Outcomes(
            arrival_s=trace.arrival_s[:count],
            started_s=column(started_s),
            finished_s=ends,
            dropped=np.broadcast_to(np.asarray(dropped, bool), count),
            deadline_s=trace.deadlines()[:count],
            isolated_s=column(isolated_s),
            scale=trace.scale[:count],
            weight=trace.weight[:count],
            workload=trace.workload[:count],
        )

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def jct_s(self) -> Floats:
        """Completion times; nan for unfinished jobs."""
        return self.finished_s - self.arrival_s

    def missed(self, end_s: float) -> Bools:
        """Return which jobs missed their deadline in a simulation that ended at *end_s*."""
        never = np.where(self.dropped & (self.deadline_s < inf), inf, end_s)
        return np.where(np.isnan(self.finished_s), never, self.finished_s) > self.deadline_s


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a simulated cluster."""

    #: GPU-seconds in use, by type.
    used_gpu_s: Mapping[str, float]
    #: Simulated time at the end, when the last measured job finished.
    end_s: float
    #: $; None: computed from the prices.
    cost: float | None = None
    rounds: int = 0
    #: Sum of jobs over all rounds.
    job_rounds: int = 0
    decisions: int = 0
    preemptions: int = 0
    resizes: int = 0
    moves: int = 0
    #: Jobs that kept their GPUs from one round to the next, and those that could have kept them.
    lease_extensions: int = 0
    lease_opportunities: int = 0


class RunFacts(Facts, frozen=True, kw_only=True):
    """Counters plus policy, cluster, and the resources that the simulation itself used."""

    policy: str
    #: GPUs by type.
    gpus: Mapping[str, int]
    #: $ per GPU-hour, 1 if absent.
    prices: Mapping[str, float] = {}
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_rss_mb: float = 0.0


class Fairness(msgspec.Struct, frozen=True, kw_only=True):
    """Finish-time fairness; null if unknown for all jobs."""

    mean: float | None
    worst: float | None
    #: Fraction of jobs above 1.05.
    unfair: float | None


class SimReport(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `levada sim run -o json`, in this order. Unknown values are null."""

    policy: str
    #: Jobs that arrived, and those of them that finished; averages are over measured jobs.
    jobs: int
    finished: int
    makespan_s: float
    avg_jct_s: float | None
    #: JCT of every job that ended, measured or not; null for dropped jobs.
    jct_s: dict[str, float | None]
    p50_jct_s: float | None
    p90_jct_s: float | None
    p99_jct_s: float | None
    utilization: float
    ftf: Fairness
    cost: float
    slo_violations: int
    rounds: int
    decisions: int
    preemptions: int
    cpu_s: float
    wall_s: float
    peak_rss_mb: float


def report(jobs: Outcomes, run: RunFacts, window: Window = ALL) -> SimReport:
    """Return the report of a simulation."""
    rows = window.rows(len(jobs))
    jct_s = jobs.jct_s
    ended = (~np.isnan(jct_s) | jobs.dropped).nonzero()[0]
    measured = known(jct_s[rows])
    p50, p90, p99 = percentiles(measured)
    return SimReport(
        policy=run.policy,
        jobs=len(jobs),
        finished=int(np.count_nonzero(~np.isnan(jct_s))),
        makespan_s=run.end_s,
        avg_jct_s=mean(measured),
        jct_s={str(row): _or_none(jct) for row, jct in zip(ended.tolist(), jct_s[ended].tolist(), strict=True)},
        p50_jct_s=p50,
        p90_jct_s=p90,
        p99_jct_s=p99,
        utilization=utilization(run),
        ftf=fairness(jobs, window),
        cost=cost(run),
        slo_violations=int(np.count_nonzero(jobs.missed(run.end_s)[rows])),
        rounds=run.rounds,
        decisions=run.decisions,
        preemptions=run.preemptions,
        cpu_s=run.cpu_s,
        wall_s=run.wall_s,
        peak_rss_mb=run.peak_rss_mb,
    )


def fairness(jobs: Outcomes, window: Window = ALL) -> Fairness:
    """Return the finish-time fairness of the measured jobs that finished."""
    rows = window.rows(len(jobs))
    alone = jobs.isolated_s[rows]
    ratio = known(jobs.jct_s[rows] / np.where(alone > 0, alone, nan))
    if not ratio.size:
        return Fairness(mean=None, worst=None, unfair=None)
    return Fairness(mean=float(ratio.mean()), worst=float(ratio.max()), unfair=float((ratio > UNFAIR).mean()))


def isolated_s(
    *, arrival_s: Floats, finished_s: Floats, scale: Ints, steps: Floats, rates: Floats, gpus: Ints, end_s: float
) -> Floats:
    """Seconds that each job would take with 1/n of the cluster, n being the jobs in the system at each moment.

    With N GPUs in total, job m of scale s_m gets, of each type, 1/n of its GPUs for 1/s_m of the time, and never more
    than all of the time: its rate is sum_j T_mj N_j / max(s_m n, N), as in Gavel's `isolated` policy. n changes with
    arrivals and ends, so the time follows from the integral of 1 / max(s_m n(t), N), the same for all jobs of a scale.

    *rates*: steps/s by job and GPU type, at the job's scale; *gpus* by type. A job that did not finish (nan) counts
    until *end_s*; after the end n is constant and at least 1. nan: steps or rates are unknown, or no GPU can run it.
    """
    if not len(arrival_s):
        return np.zeros(0)
    times, present = _jobs_in_system(arrival_s, np.where(np.isnan(finished_s), end_s, finished_s))
    with np.errstate(divide="ignore", invalid="ignore"):
        need = np.where((work := rates @ gpus) > 0, steps / work, np.nan)
    seconds = np.full(len(arrival_s), np.nan)
    for size in np.unique(scale).tolist():
        speed = 1.0 / np.maximum(size * present, gpus.sum())
        passed = np.concatenate(([0.0], np.cumsum(np.diff(times) * speed[:-1])))
        rows = (scale == size).nonzero()[0]
        done = np.interp(arrival_s[rows], times, passed) + need[rows]
        beyond = np.maximum(done - passed[-1], 0.0) / speed[-1]
        seconds[rows] = np.interp(done, passed, times) + beyond - arrival_s[rows]
    return seconds


def _jobs_in_system(arrival_s: Floats, gone_s: Floats) -> tuple[Floats, Floats]:
    """Times when the number of jobs changes, and the number from then on, at least 1."""
    moments = np.concatenate((arrival_s, gone_s))
    change = np.concatenate((np.ones(len(arrival_s)), -np.ones(len(gone_s))))
    times, place = np.unique(moments, return_inverse=True)
    return times, np.maximum(np.cumsum(np.bincount(place, change, len(times))), 1.0)


def utilization(run: RunFacts) -> float:
    """Return GPU-seconds in use divided by GPU-seconds of the cluster."""
    total = sum(run.gpus.values()) * run.end_s
    return sum(run.used_gpu_s.values()) / total if total > 0 else 0.0


def cost(run: RunFacts) -> float:
    """Return the cost of the GPUs in use, in $."""
    if run.cost is not None:
        return run.cost
    return sum(used * run.prices.get(gpu_type, 1.0) for gpu_type, used in run.used_gpu_s.items()) / 3600.0


def mean(values: Floats) -> float | None:
    """Return the mean; None if empty."""
    return float(values.mean()) if values.size else None


def percentiles(values: Floats) -> tuple[float | None, float | None, float | None]:
    """Return the 50th, 90th and 99th percentiles, interpolated linearly; None if empty."""
    if not values.size:
        return None, None, None
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return p50, p90, p99


def known(values: Floats) -> Floats:
    """Return the values that are not nan."""
    return values[~np.isnan(values)]


def _or_none(value: float) -> float | None:
    return None if value != value else value
