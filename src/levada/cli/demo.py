"""`levada demo`: simulate a day on a small mixed cluster."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from contextlib import redirect_stdout
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli.gantt import ASCII, UNICODE, Bar, Chart, ChartRow, Glyphs, letters
from levada.cli.output import bold, colour, columns, data, data_json

if TYPE_CHECKING:
    from levada.sim.demo_day import DaySummary, JobSummary

#: Legend of the table columns.
LEGEND = (
    "GPUS: peak / requested range; TYPE: GPU types used; NODES: last placement;",
    "WAIT, RAN: hours:minutes; RESIZED, MOVED: number of times;",
    "ENDED: time of day (24:00 and later: the next day)",
)

#: Width of the output without a terminal.
PLAIN_WIDTH = 80


class DemoFormat(StrEnum):
    """Output formats of `levada demo`."""

    TABLE = "table"
    JSON = "json"


def register(app: typer.Typer) -> None:
    """Add the verb `demo`."""
    app.command("demo")(demo)


def demo(
    policy: Annotated[str, typer.Option("--policy", help="Policy: name or path/to/file.py:Class.")] = "elastic-fifo",
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of the random jobs.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=500, help="Number of jobs.")] = 30,
    output: Annotated[DemoFormat, typer.Option("--output", "-o", help="Output format.")] = DemoFormat.TABLE,
) -> None:
    """Simulate a day of jobs on a mixed cluster."""
    from levada.plugins import find_policy
    from levada.sim.demo_day import simulate_day

    # A user's policy may print; stdout carries only the result.
    with redirect_stdout(sys.stderr):
        day = simulate_day(policy, count=jobs, seed=seed, make_policy=find_policy)
    if output is DemoFormat.JSON:
        data_json(as_json(day))
    else:
        data(as_text(day, width(), glyphs()))


def width() -> int:
    """Return the width of the terminal on stdout; 80 without one."""
    return shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns if sys.stdout.isatty() else PLAIN_WIDTH


def glyphs() -> Glyphs:
    """Return the glyphs that the encoding of stdout supports."""
    try:
        "".join(UNICODE).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


# ------------------------------------------------------------------------------------------------------------- text


def as_text(day: DaySummary, wide: int, marks: Glyphs) -> str:
    """Format the whole page: summary, table, chart and one explanation."""
    return "\n\n".join(part for part in (_head(day), _table(day, wide), _chart(day, wide, marks), _why(day)) if part)


def _head(day: DaySummary) -> str:
    done = [job for job in day.jobs if job.ended is not None]
    gpus = " + ".join(f"{count} {name}" for name, count in day.gpus.items())
    lines = [bold(f"{len(day.jobs)} jobs on {gpus} under {day.policy}, seed {day.seed}")]
    if done:
        waited = sum(job.waited_s for job in done) / len(done)
        took = sum((job.ended or 0.0) - job.job.submitted for job in done) / len(done)
        lines.append(
            f"{len(done)} jobs finished, {day.decisions} decisions; "
            f"mean wait {_hours(waited)}, mean completion time {_hours(took)}"
        )
    if day.rejection:
        lines.append(f"Decisions were rejected; the last one: {day.rejection}")
        lines.append("After 3 rejected decisions in a row, plain FIFO takes over.")
    return "\n".join(lines)


def _table(day: DaySummary, wide: int) -> str:
    header = ("JOB", "WORKLOAD", "GPUS", "TYPE", "NODES", "WAIT", "RAN", "RESIZED", "MOVED", "ENDED")
    noted = [job for job in day.jobs if job.note]
    rows = [
        (
            job.job.id,
            job.job.workload,
            _most_of_range(job),
            ",".join(dict.fromkeys(bar.gpu_type for bar in job.segments)) or "-",
            _where(job.segments[-1].nodes) if job.segments else "-",
            _hours(job.waited_s),
            _hours(job.ran_s),
            str(job.resizes or "-"),
            str(job.moves or "-"),
            _clock(job.ended) if job.ended is not None else job.phase,
        )
        for job in day.jobs
    ]
    table = columns(header, rows)
    if max(len(line) for line in table.splitlines()) + 2 + max((len(j.note) for j in noted), default=0) <= wide:
        table = columns((*header, ""), [(*row, job.note) for row, job in zip(rows, day.jobs, strict=True)])
        return "\n".join([table, *LEGEND])
    return "\n".join([table, *LEGEND, "", *_wrapped([f"{job.job.id}: {job.note}" for job in noted], wide)])


def _where(nodes: Sequence[str]) -> str:
    """Return the names of up to two nodes, else their number, to keep the table narrow."""
    return ",".join(nodes) if len(nodes) <= 2 else f"{len(nodes)} nodes"


def _chart(day: DaySummary, wide: int, marks: Glyphs) -> str:
    types = ["cpu", *day.gpus]
    rows = [
        ChartRow(
            label=f"{job.job.id} {job.job.workload}",
            bars=[Bar(bar.begin, bar.end, bar.gpu_type, bar.workers) for bar in job.segments],
            begin=job.job.submitted,
            end=day.until if job.ended is None else job.ended,
        )
        for job in day.jobs
    ]
    served = [Bar(pod.begin, pod.end, pod.gpu_type or "cpu", round(pod.gpus)) for pod in day.served]
    if served:
        rows.append(ChartRow(day.served[0].pod, served, served[0].begin, served[-1].end))
    gpu_types = list(day.gpus)
    chart = Chart([*(row.label for row in rows), *gpu_types], day.until, wide, types, marks, colour(sys.stdout))
    names = ", ".join(f"{letter} {name}" for name, letter in letters(types).items())
    lines = [bold(f"Workers by time of day ({names}; {marks.waits} waiting)"), chart.axis(), *map(chart.row, rows), ""]
    lines.append(bold("GPUs in use"))
    for name in gpu_types:
        weighed = [
            (Bar(bar.begin, bar.end, name, bar.workers), _gpus(job, bar.workers))
            for job in day.jobs
            for bar in job.segments
            if bar.gpu_type == name
        ]
        weighed += [(bar, float(bar.workers)) for bar in served if bar.gpu_type == name]
        use = chart.shares(weighed, day.gpus[name])
        lines.append(chart.level(name, use))
    means = ", ".join(f"{name} {_used(day, name):.0%}" for name in gpu_types)
    return "\n".join([*lines, f"Mean over the day: {means}"])


def _why(day: DaySummary) -> str:
    """Explain why a job waits at the time of the highest demand."""
    job = day.explained
    if job is None:
        return ""
    lines = [bold(f"Why does {job.job} wait at {_clock(day.busiest)}, the time of the highest demand?")]
    lines += textwrap.wrap(job.reason.text, 78, initial_indent="  ", subsequent_indent="  ")
    if job.would_help:
        lines += ["  What would help:", *(f"    {hint}" for hint in job.would_help)]
    if job.position is not None:
        behind = f", behind {', '.join(job.before)}" if job.before else ""
        lines.append(f"  Position {job.position} in the queue{behind}.")
    return "\n".join(lines)


def _used(day: DaySummary, gpu_type: str) -> float:
    """Return the used fraction of the GPU time of a type."""
    ran = sum(
        _gpus(job, bar.workers) * (bar.end - bar.begin)
        for job in day.jobs
        for bar in job.segments
        if bar.gpu_type == gpu_type
    )
    ran += sum(pod.gpus * (pod.end - pod.begin) for pod in day.served if pod.gpu_type == gpu_type)
    return ran / (day.gpus[gpu_type] * day.until)


def _gpus(job: JobSummary, workers: int) -> float:
    return workers * job.job.milli / 1000


def _most_of_range(job: JobSummary) -> str:
    """Format peak GPUs and requested range, e.g. `4/2-8`; only the size for a rigid job."""
    least, most = _gpus(job, job.job.min), _gpus(job, job.job.max)
    had = max((_gpus(job, bar.workers) for bar in job.segments), default=0.0)
    return f"{had:g}" if had == least == most else f"{had:g}/{least:g}" + ("" if least == most else f"-{most:g}")


def _hours(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02}"


def _clock(seconds: float) -> str:
    """Format a time of day; times after midnight continue with 24:00."""
    minutes = round(seconds / 60)
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _wrapped(items: list[str], wide: int) -> list[str]:
    """Join *items* with semicolons into lines of at most *wide* characters."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + 2 + len(item) <= wide:
            lines[-1] += f"; {item}"
        else:
            lines.append(item)
    return lines


# ------------------------------------------------------------------------------------------------------------- json


def as_json(day: DaySummary) -> dict[str, Any]:
    """Return the day as `-o json` prints it; times are seconds from midnight."""
    import msgspec

    fields = ("id", "workload", "submitted", "min", "max", "milli")
    return {
        "policy": day.policy,
        "seed": day.seed,
        "gpus": dict(day.gpus),
        "decisions": day.decisions,
        "utilisation": {name: round(_used(day, name), 4) for name in day.gpus},
        "jobs": [
            {name: getattr(job.job, name) for name in fields}
            | {name: getattr(job, name) for name in job.__struct_fields__ if name not in ("job", "segments")}
            | {"segments": [msgspec.to_builtins(bar) for bar in job.segments]}
            for job in day.jobs
        ],
        "served": [msgspec.to_builtins(pod) for pod in day.served],
        "busiest": day.busiest,
        "explain": None if day.explained is None else msgspec.to_builtins(day.explained),
        "rejection": day.rejection or None,
    }
