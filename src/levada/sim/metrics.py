"""What a simulation is judged by: from the columns of its jobs to the report of `levada sim run`.

- A job's completion time (JCT) runs from its arrival to its end. Averages and percentiles are over the *measured* jobs
  that finished: all, or those of a window. Percentiles interpolate linearly between neighbours (numpy's default).
- Finish-time fairness is the JCT over the time that the job would have taken with 1/n of the cluster; a job is treated
  unfairly above 1.05 (`metrics_fairness`).
- A deadline is a time on the simulation's clock. It is missed by a job that ended later, was dropped, or was not done
  when the simulation ended after it.
- Utilisation is GPU-seconds in use over GPU-seconds there, from time 0 to the end.
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
    """The jobs that are measured: from `start` up to, but without, `stop`; by place in the trace."""

    start: int = 0
    stop: int | None = None

    @staticmethod
    def parse(text: str) -> Window:
        """The window that `A:B`, `A:` or `:B` names; raises BadInput."""
        found = re.fullmatch(r"([0-9]{0,15}):([0-9]{0,15})", text)
        if not found:
            raise BadInput.one(f"window {text!r} must be A:B, the first job that is measured and the first that is not")
        start, stop = int(found[1] or 0), int(found[2]) if found[2] else None
        if stop is not None and stop <= start:
            raise BadInput.one(f"window {text!r} holds no job: the second number must be above the first")
        return Window(start, stop)

    def __str__(self) -> str:
        """As `--window` takes it."""
        return f"{self.start}:{'' if self.stop is None else self.stop}"

    def rows(self, jobs: int) -> slice:
        """The rows of the measured jobs among so many."""
        return slice(min(self.start, jobs), jobs if self.stop is None else min(self.stop, jobs))


ALL = Window()


class Outcomes(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What became of the jobs that arrived, in their order."""

    arrival_s: Floats
    #: nan: it never ran.
    started_s: Floats
    #: nan: it has not finished.
    finished_s: Floats
    #: Given up; such a job has no end.
    dropped: Bools
    #: inf: none.
    deadline_s: Floats
    #: The time with 1/n of the cluster; nan: unknown.
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
        """The outcomes of a trace's first jobs, as many as *finished_s* has."""
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
        """Completion times; nan for a job that has not finished."""
        return self.finished_s - self.arrival_s

    def missed(self, end_s: float) -> Bools:
        """Which jobs missed their deadline in a simulation that ended at *end_s*."""
        never = np.where(self.dropped & (self.deadline_s < inf), inf, end_s)
        return np.where(np.isnan(self.finished_s), never, self.finished_s) > self.deadline_s


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulated cluster counted."""

    #: GPU-seconds in use, by type.
    used_gpu_s: Mapping[str, float]
    #: The clock at the end: when the last measured job finished.
    end_s: float
    #: $; computed from the prices where it was not counted.
    cost: float | None = None
    rounds: int = 0
    #: Jobs in all rounds, each once in each.
    job_rounds: int = 0
    decisions: int = 0
    preemptions: int = 0
    resizes: int = 0
    moves: int = 0
    #: Jobs that kept their GPUs from one round to the next, and those that could have.
    lease_extensions: int = 0
    lease_opportunities: int = 0


class Run(Facts, frozen=True, kw_only=True):
    """What else is known of a simulation: the policy, the cluster, and what the simulation itself took."""

    policy: str
    #: GPUs by type.
    gpus: Mapping[str, int]
    #: $ per GPU and hour, 1 where absent.
    prices: Mapping[str, float] = {}
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_rss_mb: float = 0.0


class Fairness(msgspec.Struct, frozen=True, kw_only=True):
    """Finish-time fairness; null where no job's is known."""

    mean: float | None
    worst: float | None
    #: The part of jobs above 1.05.
    unfair: float | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `levada sim run -o json`, in this order. What cannot be told is null."""

    policy: str
    #: All that arrived, and those of them that finished; averages are over the measured.
    jobs: int
    finished: int
    makespan_s: float
    avg_jct_s: float | None
    #: Of every job that ended, measured or not; null for a job that was dropped.
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


def report(jobs: Outcomes, run: Run, window: Window = ALL) -> Report:
    """The report on a simulation."""
    rows = window.rows(len(jobs))
    jct_s = jobs.jct_s
    ended = (~np.isnan(jct_s) | jobs.dropped).nonzero()[0]
    measured = known(jct_s[rows])
    p50, p90, p99 = percentiles(measured)
    return Report(
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
    """Finish-time fairness of the measured jobs that finished."""
    rows = window.rows(len(jobs))
    alone = jobs.isolated_s[rows]
    ratio = known(jobs.jct_s[rows] / np.where(alone > 0, alone, nan))
    if not ratio.size:
        return Fairness(mean=None, worst=None, unfair=None)
    return Fairness(mean=float(ratio.mean()), worst=float(ratio.max()), unfair=float((ratio > UNFAIR).mean()))


def utilization(run: Run) -> float:
    """GPU-seconds in use over GPU-seconds there."""
    there = sum(run.gpus.values()) * run.end_s
    return sum(run.used_gpu_s.values()) / there if there > 0 else 0.0


def cost(run: Run) -> float:
    """$ for the GPUs in use."""
    if run.cost is not None:
        return run.cost
    return sum(used * run.prices.get(gpu_type, 1.0) for gpu_type, used in run.used_gpu_s.items()) / 3600.0


def mean(values: Floats) -> float | None:
    """The mean; None of nothing."""
    return float(values.mean()) if values.size else None


def percentiles(values: Floats) -> tuple[float | None, float | None, float | None]:
    """The 50th, 90th and 99th, interpolated linearly between neighbours; None of nothing."""
    if not values.size:
        return None, None, None
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return p50, p90, p99


def known(values: Floats) -> Floats:
    """Those that are not nan."""
    return values[~np.isnan(values)]


def _or_none(value: float) -> float | None:
    return None if value != value else value
