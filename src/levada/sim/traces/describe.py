"""Summarize a trace: number of jobs, time span, work, sizes and workloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from levada.core.types import Floats
from levada.sim.traces.sheet import format_number
from levada.sim.traces.trace import Trace

#: The text lists this many workloads and sums up the others.
_MOST_WORKLOADS = 10


class Durations(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the known durations, in seconds."""

    known: int
    mean: float
    min: float
    p25: float
    p50: float
    p75: float
    p90: float
    p99: float
    max: float


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `levada sim trace describe -o json`. Mixes are numbers of jobs by value."""

    jobs: int
    #: From the first arrival to the last.
    span_s: float
    #: null if all arrive at the same time.
    jobs_per_hour: float | None
    #: Durations times GPUs, over the jobs with a known duration.
    gpu_hours: float
    #: GPU-hours requested per hour, that is, GPUs that would always be busy. null if all arrive at the same time.
    load_gpus: float | None
    duration_s: Durations | None
    scale: dict[str, int]
    weight: dict[str, int]
    workload: dict[str, int]
    elastic: int
    #: Jobs with a deadline, stated or as a multiple of the duration.
    deadlines: int
    users: int
    queues: int


def describe(trace: Trace) -> Description:
    """Summarize *trace*. Work and load need durations: fill them first with `Trace.filled`."""
    span_s = float(np.ptp(trace.arrival_s)) if len(trace) else 0.0
    is_known = ~np.isnan(trace.duration_s)
    gpu_hours = float((trace.duration_s * trace.scale)[is_known].sum()) / 3600.0
    # The span begins with the first arrival, so it contains one arrival less.
    hourly = (len(trace) - 1) / span_s * 3600.0 if span_s > 0 else None
    rigid = (trace.min_workers == trace.scale) & (trace.max_workers == trace.scale)
    return Description(
        jobs=len(trace),
        span_s=span_s,
        jobs_per_hour=hourly,
        gpu_hours=gpu_hours,
        load_gpus=gpu_hours / (span_s / 3600.0) if span_s > 0 else None,
        duration_s=_durations(trace.duration_s[is_known]),
        scale=_mix(map(str, sorted(trace.scale.tolist()))),
        weight=_mix(map(format_number, sorted(trace.weight.tolist()))),
        workload=_mix(trace.workload, by_number=True),
        elastic=int(np.count_nonzero(~rigid)),
        deadlines=int(np.count_nonzero(~(np.isnan(trace.deadline_s) & np.isnan(trace.slo)))),
        users=len(set(trace.text("user")) - {""}),
        queues=len(set(trace.text("queue")) - {""}),
    )


def as_text(summary: Description) -> str:
    """Render the description as text."""
    lines = [
        ("jobs", str(summary.jobs)),
        ("span", _hours(summary.span_s)),
        ("arrivals", "all at once" if summary.jobs_per_hour is None else f"{summary.jobs_per_hour:.2f} per hour"),
        (
            "work",
            f"{summary.gpu_hours:,.1f} GPU-hours" if summary.duration_s else "unknown: the jobs have no durations",
        ),
    ]
    if summary.load_gpus is not None and summary.duration_s:
        lines.append(("load", f"{summary.load_gpus:,.1f} GPUs on average"))
    if summary.duration_s:
        lengths = summary.duration_s
        middle = f"p50 {_hours(lengths.p50)}, p90 {_hours(lengths.p90)}, p99 {_hours(lengths.p99)}"
        lines.append(
            ("duration", f"{_hours(lengths.min)} to {_hours(lengths.max)}, mean {_hours(lengths.mean)}; {middle}")
        )
    lines.append(("GPUs", _parts(summary.scale, summary.jobs)))
    if len(summary.weight) > 1:
        lines.append(("weight", _parts(summary.weight, summary.jobs)))
    lines += [
        (word, str(count))
        for word, count in (
            ("elastic", summary.elastic),
            ("deadlines", summary.deadlines),
            ("users", summary.users),
            ("queues", summary.queues),
        )
        if count
    ]
    named = {name or "(unknown)": count for name, count in summary.workload.items()}
    lines.append(("workloads", str(len(named))))
    lines += [
        ("", f"{100 * count / summary.jobs:5.1f} %  {name}") for name, count in list(named.items())[:_MOST_WORKLOADS]
    ]
    if len(named) > _MOST_WORKLOADS:
        rest = sum(list(named.values())[_MOST_WORKLOADS:])
        lines.append(("", f"{100 * rest / summary.jobs:5.1f} %  {len(named) - _MOST_WORKLOADS} others"))
    return "\n".join(f"{word:<11}{text}" for word, text in lines)


def _durations(known: Floats) -> Durations | None:
    if not known.size:
        return None
    least, p25, p50, p75, p90, p99, most = np.percentile(known, (0, 25, 50, 75, 90, 99, 100)).tolist()
    return Durations(
        known=known.size, mean=float(known.mean()), min=least, p25=p25, p50=p50, p75=p75, p90=p90, p99=p99, max=most
    )


def _mix(values: Iterable[str], *, by_number: bool = False) -> dict[str, int]:
    """Count each value, in the order of occurrence, or most frequent first (*by_number*)."""
    counts = Counter(values)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))) if by_number else dict(counts)


def _parts(mix: Mapping[str, int], jobs: int) -> str:
    return ", ".join(f"{name}: {100 * count / jobs:.1f} %" for name, count in mix.items())


def _hours(seconds: float) -> str:
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:,.1f} h"
