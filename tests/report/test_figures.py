"""Figures: the right values, units on every axis, and no covering legend."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from levada.errors import BadInput
from levada.report import figures, gantt
from levada.report.data import Runs, read
from levada.report.page import as_svg
from levada.report.style import COLOURS
from levada.sim.round_timeline import Interval, Round
from tests.report.sweep_files import run, sweep


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    rows = [run(name, load, seed, hours * load + seed, decisions=100, cpu_s=0.2)
            for name, hours in (("fifo", 2), ("srjf", 1)) for load in (1.0, 2.0) for seed in (0, 2)]  # fmt: skip
    rows += [run("fifo", 3.0, 0, None, status="saturated"), run("srjf", 3.0, 0, 9)]
    folder = tmp_path / "sweep"
    name = sweep(folder, rows)
    jobs = [
        {"run": row["run"], "job": job, "measured": job > 0, "jct_s": 3600.0 * job, "ftf": 0.5 * job,
         "arrival_s": 0.0, "finished_s": 3600.0 * job}
        for row in rows for job in range(4)
    ]  # fmt: skip
    pl.DataFrame(jobs).write_parquet(folder / "jobs.parquet")
    return read([name])


def curves(figure: Any) -> dict[str, tuple[list[float], list[float]]]:
    """Points by label."""
    lines = [line for axes in figure.axes for line in axes.lines if not line.get_label().startswith("_")]
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in lines}


def overlaps(figure: Any) -> bool:
    """Whether the legend lies on a panel."""
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    return any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)


def test_completion_time_by_load_ends_where_a_policy_saturates(runs: Runs) -> None:
    figure = figures.against_load(runs, "avg_jct_s")
    assert curves(figure) == {"fifo": ([1.0, 2.0], [3.0, 5.0]), "srjf": ([1.0, 2.0, 3.0], [2.0, 3.0, 9.0])}
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("load (jobs per hour)", "mean JCT (h)")
    assert axes.get_ylim()[0] == 0
    low, high = axes.get_xlim()
    assert low < 1.0
    assert high > 3.0
    marks = [text for text in axes.texts if text.get_text() == "▲"]
    assert [(mark.xy[0], mark.get_color()) for mark in marks] == [(3.0, COLOURS[0])]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fifo", "srjf", "saturated"]
    assert not overlaps(figure)


def test_the_legend_of_many_policies_covers_nothing(tmp_path: Path) -> None:
    rows = [run(f"a policy with quite a long name {number}", load, hours=number + load)
            for number in range(12) for load in (1.0, 2.0)]  # fmt: skip
    figure = figures.against_load(read([sweep(tmp_path / "s", rows)]), "avg_jct_s")
    assert not overlaps(figure)
    looks = {
        (line.get_color(), line.get_linestyle(), line.get_marker())
        for line in figure.axes[0].lines
        if len(line.get_xdata())
    }
    assert len(looks) == 12, "no two look the same"


def test_clusters_have_a_panel_each(tmp_path: Path) -> None:
    rows = [
        run("fifo", load, cluster=cluster, run=f"{load}{cluster}") for load in (1.0, 2.0) for cluster in ("a=1", "b=2")
    ]
    figure = figures.against_load(read([sweep(tmp_path / "s", rows)]), "avg_jct_s")
    assert [axes.get_title() for axes in figure.axes] == ["GPUs: a=1", "GPUs: b=2"]
    assert len(figure.legends[0].get_texts()) == 1


def test_a_figure_says_what_it_shows_and_has_ticks_where_something_was_run(tmp_path: Path) -> None:
    created = read([sweep(tmp_path / "a", [run("fifo", rate, seed) for rate in (1.0, 2.0, 3.5) for seed in (0, 1)])])
    figure = figures.against_load(created, "avg_jct_s")
    assert figure.get_suptitle() == "Mean JCT against load (shades: 95 % intervals over 2 seeds)"
    (axes,) = figure.axes
    assert axes.get_title() == "GPUs: v100=4"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2", "3.5"]


def test_runs_without_a_load_are_not_drawn_against_it(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no load"):
        figures.against_load(read([sweep(tmp_path / "s", [run("fifo", None)])]), "avg_jct_s")


def test_time_of_decisions(runs: Runs) -> None:
    figure = figures.runtime(runs)
    assert curves(figure)["fifo"] == ([1.0, 2.0], [2.0, 2.0])
    assert figure.axes[0].get_ylabel() == "CPU time per decision (ms)"


def test_solve_times_by_number_of_jobs() -> None:
    rows = [{"policy": name, "jobs": jobs, "solve_s": jobs * 1e-5} for name in "ab" for jobs in (256, 64)]
    figure = figures.solve_times(rows)
    assert curves(figure)["a"] == ([64, 256], [pytest.approx(0.64), pytest.approx(2.56)])
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["64", "256"]
    assert not overlaps(figure)
    milliseconds = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert {"1", "2"} <= set(milliseconds)
    assert not any("$" in text for text in milliseconds)


def test_spread_of_completion_times_is_of_measured_jobs_at_one_load(runs: Runs) -> None:
    figure = figures.completion_times(runs)
    assert figure.axes[0].get_title() == "2 jobs per hour, v100=4", "the highest load that all could bear"
    hours, part = curves(figure)["fifo"]
    assert hours == [1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    assert part[0] == 0.0
    assert part[-1] == 1.0
    assert figure.axes[0].get_xlabel() == "completion time (h)"
    assert list(curves(figures.completion_times(runs, 3.0))) == ["srjf"]


def test_spread_of_fairness_shows_where_unfairness_begins(runs: Runs) -> None:
    figure = figures.fairness(runs, 1.0)
    assert curves(figure)["srjf"][0][-1] == 1.5
    assert any("1.05" in text.get_text() for text in figure.axes[0].texts)


@pytest.mark.parametrize(("load", "cluster", "fault"), [(7.0, None, "--load 7: not simulated; use 1 or 2 or 3"), (None, "x", "--cluster x: not simulated; use v100=4")])  # fmt: skip
def test_a_load_or_cluster_that_is_not_there(runs: Runs, load: float, cluster: str, fault: str) -> None:
    with pytest.raises(BadInput, match=fault):
        figures.completion_times(runs, load, cluster)


BARS = [
    Interval(0, 0.0, 3600.0, "v100", (0, 1)),
    Interval(1, 1800.0, 7200.0, "k80", (2,)),
    Interval(2, 3600.0, 7200.0, "v100", (0,)),
    Interval(3, 3600.0, 7200.0, "v100", (0,)),
]


def test_a_gantt_chart_has_a_line_for_each_job_or_gpu() -> None:
    timeline = gantt.Timeline("title", BARS, dict.fromkeys(range(4), (0.0, 7200.0)))
    figure = gantt.by_job(timeline)
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["0", "1", "2", "3"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["k80", "v100", "waits"]
    assert not overlaps(figure)
    assert figure.axes[0].get_xlim()[1] >= 2.0
    figure = gantt.by_gpu(timeline)
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["k80 2", "v100 0", "v100 1"]
    assert sorted(text.get_text() for text in figure.axes[0].texts) == ["0", "0", "1"], "shared ones have no room"


def test_two_dozen_jobs_on_gpus_have_colours_of_their_own() -> None:
    bars = [Interval(job, job * 600.0, job * 600.0 + 600.0, "v100", (0,)) for job in range(24)]
    (axes,) = gantt.by_gpu(gantt.Timeline("title", bars, {})).axes
    assert len({tuple(bar.get_facecolor()[0]) for bar in axes.collections}) == 23, "all but a darker black"


def test_rounds_alone_make_a_chart() -> None:
    rounds = [Round(0, 0.0, [("0", "v100", (0,))]), Round(1, 360.0, [("0", "v100", (0,))])]
    assert gantt.of_rounds("r", rounds).bars == [Interval(0, 0.0, 720.0, "v100", (0,))]


def test_the_same_figure_has_the_same_bytes(runs: Runs) -> None:
    one, other = (as_svg(figures.against_load(runs, "avg_jct_s")) for _ in range(2))
    assert one == other
    assert "<dc:date>" not in one
