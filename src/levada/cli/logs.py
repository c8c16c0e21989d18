"""`levada logs` and `events`: output and events of jobs."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli.connection import JobName, Server, StateDir, connect
from levada.cli.exit import ExitCode
from levada.cli.formatting import clock
from levada.cli.output import data, data_json, message
from levada.cli.terminal import escaped_line
from levada.errors import BadInput

if TYPE_CHECKING:
    from levada.sdk.client import Client


def register(app: typer.Typer) -> None:
    """Add the verbs `logs` and `events`."""
    app.command("logs")(logs)
    app.command("events")(events)


def seconds(text: str, option: str) -> float:
    """Return the seconds of a duration in an option; raises BadInput."""
    from levada.jobfile.units import duration_s

    try:
        return float(text) if text.replace(".", "", 1).isdecimal() else duration_s(text)
    except ValueError as error:
        raise BadInput.one(f"{option}: {error}") from None


def logs(  # noqa: PLR0913 - one parameter per flag
    name: JobName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the output until the job finishes.")] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, help="Print only this many of the last lines.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Print only lines of the last TIME, e.g. 10m.")
    ] = None,
    worker: Annotated[str | None, typer.Option("--worker", help="Print only the output of this worker.")] = None,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Print the output before the last restart.")
    ] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Print the time of each line.")] = False,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Do not escape control sequences on a terminal."),
    ] = False,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Print the output of the workers of a job.

    On a terminal, control sequences are escaped, e.g. as \\x1b, unless --raw is given.
    """
    since_s = None if since is None else seconds(since, "--since")
    with connect(server, state) as client:
        job = client.get(name)
        several = worker is None and job["max"] > 1
        if follow:
            wait_for_start(client, job)
        lines = client.logs(job["id"], worker=worker, tail=tail, since_s=since_s, follow=follow, previous=previous)
        printed = print_lines(lines, several, timestamps, raw)
        if not (printed or follow or job["finished"] or tail == 0):
            earlier = "since the last start; use --previous for earlier output" if job["restarts"] else "yet"
            message(f"{_status(job)}; no output {earlier}")


def _status(job: Any) -> str:
    """Format phase and reason, e.g. `Pending: needs 2 GPUs, 1 free`; `Running` alone."""
    why = "" if job["phase"] == "Running" else (job.get("reason") or {}).get("text", "").rstrip(".")
    return f"{job['phase']}: {why}" if why else job["phase"]


def wait_for_start(client: Client, job: Any) -> None:
    """Print why a job has not started, and wait until it has."""
    if job["phase"] in ("Pending", "Starting"):
        message(f"{_status(job)}; waiting for it to start")
        started: Any = client.wait(job["id"], phases=("Running", "Resizing", "Stopping"))
        if started["phase"] == "Pending":
            from levada.cli.wait import never_starts_line

            message(never_starts_line(started))
            raise typer.Exit(ExitCode.JOB_FAILED)


def print_lines(lines: Any, with_worker: bool, timestamps: bool = False, raw: bool = False) -> bool:
    """Print output lines as they arrive; returns whether there were any.

    On a terminal, control sequences are escaped unless *raw*.
    """
    as_text = escaped_line if sys.stdout.isatty() and not raw else str
    printed = False
    with lines:
        for line in lines:
            printed = True
            head = f"{line['time'] or '-'} " if timestamps else ""
            head += f"[{line['worker']}] " if with_worker else ""
            data(head + as_text(line["text"]), raw=raw)
    return printed


class EventFormat(StrEnum):
    """Output formats of events."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


def events(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help="Print only events of this job. Default: all.", show_default=False),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep running and print new events.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Print only this many of the last events.")
    ] = None,
    output: Annotated[EventFormat, typer.Option("--output", "-o", help="Output format.")] = EventFormat.TEXT,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Print the events of one job, or of the whole server."""
    with connect(server, state) as client:
        job = None if name is None else client.get(name)["id"]
        past: list[Any] = list(client.events(job))
        selected = past[-limit:] if limit is not None else past
        if output is EventFormat.JSON and not follow:
            data_json(selected)
            return
        for event in selected:
            _print(event, output, job is None)
        if not follow:
            return
        with client.watch(job, after=past[-1]["id"] if past else 0) as new_events:
            for event in new_events:
                _print(event, output, job is None)
                sys.stdout.flush()


def _print(event: Any, output: EventFormat, with_job: bool) -> None:
    if output is EventFormat.TEXT:
        job = f"{event['job'] or '-'}  " if with_job else ""
        data(f"{clock(event['time'])}  {job}{event['type']}  {event['text']}")
    else:
        # A followed stream has no end, so --follow prints JSON lines also with -o json.
        data(json.dumps(event, allow_nan=False))
