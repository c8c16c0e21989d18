"""`levada sim trace`: look at traces, turn one format into another, and draw new ones."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from levada.cli.output import TextOrJson, chatter, data, data_json
from levada.errors import BadInput, LevadaError

if TYPE_CHECKING:
    from levada.sim.source import Source
    from levada.sim.traces import Trace

#: What a trace is drawn or filled with does not depend on the cluster; but somebody has to name a type of the table.
_THROUGHPUTS = Annotated[
    str | None,
    typer.Option("--throughputs", help="A table of speeds, between steps and seconds; the catalogue unless given."),
]
_FORMAT = Annotated[
    str | None, typer.Option("--format", help="csv, parquet, gavel, …; the file's ending tells it otherwise.")
]
_OUT = Annotated[str, typer.Argument(metavar="OUT", help="The file to write; - for standard output, with --format.")]


def add(group: typer.Typer) -> None:
    """Adds `trace` to the group `sim`."""
    traces = typer.Typer(help="Describe, convert and draw traces.", rich_markup_mode=None)
    traces.command("describe")(describe)
    traces.command("convert")(convert)
    traces.command("generate")(generate)
    group.add_typer(traces, name="trace")


def describe(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A trace in any format that is known.")],
    throughputs: _THROUGHPUTS = None,
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="How to print it.")] = TextOrJson.TEXT,
) -> None:
    """Tell what a trace holds: jobs, times, work, sizes and kinds."""
    from levada.sim import traces

    about = traces.describe(_filled(traces.read(file), throughputs))
    if output is TextOrJson.JSON:
        import msgspec

        data_json(msgspec.to_builtins(about))
    else:
        data(traces.as_text(about))


def convert(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A trace in any format that is known.")],
    out: _OUT,
    format: _FORMAT = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Only the first so many.")] = None,
    throughputs: _THROUGHPUTS = None,
) -> None:
    """Write a trace in another format; steps and durations that are missing follow from each other."""
    from levada.sim.traces import read

    trace = read(file)
    if jobs is not None:
        trace = trace.take(slice(0, jobs))
    _write(_filled(trace, throughputs), out, format)


def generate(
    out: _OUT,
    workload: Annotated[str, typer.Option("--workload", help="gavel, gavel-trace, philly, or FILE.yaml.")],
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="How many.")],
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.0, help="Jobs per hour; 0 or not given: all at time 0.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Another seed, other jobs.")] = 0,
    multi_gpu: Annotated[bool, typer.Option("--multi-gpu", help="Draw jobs of several GPUs, too.")] = False,
    priorities: Annotated[bool, typer.Option("--priorities", help="One job in five has weight 5.")] = False,
    slos: Annotated[bool, typer.Option("--slos", help="Draw deadlines.")] = False,
    fixed_duration: Annotated[
        float | None, typer.Option("--fixed-duration", help="Seconds that every job takes on a v100.")
    ] = None,
    throughputs: _THROUGHPUTS = None,
    format: _FORMAT = None,
) -> None:
    """Draw jobs from a seed and write them as a trace."""
    from itertools import islice

    from levada.sim import workloads
    from levada.sim.traces import Trace

    if fixed_duration is not None and not 0 < fixed_duration < float("inf"):
        raise BadInput.one("--fixed-duration must be a number of seconds above 0")
    stream = workloads.jobs(
        workload,
        seed=seed,
        rate=_source(throughputs).reference_rate,
        jobs_per_hour=rate,
        multi_gpu=multi_gpu,
        priorities=priorities,
        slos=slos,
        fixed_duration_s=fixed_duration,
    )
    _write(Trace.of_jobs(islice(stream, jobs)), out, format)


def _filled(trace: Trace, throughputs: str | None) -> Trace:
    """The trace with what is missing of steps and durations, for the workloads that the table knows."""
    return trace.filled(_source(throughputs).rate_if_known)


def _source(throughputs: str | None) -> Source:
    from levada.sim.catalogue import catalogue
    from levada.sim.settings import Settings
    from levada.sim.source import Source
    from levada.sim.throughputs import read_throughputs
    from levada.sim.traces import find

    profiles = catalogue() if throughputs is None else read_throughputs(find(throughputs))
    return Source(Settings(policy="", cluster={profiles.types[0]: 1}, throughputs=throughputs))


def _write(trace: Trace, out: str, format: str | None) -> None:
    from levada.sim import traces

    if out != "-":
        traces.write(trace, out, format)
        chatter(f"{out}: {len(trace):,} jobs")
        return
    if format is None:
        raise BadInput.one(f"say --format for standard output: {', '.join(traces.WRITERS)}")
    try:
        sys.stdout.buffer.write(traces.render(trace, format))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise LevadaError("nobody reads the answer") from None
