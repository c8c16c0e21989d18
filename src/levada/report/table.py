"""Compare policies: mean over seeds per load and cluster, interval, and the best.

The interval is Student's at 95 %: mean ± t(0.975, n-1) s / sqrt(n). A load at which any seed saturated has no mean: the
mean of the other seeds would favour the policy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from levada.errors import BadInput, did_you_mean
from levada.report.data import Runs
from levada.sim.sweep.run import FINISHED


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """A column of `runs.parquet`, and how it is displayed."""

    column: str
    title: str
    unit: str = ""
    #: Displayed is the value times this.
    factor: float = 1.0
    digits: int = 2
    #: `neither` for metrics without a better direction, e.g. GPUs are in use for longer under a slow policy.
    better: Literal["low", "neither"] = "low"


_HOUR = 1.0 / 3600.0
METRICS: dict[str, Metric] = {
    metric.column: metric
    for metric in (
        Metric(column="avg_jct_s", title="mean JCT", unit="h", factor=_HOUR),
        Metric(column="p50_jct_s", title="p50 JCT", unit="h", factor=_HOUR),
        Metric(column="p90_jct_s", title="p90 JCT", unit="h", factor=_HOUR),
        Metric(column="p99_jct_s", title="p99 JCT", unit="h", factor=_HOUR),
        Metric(column="makespan_s", title="makespan", unit="h", factor=_HOUR),
        Metric(column="queueing_s", title="mean queueing", unit="h", factor=_HOUR),
        Metric(column="utilization", title="utilization", unit="%", factor=100.0, digits=1, better="neither"),
        Metric(column="ftf_mean", title="mean FTF"),
        Metric(column="ftf_worst", title="worst FTF"),
        Metric(column="ftf_unfair", title="unfair", unit="%", factor=100.0, digits=1),
        Metric(column="cost", title="cost", unit="$"),
        Metric(column="slo_violations", title="missed deadlines", digits=1),
        Metric(column="preemptions", title="preemptions", digits=1),
        Metric(column="moves", title="moves", digits=1),
        Metric(column="resizes", title="resizes", digits=1, better="neither"),
        Metric(column="cpu_s", title="CPU", unit="s"),
    )
}
#: The default columns of a table.
USUAL = ("avg_jct_s", "p99_jct_s", "makespan_s", "utilization", "ftf_unfair")


#: The fewest runs of each policy for a best one: intervals of fewer runs are too wide.
LEAST_RUNS = 3


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """The mean of a metric over seeds, in its own unit; null if unknown."""

    mean: float | None
    #: Half of the 95 % interval; null for a single run.
    plus_minus: float | None
    best: bool = False


class ComparisonRow(msgspec.Struct, frozen=True, kw_only=True):
    """One policy at one load on one cluster."""

    policy: str
    cluster: str
    load: float | int | None
    runs: int
    saturated: int
    figures: dict[str, Figure]


def compare(runs: Runs, metrics: Sequence[str]) -> list[ComparisonRow]:
    """Rows by cluster and load, then input order; raises BadInput for a bad metric."""
    unknown = [name for name in metrics if name not in METRICS]
    if unknown:
        hint = did_you_mean(unknown[0], METRICS)
        raise BadInput.one(f"unknown metric {unknown[0]!r}{hint}; metrics: {', '.join(METRICS)}")
    groups: dict[tuple[str, Any, str], list[dict[str, Any]]] = {}
    for row in runs.rows:
        groups.setdefault((row["cluster"], row["load"], row["label"]), []).append(row)
    labels = {label: i for i, label in enumerate(runs.labels())}
    keys = sorted(groups, key=lambda key: (key[0], key[1] is not None, key[1] or 0, labels[key[2]]))
    rows = [_row(key, groups[key], metrics) for key in keys]
    return [_with_best(row, [other for other in rows if _same_place(row, other)]) for row in rows]


def spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The mean and half of its 95 % interval; None with too few values."""
    count = len(values)
    if not count:
        return None, None
    mean = math.fsum(values) / count
    if count == 1:
        return mean, None
    from scipy.special import stdtrit

    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return mean, float(stdtrit(count - 1, 0.975)) * math.sqrt(variance / count)


def _row(key: tuple[str, Any, str], runs: list[dict[str, Any]], metrics: Sequence[str]) -> ComparisonRow:
    cluster, load, label = key
    saturated = sum(run["status"] != FINISHED for run in runs)
    figures = {}
    for name in metrics:
        known = [run[name] for run in runs if run["status"] == FINISHED and run[name] is not None]
        mean, plus_minus = spread([] if saturated else known)
        figures[name] = Figure(mean=mean, plus_minus=plus_minus)
    return ComparisonRow(policy=label, cluster=cluster, load=load, runs=len(runs), saturated=saturated, figures=figures)


def _same_place(one: ComparisonRow, other: ComparisonRow) -> bool:
    return (one.cluster, one.load) == (other.cluster, other.load)


def _with_best(row: ComparisonRow, rivals: list[ComparisonRow]) -> ComparisonRow:
    """Mark the figures that are significantly better than all others of the load."""
    figures = {}
    for name, figure in row.figures.items():
        metric = METRICS[name]
        others = [rival for rival in rivals if rival is not row and rival.figures[name].mean is not None]
        enough = bool(others) and all(rival.runs >= LEAST_RUNS for rival in (row, *others))
        is_best = (
            enough and metric.better != "neither" and all(_is_below(metric, figure, r.figures[name]) for r in others)
        )
        figures[name] = msgspec.structs.replace(figure, best=is_best)
    return msgspec.structs.replace(row, figures=figures)


def _is_below(metric: Metric, figure: Figure, other: Figure) -> bool:
    """Whether *figure* is below *other*, also as displayed, without overlap."""
    if figure.mean is None or figure.plus_minus is None or other.mean is None or other.plus_minus is None:
        return False
    apart = figure.mean + figure.plus_minus < other.mean - other.plus_minus
    return apart and shown(metric, figure.mean) != shown(metric, other.mean)


def too_few_runs(rows: Sequence[ComparisonRow]) -> bool:
    """Whether policies are compared at some load with too few runs for a best one."""
    return any(row.runs < LEAST_RUNS and any(r is not row and _same_place(row, r) for r in rows) for row in rows)


def shown(metric: Metric, value: float | None) -> float | None:
    """The value as displayed; values that look equal are equal."""
    return None if value is None else round(value * metric.factor, metric.digits)


def cell(metric: Metric, figure: Figure) -> str:
    """`12.34 ± 0.56`, or a dash."""
    if figure.mean is None:
        return "-"
    text = f"{figure.mean * metric.factor:,.{metric.digits}f}"
    if figure.plus_minus is not None:
        text += f" ± {figure.plus_minus * metric.factor:,.{metric.digits}f}"
    return text


def heading(metric: Metric) -> str:
    """The metric with its unit."""
    return f"{metric.title} ({metric.unit})" if metric.unit else metric.title
