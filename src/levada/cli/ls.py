"""`levada ls`, `get` and `describe`: list and show jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli import job_table
from levada.cli.connection import JobName, Server, StateDir, connect
from levada.cli.formatting import moment
from levada.cli.lists import ListFormat, NoHeaders, Output, data_as, show, show_table
from levada.cli.output import aligned, data, message
from levada.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    from levada.sdk.client import Client

PHASES = ("Pending", "Starting", "Running", "Resizing", "Stopping", "Suspended", "Succeeded", "Failed", "Cancelled")
#: Jobs that ended before this time are listed only with -A.
_RECENT_S = 86_400.0
Phases = Annotated[
    str | None,
    typer.Option("--state", "-s", metavar="STATE,…", help="List only jobs in these states, e.g. Running,Pending."),
]
_NO_JOBS = "No jobs found. Submit one with: levada submit -f FILE"


def register(app: typer.Typer) -> None:
    """Add the verbs `ls` (and its other names), `get` and `describe`."""
    app.command("ls")(ls)
    app.command("ps", hidden=True)(ls)
    app.command("queue", hidden=True)(ls)
    app.command("get")(get)
    app.command("describe")(describe)


def ls(  # noqa: PLR0913 - one parameter per flag
    output: Output = ListFormat.TABLE,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep running and print jobs again when they change.")
    ] = False,
    sort_by: Annotated[
        str | None,
        typer.Option("--sort-by", metavar="FIELD", help="Sort by a field of -o json; -FIELD sorts descending."),
    ] = None,
    state: Phases = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="List only jobs of this queue.")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="List only jobs of this user.")] = None,
    me: Annotated[bool, typer.Option("--me", help="List only my jobs.")] = False,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", "-l", metavar="NAME=VALUE", help="List only jobs with this label; may be repeated."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", "-A", help="Also list jobs that ended over a day ago.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="List only the N newest jobs.")] = None,
    no_headers: NoHeaders = False,
    server: Server = None,
    state_dir: StateDir = None,
) -> None:
    """List jobs with GPUs, progress and the reason why they wait."""
    phases = phases_of(state, "--state")
    filters: dict[str, Any] = {
        "phases": phases,
        "user": "me" if me else user,
        "queue": queue,
        "labels": _labels(label or []),
    }
    sort_field, descending = _order(sort_by)
    recent_only = not everything and phases is None

    def select(jobs: job_table.Columns) -> list[int]:
        rows = list(range(len(jobs["finished"])))
        if recent_only:
            rows = _recent(jobs["finished"])
        # --limit selects the newest jobs, also if they are sorted by another field.
        rows = rows[-limit:] if limit is not None else rows
        if sort_field is None:
            return rows
        return sorted(rows, key=lambda row: _comparable(jobs[sort_field][row]), reverse=descending)

    needed = ("finished", *([sort_field] if sort_field is not None else ()))

    def selected(client: Client) -> list[Any]:
        jobs: list[Any] = client.jobs(**filters)
        return [jobs[row] for row in select(job_table.columns_of(jobs, needed))]

    with connect(server, state_dir) as client:
        if watch:
            from levada.cli.watch import watch_jobs

            watch_jobs(client, selected, output, no_headers)
        elif output in (ListFormat.TABLE, ListFormat.WIDE):
            wide = output is ListFormat.WIDE
            jobs = client.job_columns((*job_table.fields(wide), *needed), **filters)
            rows = select(jobs)
            if sort_field is not None or len(rows) < len(jobs["id"]):
                jobs = {name: [column[row] for row in rows] for name, column in jobs.items()}
            _show_table(jobs, wide, no_headers)
        else:
            show_jobs(selected(client), output, no_headers)


def _show_table(jobs: job_table.Columns, wide: bool, no_headers: bool) -> None:
    if not jobs["id"]:
        message(_NO_JOBS)
        return
    header, texts = job_table.table(jobs, wide)
    show_table(aligned(header, texts, spare=None if wide else job_table.SPARE), no_headers)


def show_jobs(jobs: list[Any], output: ListFormat, no_headers: bool = False) -> None:
    """Print jobs in an output format."""
    if output is ListFormat.CSV:
        # CSV has only the number of workers.
        jobs = [{**job, "workers": len(job["workers"])} for job in jobs]
    show(
        jobs,
        output,
        lambda wide: job_table.rows(jobs, wide),
        key="id",
        spare=job_table.SPARE,
        no_headers=no_headers,
        nothing=_NO_JOBS,
    )


def phases_of(text: str | None, option: str) -> list[str] | None:
    """Return the phases in the value of an option; raises BadInput."""
    if text is None:
        return None
    wanted = [part.capitalize() for part in text.split(",") if part]
    for phase in wanted:
        if phase not in PHASES:
            if "/" in text or os.path.isdir(text):
                hint = "use --state-dir or LEVADA_STATE for the state directory of a server"
                raise BadInput.one(f"{option}: {text}: not a state of a job; {hint}")
            raise BadInput.one(f"{option}: no such state: {phase!r}{did_you_mean(phase, PHASES, ', '.join(PHASES))}")
    return wanted


def _labels(texts: list[str]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise BadInput.one(f"--label: {text}: must be NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


def _recent(finished: Sequence[str | None]) -> list[int]:
    """Return the rows of jobs that have not ended, or ended within the last day."""
    since = time.time() - _RECENT_S
    return [row for row, text in enumerate(finished) if text is None or (moment(text) or 0.0) > since]


def _order(sort_by: str | None) -> tuple[str | None, bool]:
    """Return the field to sort by, if any, and whether the order is descending; raises BadInput."""
    if sort_by is None:
        return None, False
    from levada.sdk import Job

    name = sort_by.lstrip("-").lower()
    name = {"age": "submitted", "prio": "priority", "state": "phase", "type": "gpu_type", "eta": "eta_s"}.get(
        name, name
    )
    if name not in Job.__annotations__:
        raise BadInput.one(f"--sort-by: jobs have no field {name!r}{did_you_mean(name, Job.__annotations__)}")
    return name, sort_by.startswith("-")


def _comparable(value: Any) -> tuple[bool, Any]:
    return value is None, "" if value is None else str(value) if isinstance(value, dict | list) else value


class ListKind(StrEnum):
    """Kinds of objects that `get` lists."""

    JOBS = "jobs"
    JOB = "job"
    NODES = "nodes"
    NODE = "node"
    QUEUES = "queues"
    QUEUE = "queue"


def get(
    kind: Annotated[ListKind, typer.Argument(metavar="KIND", help="Kind: jobs, nodes or queues.", show_default=False)],
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Names of jobs, nodes or queues. Default: all.", show_default=False),
    ] = None,
    output: Output = ListFormat.TABLE,
    state: Phases = None,
    no_headers: NoHeaders = False,
    server: Server = None,
    state_dir: StateDir = None,
) -> None:
    """List jobs (in the format of Voda), nodes or queues."""
    phases = phases_of(state, "--state")
    if phases is not None and (names or kind not in (ListKind.JOBS, ListKind.JOB)):
        raise BadInput.one("--state: works only with `levada get jobs` without names")
    with connect(server, state_dir) as client:
        if kind in (ListKind.JOBS, ListKind.JOB):
            jobs: list[Any] = [client.get(name) for name in names] if names else list(client.jobs(phases=phases))
            if output is not ListFormat.TABLE:
                _one_or_all(jobs, output, no_headers, kind is ListKind.JOB and names is not None and len(names) == 1)
                return
            text = job_table.voda_table(jobs)
            data("\n".join(text.splitlines()[1:]) if no_headers else text)
            return
        if kind in (ListKind.NODES, ListKind.NODE):
            from levada.cli.nodes import show_nodes

            show_nodes(_named(client.nodes(), names, "node"), output, no_headers)
            return
        from levada.cli.queues import show_queues

        show_queues(_named(client.queues(), names, "queue"), output, no_headers)


def _one_or_all(jobs: list[Any], output: ListFormat, no_headers: bool, alone: bool) -> None:
    if alone and output in (ListFormat.JSON, ListFormat.YAML):
        data_as(output, jobs[0])
    else:
        show_jobs(jobs, output, no_headers)


def _named(items: Any, names: list[str] | None, kind: str) -> list[Any]:
    from levada.errors import NotFound

    by_name = {item["name"]: item for item in items}
    for name in names or ():
        if name not in by_name:
            raise NotFound(f"no such {kind}: {name}" + did_you_mean(name, by_name, f"see levada get {kind}s"))
    return [by_name[name] for name in names] if names else list(items)


def describe(
    name: JobName,
    output: Output = ListFormat.TABLE,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Show one job: state, placement, speed by size and events."""
    from levada.cli.describe import job_page

    with connect(server, state) as client:
        job: Any = client.get(name)
        curve = client.curve(job["id"])
        if output not in (ListFormat.TABLE, ListFormat.WIDE):
            _one_or_all([{**job, "curve": curve}], output, False, True)
            return
        data(job_page(job, client.events(job["id"]), curve))
