"""Policies side by side: for each load and cluster the mean over seeds, how sure it is, and who is best.

The interval is Student's, 95 %: mean ± t(0.975, n-1) s / sqrt(n). A load at which some seed saturated has no mean: that
of the others would flatter the policy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from levada.errors import BadInput, did_you_mean
from levada.report.data import Runs
from levada.sim.sweep.one import FINISHED


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """A column of `runs.parquet`, and how people read it."""

    column: str
    title: str
    unit: str = ""
    #: What is shown is the value times this.
    factor: float = 1.0
    digits: int = 2
    #: Some say nothing by themselves: GPUs are in use for longer under a policy that is slow.
    better: Literal["low", "neither"] = "low"


_HOUR = 1.0 / 3600.0
METRICS: dict[str, Metric] = {
    each.column: each
    for each in (
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
#: What a table shows unless somebody asks for more.
USUAL = ("avg_jct_s", "p99_jct_s", "makespan_s", "utilization", "ftf_unfair")


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """The mean of a metric over seeds, in its own unit; null where nobody knows."""

    mean: float | None
    #: Half of the 95 % interval; null of a single run.
    plus_minus: float | None
    best: bool = False


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One policy at one load on one cluster."""

    policy: str
    cluster: str
    load: float | int | None
    runs: int
    saturated: int
    figures: dict[str, Figure]


def compare(runs: Runs, metrics: Sequence[str]) -> list[Row]:
    """The rows by cluster and load, and then in the order of the inputs; raises BadInput for a metric nobody knows."""
    strange = [name for name in metrics if name not in METRICS]
    if strange:
        raise BadInput.one(f"unknown metric {strange[0]!r}{did_you_mean(strange[0], METRICS)}; there are {_names()}")
    groups: dict[tuple[str, Any, str], list[dict[str, Any]]] = {}
    for row in runs.rows:
        groups.setdefault((row["cluster"], row["load"], row["label"]), []).append(row)
    labels = {label: place for place, label in enumerate(runs.labels())}
    keys = sorted(groups, key=lambda key: (key[0], key[1] is not None, key[1] or 0, labels[key[2]]))
    rows = [_row(key, groups[key], metrics) for key in keys]
    return [_with_best(row, [other for other in rows if _same_place(row, other)]) for row in rows]


def spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The mean and half of its 95 % interval; None where there are too few values."""
    count = len(values)
    if not count:
        return None, None
    mean = math.fsum(values) / count
    if count == 1:
        return mean, None
    from scipy.special import stdtrit

    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return mean, float(stdtrit(count - 1, 0.975)) * math.sqrt(variance / count)


def _row(key: tuple[str, Any, str], runs: list[dict[str, Any]], metrics: Sequence[str]) -> Row:
    cluster, load, label = key
    saturated = sum(run["status"] != FINISHED for run in runs)
    figures = {}
    for name in metrics:
        known = [run[name] for run in runs if run["status"] == FINISHED and run[name] is not None]
        mean, plus_minus = spread([] if saturated else known)
        figures[name] = Figure(mean=mean, plus_minus=plus_minus)
    return Row(policy=label, cluster=cluster, load=load, runs=len(runs), saturated=saturated, figures=figures)


def _same_place(one: Row, other: Row) -> bool:
    return (one.cluster, one.load) == (other.cluster, other.load)


def _with_best(row: Row, rivals: list[Row]) -> Row:
    """The row with those figures marked that no rival beats, as far as is shown and sure; alone, nobody is best."""
    figures = {}
    for name, figure in row.figures.items():
        metric = METRICS[name]
        known = [rival.figures[name] for rival in rivals if rival.figures[name].mean is not None]
        mine = shown(metric, figure.mean)
        worse = [other for other in known if shown(metric, other.mean) != mine]
        is_best = mine is not None and bool(worse) and metric.better != "neither" and _is_below(figure, worse)
        figures[name] = msgspec.structs.replace(figure, best=is_best)
    return msgspec.structs.replace(row, figures=figures)


def _is_below(figure: Figure, others: list[Figure]) -> bool:
    """Whether all others are larger beyond doubt: their intervals do not overlap. One run alone has none."""
    top = (figure.mean or 0.0) + (figure.plus_minus or 0.0)
    return all(top < (other.mean or 0.0) - (other.plus_minus or 0.0) for other in others)


def shown(metric: Metric, value: float | None) -> float | None:
    """The value as people see it: two that look the same are the same."""
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


def _names() -> str:
    return ", ".join(METRICS)
