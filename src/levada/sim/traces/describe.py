"""A trace at a glance: how many jobs, over what time, how much work, of which sizes and kinds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from levada.core.types import Floats
from levada.sim.traces.sheet import number
from levada.sim.traces.trace import Trace

#: Kinds beyond these are summed up in the text.
_MOST_KINDS = 10


class Durations(msgspec.Struct, frozen=True, kw_only=True):
    """Of the jobs whose duration is known, in seconds."""

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
    """What `levada sim trace describe -o json` prints. Mixes are numbers of jobs."""

    jobs: int
    #: From the first arrival to the last.
    span_s: float
    #: null where all arrive together.
    jobs_per_hour: float | None
    #: Durations times GPUs, where the duration is known.
    gpu_hours: float
    #: GPU-hours asked for in an hour: so many GPUs would be busy without end. null where all arrive together.
    load_gpus: float | None
    duration_s: Durations | None
    scale: dict[str, int]
    weight: dict[str, int]
    workload: dict[str, int]
    elastic: int
    #: Jobs with a deadline, or with one that follows from a duration.
    deadlines: int
    users: int
    queues: int


def describe(trace: Trace) -> Description:
    """What *trace* holds. Without durations there is no load: fill them first, with `Trace.filled`."""
    span_s = float(np.ptp(trace.arrival_s)) if len(trace) else 0.0
    is_known = ~np.isnan(trace.duration_s)
    gpu_hours = float((trace.duration_s * trace.scale)[is_known].sum()) / 3600.0
    # The first arrival opens the time, and does not fall into it.
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
        weight=_mix(map(number, sorted(trace.weight.tolist()))),
        workload=_mix(trace.workload, by_number=True),
        elastic=int(np.count_nonzero(~rigid)),
        deadlines=int(np.count_nonzero(~(np.isnan(trace.deadline_s) & np.isnan(trace.slo)))),
        users=len(set(trace.text("user")) - {""}),
        queues=len(set(trace.text("queue")) - {""}),
    )


def as_text(about: Description) -> str:
    """The description for people."""
    lines = [
        ("jobs", str(about.jobs)),
        ("span", _hours(about.span_s)),
        ("arrivals", "all at once" if about.jobs_per_hour is None else f"{about.jobs_per_hour:.2f} per hour"),
        ("work", f"{about.gpu_hours:,.1f} GPU-hours" if about.duration_s else "unknown: the jobs have no durations"),
    ]
    if about.load_gpus is not None and about.duration_s:
        lines.append(("load", f"{about.load_gpus:,.1f} GPUs on average"))
    if about.duration_s:
        at = about.duration_s
        middle = f"p50 {_hours(at.p50)}, p90 {_hours(at.p90)}, p99 {_hours(at.p99)}"
        lines.append(("duration", f"{_hours(at.min)} to {_hours(at.max)}, mean {_hours(at.mean)}; {middle}"))
    lines.append(("GPUs", _parts(about.scale, about.jobs)))
    if len(about.weight) > 1:
        lines.append(("weight", _parts(about.weight, about.jobs)))
    lines += [
        (word, str(count))
        for word, count in (
            ("elastic", about.elastic),
            ("deadlines", about.deadlines),
            ("users", about.users),
            ("queues", about.queues),
        )
        if count
    ]
    named = {name or "(unknown)": count for name, count in about.workload.items()}
    lines.append(("workloads", str(len(named))))
    lines += [("", f"{100 * count / about.jobs:5.1f} %  {name}") for name, count in list(named.items())[:_MOST_KINDS]]
    if len(named) > _MOST_KINDS:
        rest = sum(list(named.values())[_MOST_KINDS:])
        lines.append(("", f"{100 * rest / about.jobs:5.1f} %  {len(named) - _MOST_KINDS} others"))
    return "\n".join(f"{word:<11}{text}" for word, text in lines)


def _durations(known: Floats) -> Durations | None:
    if not known.size:
        return None
    least, p25, p50, p75, p90, p99, most = np.percentile(known, (0, 25, 50, 75, 90, 99, 100)).tolist()
    return Durations(
        known=known.size, mean=float(known.mean()), min=least, p25=p25, p50=p50, p75=p75, p90=p90, p99=p99, max=most
    )


def _mix(values: Iterable[str], *, by_number: bool = False) -> dict[str, int]:
    """How often each comes, in the order of coming, or most often first."""
    counts = Counter(values)
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0]))) if by_number else dict(counts)


def _parts(mix: Mapping[str, int], jobs: int) -> str:
    return ", ".join(f"{name}: {100 * count / jobs:.1f} %" for name, count in mix.items())


def _hours(seconds: float) -> str:
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:,.1f} h"
