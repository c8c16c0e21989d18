"""Figures of runs: metrics by load, distributions, and the cost of decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from levada.core.types import Floats
from levada.errors import BadInput
from levada.report.data import JOBS, Runs
from levada.report.style import COLOURS, legend, line, panels, plain_decades
from levada.report.table import METRICS, Metric, heading, spread
from levada.sim.metrics import UNFAIR
from levada.sim.sweep.run import FINISHED

_HOUR_S = 3600.0
_MOST_TICKS = 12

Row = dict[str, Any]


def against_load(runs: Runs, column: str) -> Any:
    """A metric by load: a line per policy with its 95 % interval, a panel per cluster."""
    metric = METRICS[column]
    return _lines(runs, heading(metric), lambda row: _scaled(metric, row[column]))


def runtime(runs: Runs) -> Any:
    """CPU milliseconds per decision by load: policy, engine and simulated cluster."""

    def per_decision(row: Row) -> float | None:
        return 1e3 * row["cpu_s"] / row["decisions"] if row["cpu_s"] and row["decisions"] else None

    return _lines(runs, "CPU time per decision (ms)", per_decision)


def solve_times(benches: list[Row]) -> Any:
    """CPU time of a solve by number of jobs, from `levada bench solve -o json`."""
    figure, (axes,) = panels(1)
    handles = []
    for place, policy in enumerate(dict.fromkeys(row["policy"] for row in benches)):
        points = sorted((row["jobs"], row["solve_s"] * 1e3) for row in benches if row["policy"] == policy)
        handles += axes.plot(*zip(*points, strict=True), **line(place), label=policy)
    axes.set(xlabel="jobs", ylabel="CPU time of a solve (ms)", xscale="log", yscale="log")
    plain_decades(axes.yaxis)
    _plain_ticks(axes.xaxis, sorted({row["jobs"] for row in benches}))
    legend(figure, handles)
    return figure


def _lines(runs: Runs, title: str, value: Callable[[Row], float | None]) -> Any:
    """One line per policy over the loads, one panel per cluster."""
    if all(row["load"] is None for row in runs.rows):
        raise BadInput.one("these runs have no load: they were simulated without --rate and --jobs")
    clusters = sorted({row["cluster"] for row in runs.rows})
    figure, all_axes = panels(len(clusters))
    labels, any_saturated = runs.labels(), False
    handles: dict[str, Any] = {}
    for cluster, axes in zip(clusters, all_axes, strict=True):
        for place, label in enumerate(labels):
            rows = [row for row in runs.rows if row["cluster"] == cluster and row["label"] == label]
            loads, means, halves, saturated = _points(rows, value)
            look = line(place)
            (drawn,) = axes.plot(loads, means, **look, label=label)
            handles.setdefault(label, drawn)
            if any(half > 0 for half in halves):
                low, high = np.subtract(means, halves), np.add(means, halves)
                axes.fill_between(loads, low, high, color=look["color"], alpha=0.15, linewidth=0)
            any_saturated = any_saturated or bool(saturated)
            _mark_saturated(axes, saturated, look["color"], place, len(labels))
        axes.set(xlabel=f"load ({runs.load_unit})", title=f"GPUs: {cluster}" if cluster else "")
        _ticks_at_loads(axes.xaxis, sorted({row["load"] for row in runs.rows if row["load"] is not None}))
        if any(handle.get_xdata().size for handle in axes.lines):
            axes.set_ylim(bottom=0)
    all_axes[0].set_ylabel(title)
    figure.suptitle(_headline(runs, title), fontsize=12)
    legend(figure, [*handles.values(), *([_saturated_handle()] if any_saturated else [])])
    return figure


def _headline(runs: Runs, title: str) -> str:
    """The title: `Mean JCT against load (shades: 95 % intervals over 3 seeds)`."""
    seeds = len({row["seed"] for row in runs.rows})
    shades = f" (shades: 95 % intervals over {seeds} seeds)" if seeds > 1 else ""
    return f"{title[0].upper()}{title.partition(' (')[0][1:]} against load{shades}"


def _ticks_at_loads(axis: Any, loads: list[float]) -> None:
    """Put ticks at the simulated loads, unless there are too many."""
    if len(loads) <= _MOST_TICKS:
        axis.set_ticks(loads, labels=[f"{load:g}" for load in loads])


def _points(
    rows: list[Row], value: Callable[[Row], float | None]
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Loads, means and half intervals over seeds, and the saturated loads."""
    loads, means, halves, saturated = [], [], [], []
    for load in sorted({row["load"] for row in rows if row["load"] is not None}):
        of_load = [row for row in rows if row["load"] == load]
        if any(row["status"] != FINISHED for row in of_load):
            saturated.append(load)
            continue
        mean, half = spread([known for row in of_load if (known := value(row)) is not None])
        if mean is not None:
            loads.append(load)
            means.append(mean)
            halves.append(half or 0.0)
    return loads, means, halves, saturated


def _mark_saturated(axes: Any, loads: list[float], colour: str, place: int, of: int) -> None:
    """Triangles at the upper edge, side by side for policies at the same load."""
    for load in loads:
        axes.annotate(
            "▲",
            (load, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(9 * (place - (of - 1) / 2), 2),
            textcoords="offset points",
            color=colour,
            ha="center",
            va="bottom",
            annotation_clip=False,
        )
    # The axis also covers loads at which all policies saturated.
    axes.plot(loads, [np.nan] * len(loads), color=colour)
    if loads:
        axes.update_datalim([(load, axes.dataLim.y0 if np.isfinite(axes.dataLim.y0) else 0.0) for load in loads])
        axes.autoscale_view()


def _saturated_handle() -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color="#555555", marker="^", linestyle="", label="saturated")


# ---------------------------------------------------------------------------------------------------- distributions


def completion_times(runs: Runs, load: float | None = None, cluster: str | None = None) -> Any:
    """The cumulative distribution of completion times, over all seeds."""
    rows = chosen(runs, load, cluster)
    return _spread(runs, rows, "jct_s", 1.0 / _HOUR_S, "completion time (h)")


def fairness(runs: Runs, load: float | None = None, cluster: str | None = None) -> Any:
    """The cumulative distribution of finish-time fairness, over all seeds."""
    rows = chosen(runs, load, cluster)
    figure = _spread(runs, rows, "ftf", 1.0, "finish-time fairness: time over time with 1/n of the cluster")
    axes = figure.axes[0]
    axes.axvline(UNFAIR, color="#555555", linewidth=1)
    axes.annotate(
        f"unfair above {UNFAIR}", (UNFAIR, 0.02), xytext=(4, 0), textcoords="offset points", color="#555555", fontsize=9
    )
    return figure


def chosen(runs: Runs, load: float | None, cluster: str | None) -> list[Row]:
    """The runs of one cluster and load.

    Default: the first cluster, and its highest load without a saturated run.
    """
    clusters = sorted({row["cluster"] for row in runs.rows})
    matches = clusters if cluster is None else [name for name in clusters if _parts(name) == _parts(cluster)]
    if not matches:
        raise BadInput.one(f"--cluster {cluster}: not simulated; use {' or '.join(clusters)}")
    rows = [row for row in runs.rows if row["cluster"] == matches[0]]
    loads = sorted({row["load"] for row in rows if row["load"] is not None})
    if load is not None and load not in loads:
        raise BadInput.one(f"--load {load:g}: not simulated; use {' or '.join(f'{value:g}' for value in loads)}")
    if load is None and loads:
        saturated = {row["load"] for row in rows if row["status"] != FINISHED}
        if saturated.issuperset(loads):
            raise BadInput.one("some run saturated at every load; choose one with --load")
        load = max(value for value in loads if value not in saturated)
    finished = [row for row in rows if row["load"] == load and row["status"] == FINISHED]
    if not finished:
        raise BadInput.one(f"every run saturated at load {load:g}" if load is not None else "no run has finished")
    return finished


def _parts(cluster: str) -> set[str]:
    """GPUs by type, in any order."""
    return {part.strip() for part in cluster.split(",")}


def _spread(runs: Runs, rows: list[Row], column: str, factor: float, title: str) -> Any:
    figure, (axes,) = panels(1)
    handles, most, least = [], 1.0, 1.0
    by_label = _values(runs, rows, column)
    for place, label in enumerate(runs.labels()):
        values = np.sort(by_label.get(label, np.zeros(0))) * factor
        if not len(values):
            continue
        part = np.arange(1, len(values) + 1) / len(values)
        look = {**line(place), "marker": ""}
        look["linestyle"] = look["linestyle"] if len(by_label) > len(COLOURS) else ("-", "--", "-.", ":")[place % 4]
        handles += axes.step(
            np.concatenate([values[:1], values]), np.concatenate([[0.0], part]), where="post", **look, label=label
        )
        most, least = max(most, values[-1]), min(least, values[values > 0].min(initial=1.0))
    if not handles:
        raise BadInput.one(f"no job of these runs has a known {column}")
    axes.set(xlabel=title, ylabel="jobs (%)", ylim=(0, 1.005))
    axes.yaxis.set_major_formatter(lambda part, _: f"{100 * part:.0f}")
    if most > 20 * least:
        axes.set_xscale("log")
        plain_decades(axes.xaxis)
    load = rows[0]["load"]
    place_text = ", ".join(filter(None, [f"{load:g} {runs.load_unit}" if load is not None else "", rows[0]["cluster"]]))
    axes.set_title(place_text)
    legend(figure, handles)
    return figure


def _values(runs: Runs, rows: Iterable[Row], column: str) -> dict[str, Floats]:
    """The known values of measured jobs, by label."""
    by_label: dict[str, list[Floats]] = {}
    in_folders = [row for row in rows if row["input"] in runs.folders]
    for row in rows:
        if row["input"] not in runs.folders and column == "jct_s":
            by_label.setdefault(row["label"], []).append(np.array(row["jct_values"], np.float64))
    if in_folders:
        frame = runs.frame(JOBS, in_folders)
        for label, group in frame.filter(frame["measured"]).select("label", column).drop_nulls().group_by("label"):
            by_label.setdefault(str(label[0]), []).append(group[column].to_numpy())
    return {label: np.concatenate(parts) for label, parts in by_label.items()}


def _scaled(metric: Metric, value: float | None) -> float | None:
    return None if value is None else value * metric.factor


def _plain_ticks(axis: Any, values: list[int]) -> None:
    """Put ticks only at these values, as whole numbers."""
    axis.set_ticks(values, labels=[f"{value:,}" for value in values])
    axis.set_ticks([], minor=True)
