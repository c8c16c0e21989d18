"""Timelines: a line per job coloured by GPU type, or a line per GPU with its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from levada.report.data import JOBS, TIMELINES, Runs
from levada.report.style import COLOURS, legend, matplotlib
from levada.sim.round_timeline import Interval, Round, intervals

_HOUR_S = 3600.0
#: With more lines than this, lines have no names.
_MOST_NAMES = 60


class Timeline(NamedTuple):
    """One run."""

    title: str
    bars: Sequence[Interval]
    #: Arrival and end of each job, where known.
    lives: dict[int, tuple[float, float]]


def of_run(runs: Runs, row: dict[str, Any]) -> Timeline:
    """The timeline of one run of a sweep; raises BadInput if it was not recorded."""
    frame = runs.frame(TIMELINES, [row]).select("job", "begin_s", "end_s", "gpu_type", "devices")
    bars = [Interval(job, begin, end, kind, tuple(own)) for job, begin, end, kind, own in frame.iter_rows()]
    jobs = runs.frame(JOBS, [row]).select("job", "arrival_s", "finished_s").iter_rows()
    load = f", {row['load']:g} {runs.load_unit}" if row["load"] is not None else ""
    return Timeline(
        title=f"{row['label']}{load}, seed {row['seed']}, {row['cluster']}",
        bars=bars,
        lives={job: (arrival, end if end is not None else row["makespan_s"]) for job, arrival, end in jobs},
    )


def of_rounds(name: str, rounds: Sequence[Round]) -> Timeline:
    """The timeline of a file of rounds; the last round is as long as the one before."""
    times = [entry.time for entry in rounds]
    lasts = times[-1] - times[-2] if len(times) > 1 else 1.0
    return Timeline(title=name, bars=intervals(rounds, {}, times[-1] + lasts if times else 0.0), lives={})


def by_job(timeline: Timeline) -> Any:
    """A line per job from its arrival to its end."""
    jobs = sorted({bar.job for bar in timeline.bars} | set(timeline.lives))
    types = sorted({bar.gpu_type for bar in timeline.bars})
    figure, axes = _canvas(len(jobs))
    place = {job: row for row, job in enumerate(jobs)}
    for job, (arrival, end) in timeline.lives.items():
        axes.plot([arrival / _HOUR_S, end / _HOUR_S], [place[job]] * 2, color="#9A9A9A", linewidth=1, zorder=1)
    for number, gpu_type in enumerate(types):
        bars = [bar for bar in timeline.bars if bar.gpu_type == gpu_type]
        _bars(axes, bars, [place[bar.job] for bar in bars], COLOURS[number % len(COLOURS)])
    _lines(axes, jobs, "job")
    axes.set(xlabel="time (h)", title=timeline.title)
    legend(figure, [*_types(types), *([_waiting()] if timeline.lives else [])])
    return figure


def by_gpu(timeline: Timeline) -> Any:
    """A line per GPU, with the job numbers where they fit."""
    devices = sorted({(bar.gpu_type, device) for bar in timeline.bars for device in bar.devices})
    figure, axes = _canvas(len(devices))
    place = {device: row for row, (_, device) in enumerate(devices)}
    until = max((bar.end_s for bar in timeline.bars), default=1.0)
    # A shared GPU shows its jobs one above the other.
    at_once: dict[tuple[int, float, float], list[int]] = {}
    for bar in timeline.bars:
        for device in bar.devices:
            at_once.setdefault((device, bar.begin_s, bar.end_s), []).append(bar.job)
    for (device, begin, end), jobs in at_once.items():
        for number, job in enumerate(sorted(jobs)):
            height = 0.9 / len(jobs)
            bottom = place[device] - 0.45 + number * height
            colour = _shade(job)
            axes.broken_barh(
                [(begin / _HOUR_S, (end - begin) / _HOUR_S)],
                (bottom, height),
                facecolor=colour,
                edgecolor="white",
                linewidth=0.4,
            )
            if (end - begin) / until > 0.009 * len(str(job)) and len(jobs) == 1:
                middle = (begin + end) / 2 / _HOUR_S
                axes.text(middle, place[device], str(job), ha="center", va="center", fontsize=7, color=_ink(colour))
    _lines(axes, [f"{kind} {device}" for kind, device in devices], "GPU")
    axes.set(xlabel="time (h); numbers are jobs", title=timeline.title)
    return figure


def _canvas(lines: int) -> tuple[Any, Any]:
    matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, min(max(2.5, 0.19 * lines + 1.4), 40.0)), layout="constrained")
    return figure, figure.subplots()


def _bars(axes: Any, bars: Sequence[Interval], rows: Sequence[int], colour: str) -> None:
    from matplotlib.collections import PolyCollection

    corners = []
    for bar, row in zip(bars, rows, strict=True):
        begin, end = bar.begin_s / _HOUR_S, bar.end_s / _HOUR_S
        corners.append([(begin, row - 0.38), (begin, row + 0.38), (end, row + 0.38), (end, row - 0.38)])
    axes.add_collection(PolyCollection(corners, facecolors=colour, edgecolors="white", linewidths=0.3, zorder=2))
    axes.autoscale_view()


def _lines(axes: Any, names: Sequence[Any], what: str) -> None:
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")
    if len(names) <= _MOST_NAMES:
        axes.set_yticks(range(len(names)), labels=[str(name) for name in names], fontsize=7)
    axes.set_ylabel(what)


def _types(types: Sequence[str]) -> list[Any]:
    from matplotlib.patches import Patch

    return [Patch(color=COLOURS[number % len(COLOURS)], label=name) for number, name in enumerate(types)]


def _waiting() -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color="#9A9A9A", linewidth=1, label="waits")


def _shade(job: int) -> str:
    """The colour of a job: the hue repeats plain, lighter, then darker."""
    hue = COLOURS[job % len(COLOURS)]
    towards, part = ((0, 0.0), (255, 0.45), (0, 0.35))[job // len(COLOURS) % 3]
    mixed = (round(int(hue[at : at + 2], 16) * (1 - part) + towards * part) for at in (1, 3, 5))
    return "#" + "".join(f"{value:02X}" for value in mixed)


def _ink(colour: str) -> str:
    """Black or white, whichever is readable on *colour*."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 130 else "white"
