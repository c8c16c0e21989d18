"""`levada sim plot`: plot sweeps and runs as SVG, PNG or HTML."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli.output import message
from levada.cli.spinner import Spinner
from levada.errors import BadInput

if TYPE_CHECKING:
    from levada.report.gantt import Timeline


class PlotKind(StrEnum):
    """Kinds of plots."""

    JCT = "jct"
    CDF = "cdf"
    FTF = "ftf"
    GANTT = "gantt"
    RUNTIME = "runtime"
    MAKESPAN = "makespan"
    UTILIZATION = "utilization"
    REPORT = "report"


class By(StrEnum):
    """Row of a Gantt chart: a job or a GPU."""

    JOB = "job"
    GPU = "gpu"


def add(group: typer.Typer) -> None:
    """Add `plot` to the group `sim`."""
    group.command("plot")(plot)


def plot(  # noqa: PLR0913 - one parameter per flag
    kind: Annotated[
        PlotKind,
        typer.Argument(
            metavar="KIND",
            help="Plot: jct, cdf, ftf, gantt, runtime, makespan or utilization; report: all of them on one page.",
        ),
    ],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="Sweep folders, or output of `sim run -o json` (gantt: of --rounds; runtime: of `bench solve`).",
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option("--out", help="Output file: .svg, .png or .html.", show_default="KIND.svg; report.html"),
    ] = None,
    metric: Annotated[
        str | None, typer.Option("--metric", help="jct: column of runs.parquet to plot.", show_default="avg_jct_s")
    ] = None,
    load: Annotated[
        float | None,
        typer.Option(
            "--load", help="cdf, ftf, gantt: load to plot.", show_default="highest that no policy saturates at"
        ),
    ] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="cdf, ftf, gantt: cluster to plot.")] = None,
    policy: Annotated[str | None, typer.Option("--policy", help="gantt: policy to plot.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="gantt: seed to plot.")] = None,
    by: Annotated[By, typer.Option("--by", help="gantt: one row per job or per GPU.")] = By.JOB,
) -> None:
    """Plot results of sweeps or runs."""
    from levada.report import page

    path = out if out is not None else f"{kind.value}.{'html' if kind is PlotKind.REPORT else 'svg'}"
    page.suffix_of(path)
    with Spinner("plotting"):
        if kind is PlotKind.REPORT:
            from levada.report.data import read

            page.write_report(read(inputs), path)
        elif kind is PlotKind.GANTT:
            from levada.report import gantt

            timeline = _timeline(inputs, load, cluster, policy, seed)
            page.write(gantt.by_gpu(timeline) if by is By.GPU else gantt.by_job(timeline), path, timeline.title)
        else:
            figure = _figure(kind, inputs, metric, load, cluster)
            page.write(figure, path, page.CAPTIONS[kind.value])
    message(path)


def _figure(kind: PlotKind, inputs: list[str], metric: str | None, load: float | None, cluster: str | None) -> Any:
    from levada.errors import did_you_mean
    from levada.report import figures
    from levada.report.data import read
    from levada.report.table import METRICS

    if kind is PlotKind.RUNTIME and (benches := _benches(inputs)):
        return figures.solve_times(benches)
    if metric is not None and metric not in METRICS:
        raise BadInput.one(
            f"--metric {metric}: unknown metric{did_you_mean(metric, METRICS)}; must be one of {', '.join(METRICS)}"
        )
    runs = read(inputs)
    match kind:
        case PlotKind.CDF:
            return figures.completion_times(runs, load, cluster)
        case PlotKind.FTF:
            return figures.fairness(runs, load, cluster)
        case PlotKind.RUNTIME:
            return figures.runtime(runs)
        case PlotKind.MAKESPAN:
            return figures.against_load(runs, "makespan_s")
        case PlotKind.UTILIZATION:
            return figures.against_load(runs, "utilization")
        case _:
            return figures.against_load(runs, metric or "avg_jct_s")


def _benches(inputs: list[str]) -> list[dict[str, Any]]:
    """Read output of `levada bench solve -o json`; empty if an input is anything else."""
    import msgspec

    results: list[dict[str, Any]] = []
    for name in inputs:
        path = Path(name)
        try:
            rows = msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]]) if path.is_file() else []
        except msgspec.DecodeError:
            rows = []
        if not rows or not all({"policy", "jobs", "solve_s"} <= row.keys() for row in rows):
            return []
        results += rows
    return results


def _timeline(
    inputs: list[str], load: float | None, cluster: str | None, policy: str | None, seed: int | None
) -> Timeline:
    from levada.report import gantt
    from levada.report.data import read
    from levada.report.figures import chosen
    from levada.sim.round_timeline import read_rounds

    if len(inputs) == 1 and Path(inputs[0]).is_file():
        rounds = read_rounds(inputs[0])
        if not rounds:
            raise BadInput.one(f"{inputs[0]}: has no rounds; must be a file written by `levada sim run --rounds`")
        return gantt.of_rounds(inputs[0], rounds)
    runs = read(inputs)
    rows = chosen(runs, load, cluster)
    matching = [
        row
        for row in rows
        if (policy is None or policy in (row["policy"], row["label"])) and (seed is None or row["seed"] == seed)
    ]
    if not matching:
        runs_text = sorted({f"{row['label']} seed {row['seed']}" for row in rows})
        raise BadInput.one(f"no run matches --policy and --seed; the runs are {', '.join(runs_text)}")
    return gantt.of_run(runs, matching[0])
