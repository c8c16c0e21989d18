"""`levada sim plot`: figures of sweeps and runs as SVG, PNG or HTML."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli.output import chatter
from levada.cli.waiting import Waiting
from levada.errors import BadInput

if TYPE_CHECKING:
    from levada.report.gantt import Timeline


class Kind(StrEnum):
    """What is drawn."""

    JCT = "jct"
    CDF = "cdf"
    FTF = "ftf"
    GANTT = "gantt"
    RUNTIME = "runtime"
    MAKESPAN = "makespan"
    UTILIZATION = "utilization"
    REPORT = "report"


class By(StrEnum):
    """What a line of a Gantt chart is."""

    JOB = "job"
    GPU = "gpu"


def add(group: typer.Typer) -> None:
    """Adds `plot` to the group `sim`."""
    group.command("plot")(plot)


def plot(
    kind: Annotated[
        Kind,
        typer.Argument(
            metavar="KIND",
            help="What to draw: jct, cdf, ftf, gantt, runtime, makespan, utilization; report: everything, in one page.",
        ),
    ],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="Folders of sweeps, or files of `sim run -o json`; gantt: of --rounds; runtime: of `bench solve`.",
        ),
    ],
    out: Annotated[
        str | None, typer.Option("--out", help="The file, .svg, .png or .html; the kind's name with .svg unless given.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option("--metric", help="jct: another figure of runs.parquet, such as p99_jct_s.")
    ] = None,
    load: Annotated[
        float | None, typer.Option("--load", help="cdf, ftf, gantt: at this load; the highest that all bore otherwise.")
    ] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="cdf, ftf, gantt: on this cluster.")] = None,
    policy: Annotated[str | None, typer.Option("--policy", help="gantt: of this policy.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="gantt: with this seed.")] = None,
    by: Annotated[By, typer.Option("--by", help="gantt: a line for each job, or for each GPU.")] = By.JOB,
) -> None:
    """Draw a figure of sweeps or runs."""
    from levada.report import page

    path = out if out is not None else f"{kind.value}.{'html' if kind is Kind.REPORT else 'svg'}"
    page.suffix_of(path)
    with Waiting("reading and drawing"):
        if kind is Kind.REPORT:
            from levada.report.data import read

            page.write_report(read(inputs), path)
        elif kind is Kind.GANTT:
            from levada.report import gantt

            timeline = _timeline(inputs, load, cluster, policy, seed)
            page.write(gantt.by_gpu(timeline) if by is By.GPU else gantt.by_job(timeline), path, timeline.title)
        else:
            figure = _figure(kind, inputs, metric, load, cluster)
            page.write(figure, path, page.CAPTIONS[kind.value])
    chatter(path)


def _figure(kind: Kind, inputs: list[str], metric: str | None, load: float | None, cluster: str | None) -> Any:
    from levada.errors import did_you_mean
    from levada.report import figures
    from levada.report.data import read
    from levada.report.table import METRICS

    if kind is Kind.RUNTIME and (benches := _benches(inputs)):
        return figures.solve_times(benches)
    if metric is not None and metric not in METRICS:
        raise BadInput.one(f"--metric {metric}: unknown{did_you_mean(metric, METRICS)}; there are {', '.join(METRICS)}")
    runs = read(inputs)
    match kind:
        case Kind.CDF:
            return figures.completion_times(runs, load, cluster)
        case Kind.FTF:
            return figures.fairness(runs, load, cluster)
        case Kind.RUNTIME:
            return figures.runtime(runs)
        case Kind.MAKESPAN:
            return figures.against_load(runs, "makespan_s")
        case Kind.UTILIZATION:
            return figures.against_load(runs, "utilization")
        case _:
            return figures.against_load(runs, metric or "avg_jct_s")


def _benches(inputs: list[str]) -> list[dict[str, Any]]:
    """What `levada bench solve -o json` printed; empty where the inputs are something else."""
    import msgspec

    found: list[dict[str, Any]] = []
    for name in inputs:
        path = Path(name)
        try:
            rows = msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]]) if path.is_file() else []
        except msgspec.DecodeError:
            rows = []
        if not rows or not all({"policy", "jobs", "solve_s"} <= row.keys() for row in rows):
            return []
        found += rows
    return found


def _timeline(
    inputs: list[str], load: float | None, cluster: str | None, policy: str | None, seed: int | None
) -> Timeline:
    from levada.report import gantt
    from levada.report.data import read
    from levada.report.figures import chosen
    from levada.sim.stretches import read_rounds

    if len(inputs) == 1 and Path(inputs[0]).is_file():
        rounds = read_rounds(inputs[0])
        if not rounds:
            raise BadInput.one(f"{inputs[0]}: holds no round")
        return gantt.of_rounds(inputs[0], rounds)
    runs = read(inputs)
    rows = chosen(runs, load, cluster)
    fits = [
        row
        for row in rows
        if (policy is None or policy in (row["policy"], row["label"])) and (seed is None or row["seed"] == seed)
    ]
    if not fits:
        there = sorted({f"{row['label']} seed {row['seed']}" for row in rows})
        raise BadInput.one(f"no such run; there is {', '.join(there)}")
    return gantt.of_run(runs, fits[0])
