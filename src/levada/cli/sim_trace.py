"""`levada sim trace`: describe, convert and generate traces."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from levada.cli.output import TextOrJson, data, data_json, message
from levada.errors import BadInput, LevadaError

if TYPE_CHECKING:
    from levada.sim.source import Source
    from levada.sim.traces import Trace

_THROUGHPUTS = Annotated[
    str | None,
    typer.Option(
        "--throughputs", help="Throughput table, to convert steps and seconds.", show_default="built-in catalogue"
    ),
]
_FORMAT = Annotated[
    str | None, typer.Option("--format", help="csv, parquet, gavel, …", show_default="from the file name")
]
_OUT = Annotated[str, typer.Argument(metavar="OUT", help="Output file; - writes to standard output (needs --format).")]


def add(group: typer.Typer) -> None:
    """Add `trace` to the group `sim`."""
    traces = typer.Typer(help="Describe, convert and generate traces.", rich_markup_mode=None)
    traces.command("describe")(describe)
    traces.command("convert")(convert)
    traces.command("generate")(generate)
    group.add_typer(traces, name="trace")


def describe(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Trace file, in any supported format.")],
    throughputs: _THROUGHPUTS = None,
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="Output format.")] = TextOrJson.TEXT,
) -> None:
    """Describe a trace: jobs, times, work, sizes and workloads."""
    from levada.sim import traces

    about = traces.describe(_filled(traces.read(file), throughputs))
    if output is TextOrJson.JSON:
        import msgspec

        data_json(msgspec.to_builtins(about))
    else:
        data(traces.as_text(about))


def convert(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Trace file, in any supported format.")],
    out: _OUT,
    format: _FORMAT = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, metavar="N", help="Write only the first N jobs.")] = None,
    throughputs: _THROUGHPUTS = None,
) -> None:
    """Convert a trace to another format.

    Missing steps and durations are computed from each other with the throughput table.
    """
    from levada.sim.traces import read

    trace = read(file)
    if jobs is not None:
        trace = trace.take(slice(0, jobs))
    _write(_filled(trace, throughputs), out, format)


def generate(  # noqa: PLR0913 - one parameter per flag
    out: _OUT,
    workload: Annotated[str, typer.Option("--workload", help="Workload: gavel, gavel-trace, philly or FILE.yaml.")],
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Number of jobs.")],
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.0, help="Arrivals per hour; 0 (default): all at time 0.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of the random jobs.")] = 0,
    multi_gpu: Annotated[bool, typer.Option("--multi-gpu", help="Also generate jobs with several GPUs.")] = False,
    priorities: Annotated[bool, typer.Option("--priorities", help="Give 20 % of the jobs weight 5.")] = False,
    slos: Annotated[bool, typer.Option("--slos", help="Generate deadlines.")] = False,
    fixed_duration: Annotated[
        float | None, typer.Option("--fixed-duration", help="Duration of each job on a v100, in seconds.")
    ] = None,
    throughputs: _THROUGHPUTS = None,
    format: _FORMAT = None,
) -> None:
    """Generate jobs from a seed and write them as a trace."""
    from itertools import islice

    from levada.sim import workloads
    from levada.sim.traces import Trace

    if fixed_duration is not None and not 0 < fixed_duration < float("inf"):
        raise BadInput.one(f"--fixed-duration {fixed_duration:g}: must be a number of seconds above 0")
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
    """Fill in missing steps and durations for the workloads in the throughput table."""
    return trace.filled(_source(throughputs).rate_if_known)


def _source(throughputs: str | None) -> Source:
    from levada.sim.catalogue import catalogue
    from levada.sim.settings import Settings
    from levada.sim.source import Source
    from levada.sim.throughputs import read_throughputs
    from levada.sim.traces import find

    # A source needs a cluster; any type of the table will do.
    profiles = catalogue() if throughputs is None else read_throughputs(find(throughputs))
    return Source(Settings(policy="", cluster={profiles.types[0]: 1}, throughputs=throughputs))


def _write(trace: Trace, out: str, format: str | None) -> None:
    from levada.sim import traces

    if out != "-":
        traces.write(trace, out, format)
        message(f"{out}: {len(trace):,} jobs")
        return
    if format is None:
        raise BadInput.one(f"standard output needs --format: one of {', '.join(traces.WRITERS)}")
    try:
        sys.stdout.buffer.write(traces.render(trace, format))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise LevadaError("cannot write to standard output: the reader closed the pipe") from None
