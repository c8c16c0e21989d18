"""`levada logs` and `events`: what jobs say, and what happened to them."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli.connection import JobName, Server, State, connect
from levada.cli.exit import ExitCode
from levada.cli.output import chatter, data, data_json
from levada.cli.terminal import shown_line
from levada.cli.words import clock
from levada.errors import BadInput

if TYPE_CHECKING:
    from levada.sdk.client import Client


def register(app: typer.Typer) -> None:
    """Adds the verbs `logs` and `events`."""
    app.command("logs")(logs)
    app.command("events")(events)


def seconds(text: str, option: str) -> float:
    """The seconds of a duration in an option; raises BadInput."""
    from levada.jobfile.units import duration_s

    try:
        return float(text) if text.replace(".", "", 1).isdecimal() else duration_s(text)
    except ValueError as error:
        raise BadInput.one(f"{option}: {error}") from None


def logs(
    name: JobName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only the last so many lines.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="Only of the last, e.g. 10m.")] = None,
    worker: Annotated[str | None, typer.Option("--worker", help="Only of this worker.")] = None,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="Of before the last restart.")] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="With the time of each line.")] = False,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Let control sequences of the job reach the terminal."),
    ] = False,
    server: Server = None,
    state: State = None,
) -> None:
    """Print what the workers of a job say.

    On a terminal control sequences are shown as text, e.g. \\x1b, unless --raw is given.
    """
    since_s = None if since is None else seconds(since, "--since")
    with connect(server, state) as client:
        job = client.get(name)
        several = worker is None and job["max"] > 1
        if follow:
            until_it_runs(client, job)
        lines = client.logs(job["id"], worker=worker, tail=tail, since_s=since_s, follow=follow, previous=previous)
        printed = print_lines(lines, several, timestamps, raw)
        if not (printed or follow or job["finished"] or tail == 0):
            earlier = "since its last start; --previous shows what came before" if job["restarts"] else "yet"
            chatter(f"{_standing(job)}; no output {earlier}")


def _standing(job: Any) -> str:
    """Where a job stands and why, as `Pending: needs 2 GPUs, 1 free`, or `Running` alone."""
    why = "" if job["phase"] == "Running" else (job.get("reason") or {}).get("text", "").rstrip(".")
    return f"{job['phase']}: {why}" if why else job["phase"]


def until_it_runs(client: Client, job: Any) -> None:
    """Waits for a job that has not begun, and says why it has not."""
    if job["phase"] in ("Pending", "Starting"):
        chatter(f"{_standing(job)}; waiting for it to start")
        there: Any = client.wait(job["id"], phases=("Running", "Resizing", "Stopping"))
        if there["phase"] == "Pending":
            from levada.cli.wait import never_starts_line

            chatter(never_starts_line(there))
            raise typer.Exit(ExitCode.JOB_FAILED)


def print_lines(lines: Any, with_worker: bool, timestamps: bool = False, raw: bool = False) -> bool:
    """Prints lines of output as they come, with the name of the worker where there are several; whether there are any.

    On a terminal control sequences in them are shown, not obeyed, unless *raw*.
    """
    as_text = shown_line if sys.stdout.isatty() and not raw else str
    printed = False
    with lines:
        for line in lines:
            printed = True
            head = f"{line['time'] or '-'} " if timestamps else ""
            head += f"[{line['worker']}] " if with_worker else ""
            data(head + as_text(line["text"]), raw=raw)
    return printed


class EventFormat(StrEnum):
    """How events are printed."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


def events(
    name: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Only of this job.", show_default=False)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Only the last so many.")] = None,
    output: Annotated[EventFormat, typer.Option("--output", "-o", help="How to print it.")] = EventFormat.TEXT,
    server: Server = None,
    state: State = None,
) -> None:
    """Print what happened, to one job or at all."""
    with connect(server, state) as client:
        job = None if name is None else client.get(name)["id"]
        past: list[Any] = list(client.events(job))
        shown = past[-limit:] if limit is not None else past
        if output is EventFormat.JSON and not follow:
            data_json(shown)
            return
        for event in shown:
            _print(event, output, job is None)
        if not follow:
            return
        with client.watch(job, after=past[-1]["id"] if past else 0) as coming:
            for event in coming:
                _print(event, output, job is None)
                sys.stdout.flush()


def _print(event: Any, output: EventFormat, with_job: bool) -> None:
    if output is EventFormat.TEXT:
        whose = f"{event['job'] or '-'}  " if with_job else ""
        data(f"{clock(event['time'])}  {whose}{event['type']}  {event['text']}")
    else:
        # What goes on has no end, so that it is lines in any case.
        data(json.dumps(event, allow_nan=False))
