"""`levada demo`: a day on a small mixed cluster, simulated with the real engine, as a table and a chart."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from contextlib import redirect_stdout
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli.gantt import ASCII, UNICODE, Bar, Chart, Glyphs, Row, letters
from levada.cli.output import bold, colour, columns, data, data_json

if TYPE_CHECKING:
    from levada.sim.demo_day import DayStory, JobStory

#: What stands in the columns of the table.
LEGEND = (
    "GPUS: most it had / range it asked for; TYPE: on what; NODES: where it was last;",
    "WAIT, RAN: hours:minutes; RESIZED, MOVED: how often; ENDED: time of day, which",
    "after midnight goes on with 24:00",
)

#: Width of the output where no terminal says otherwise.
PLAIN_WIDTH = 80


class Output(StrEnum):
    """How the day is printed."""

    TABLE = "table"
    JSON = "json"


def register(app: typer.Typer) -> None:
    """Adds the verb `demo`."""
    app.command("demo")(demo)


def demo(
    policy: Annotated[str, typer.Option("--policy", help="A name, or path/to/file.py:Class.")] = "elastic-fifo",
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Another seed, another day.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=500, help="How many jobs come.")] = 30,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """Show a day of jobs on a mixed cluster, in simulated time."""
    from levada.plugins import find_policy
    from levada.sim.demo_day import live

    # A user's policy may print what it likes, but stdout is for the day alone.
    with redirect_stdout(sys.stderr):
        day = live(policy, count=jobs, seed=seed, make_policy=find_policy)
    if output is Output.JSON:
        data_json(as_json(day))
    else:
        data(as_text(day, width(), glyphs()))


def width() -> int:
    """Columns of the terminal on stdout, or a fixed number without one."""
    return shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns if sys.stdout.isatty() else PLAIN_WIDTH


def glyphs() -> Glyphs:
    """What stdout's encoding can show."""
    try:
        "".join(UNICODE).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


# ------------------------------------------------------------------------------------------------------------- text


def as_text(day: DayStory, wide: int, marks: Glyphs) -> str:
    """The whole page."""
    return "\n\n".join(part for part in (_head(day), _table(day, wide), _chart(day, wide, marks), _why(day)) if part)


def _head(day: DayStory) -> str:
    done = [job for job in day.jobs if job.ended is not None]
    gpus = " + ".join(f"{count} {name}" for name, count in day.gpus.items())
    lines = [bold(f"{len(day.jobs)} jobs on {gpus} under {day.policy}, seed {day.seed}")]
    if done:
        waited = sum(job.waited_s for job in done) / len(done)
        took = sum((job.ended or 0.0) - job.job.submitted for job in done) / len(done)
        lines.append(
            f"{len(done)} ended after {day.decisions} decisions; "
            f"on average they waited {_hours(waited)} and took {_hours(took)}"
        )
    if day.rejection:
        lines.append(f"Decisions were refused, the last one so: {day.rejection}")
        lines.append("After three refusals in a row plain FIFO decides.")
    return "\n".join(lines)


def _table(day: DayStory, wide: int) -> str:
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
    """Names of one or two nodes; more are counted, to keep the table narrow."""
    return ",".join(nodes) if len(nodes) <= 2 else f"{len(nodes)} nodes"


def _chart(day: DayStory, wide: int, marks: Glyphs) -> str:
    types = ["cpu", *day.gpus]
    rows = [
        Row(
            label=f"{job.job.id} {job.job.workload}",
            bars=[Bar(bar.begin, bar.end, bar.gpu_type, bar.workers) for bar in job.segments],
            begin=job.job.submitted,
            end=day.until if job.ended is None else job.ended,
        )
        for job in day.jobs
    ]
    served = [Bar(pod.begin, pod.end, pod.gpu_type or "cpu", round(pod.gpus)) for pod in day.served]
    if served:
        rows.append(Row(day.served[0].pod, served, served[0].begin, served[-1].end))
    gpu_types = list(day.gpus)
    chart = Chart([*(row.label for row in rows), *gpu_types], day.until, wide, types, marks, colour(sys.stdout))
    names = ", ".join(f"{letter} {name}" for name, letter in letters(types).items())
    lines = [bold(f"Workers by time of day ({names}; {marks.waits} waits)"), chart.axis(), *map(chart.row, rows), ""]
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
    return "\n".join([*lines, f"On average over the day: {means}"])


def _why(day: DayStory) -> str:
    """Why a job waited when most was wanted."""
    told = day.explained
    if told is None:
        return ""
    place = "is the first" if told.position == 1 else f"is number {told.position}"
    lines = [bold(f"Why does {told.job} wait at {_clock(day.busiest)}, the busiest moment?")]
    lines += textwrap.wrap(told.reason.text, 78, initial_indent="  ", subsequent_indent="  ")
    if told.would_help:
        lines += ["  It could start with", *(f"    {sentence}" for sentence in told.would_help)]
    if told.position is not None:
        lines.append(f"  It {place} in line" + (f", after {', '.join(told.before)}." if told.before else "."))
    return "\n".join(lines)


def _used(day: DayStory, gpu_type: str) -> float:
    """The share of all GPU time of a type that was used."""
    ran = sum(
        _gpus(job, bar.workers) * (bar.end - bar.begin)
        for job in day.jobs
        for bar in job.segments
        if bar.gpu_type == gpu_type
    )
    ran += sum(pod.gpus * (pod.end - pod.begin) for pod in day.served if pod.gpu_type == gpu_type)
    return ran / (day.gpus[gpu_type] * day.until)


def _gpus(job: JobStory, workers: int) -> float:
    return workers * job.job.milli / 1000


def _most_of_range(job: JobStory) -> str:
    """The most GPUs that it had, and the range that it asked for: 4/2-8; a rigid job's one size."""
    least, most = _gpus(job, job.job.min), _gpus(job, job.job.max)
    had = max((_gpus(job, bar.workers) for bar in job.segments), default=0.0)
    return f"{had:g}" if had == least == most else f"{had:g}/{least:g}" + ("" if least == most else f"-{most:g}")


def _hours(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02}"


def _clock(seconds: float) -> str:
    """The time of day; after midnight it goes on with 24:00, as timetables do."""
    minutes = round(seconds / 60)
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _wrapped(items: list[str], wide: int) -> list[str]:
    """The items one after the other, on as few lines as they need."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + 2 + len(item) <= wide:
            lines[-1] += f"; {item}"
        else:
            lines.append(item)
    return lines


# ------------------------------------------------------------------------------------------------------------- json


def as_json(day: DayStory) -> dict[str, Any]:
    """The day as `-o json` prints it; times in seconds from midnight."""
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
