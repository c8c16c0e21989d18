"""`levada ls`, `get` and `describe`: the jobs there are, in short and at length."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli import jobtable
from levada.cli.connection import JobName, Server, State, StateDir, connect
from levada.cli.lists import ListFormat, NoHeaders, Output, data_as, show, show_table
from levada.cli.output import aligned, chatter, data
from levada.cli.words import moment
from levada.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    from levada.sdk.client import Client

PHASES = ("Pending", "Starting", "Running", "Resizing", "Stopping", "Suspended", "Succeeded", "Failed", "Cancelled")
#: Jobs that ended longer ago are listed with -A only.
_RECENT_S = 86_400.0
_NO_JOBS = "There are no jobs here. Submit one with: levada submit -f FILE"


def register(app: typer.Typer) -> None:
    """Adds the verbs `ls` (and its other names), `get` and `describe`."""
    app.command("ls")(ls)
    app.command("ps", hidden=True)(ls)
    app.command("queue", hidden=True)(ls)
    app.command("get")(get)
    app.command("describe")(describe)


def ls(
    output: Output = ListFormat.TABLE,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Stay, and print jobs again when they change.")] = False,
    sort_by: Annotated[
        str | None,
        typer.Option("--sort-by", metavar="FIELD", help="A field of -o json; -FIELD for the largest first."),
    ] = None,
    state: Annotated[
        str | None, typer.Option("--state", "-s", metavar="STATE", help="Only these, e.g. Running,Pending.")
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Only of this queue.")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only of this user.")] = None,
    me: Annotated[bool, typer.Option("--me", help="Only mine.")] = False,
    label: Annotated[list[str] | None, typer.Option("--label", "-l", metavar="NAME=VALUE", help="Only these.")] = None,
    everything: Annotated[bool, typer.Option("--all", "-A", help="Also jobs that ended over a day ago.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="The newest so many.")] = None,
    no_headers: NoHeaders = False,
    server: Server = None,
    state_dir: StateDir = None,
) -> None:
    """List jobs: what each has, how far it is, and why it waits."""
    phases = phases_of(state, "--state")
    which: dict[str, Any] = {
        "phases": phases,
        "user": "me" if me else user,
        "queue": queue,
        "labels": _labels(label or []),
    }
    by, most_first = _order(sort_by)
    ended_lately = not everything and phases is None

    def chosen(jobs: jobtable.Columns) -> list[int]:
        places = list(range(len(jobs["finished"])))
        if ended_lately:
            places = _recent(jobs["finished"])
        # The newest, whatever they are ordered by.
        places = places[-limit:] if limit is not None else places
        return places if by is None else sorted(places, key=lambda at: _comparable(jobs[by][at]), reverse=most_first)

    wanted = ("finished", *([by] if by is not None else ()))

    def found(client: Client) -> list[Any]:
        jobs: list[Any] = client.jobs(**which)
        return [jobs[at] for at in chosen(jobtable.columns_of(jobs, wanted))]

    with connect(server, state_dir) as client:
        if watch:
            from levada.cli.watching import watch_jobs

            watch_jobs(client, found, output, no_headers)
        elif output in (ListFormat.TABLE, ListFormat.WIDE):
            wide = output is ListFormat.WIDE
            listed = client.job_columns((*jobtable.fields(wide), *wanted), **which)
            places = chosen(listed)
            if by is not None or len(places) < len(listed["id"]):
                listed = {name: [column[at] for at in places] for name, column in listed.items()}
            _show_table(listed, wide, no_headers)
        else:
            show_jobs(found(client), output, no_headers)


def _show_table(jobs: jobtable.Columns, wide: bool, no_headers: bool) -> None:
    if not jobs["id"]:
        chatter(_NO_JOBS)
        return
    header, texts = jobtable.table(jobs, wide)
    show_table(aligned(header, texts, spare=None if wide else jobtable.SPARE), no_headers)


def show_jobs(jobs: list[Any], output: ListFormat, no_headers: bool = False) -> None:
    """Prints jobs in one of the forms."""
    if output is ListFormat.CSV:
        # A line has no room for what each worker does.
        jobs = [{**job, "workers": len(job["workers"])} for job in jobs]
    show(
        jobs,
        output,
        lambda wide: jobtable.rows(jobs, wide),
        key="id",
        spare=jobtable.SPARE,
        no_headers=no_headers,
        nothing=_NO_JOBS,
    )


def phases_of(text: str | None, option: str) -> list[str] | None:
    """The phases that an option names; raises BadInput."""
    if text is None:
        return None
    wanted = [part.capitalize() for part in text.split(",") if part]
    for phase in wanted:
        if phase not in PHASES:
            if "/" in text or os.path.isdir(text):
                which = "--state-dir or LEVADA_STATE names the folder of a server"
                raise BadInput.one(f"{option}: {text}: is no state of a job; {which}")
            raise BadInput.one(f"{option}: there is no state {phase!r}{did_you_mean(phase, PHASES, ', '.join(PHASES))}")
    return wanted


def _labels(given: list[str]) -> dict[str, str]:
    for each in given:
        if "=" not in each:
            raise BadInput.one(f"--label: {each}: must be NAME=VALUE")
    return dict(each.split("=", 1) for each in given)


def _recent(finished: Sequence[str | None]) -> list[int]:
    """The places of jobs that are not over, or not for long."""
    since = time.time() - _RECENT_S
    return [at for at, text in enumerate(finished) if text is None or (moment(text) or 0.0) > since]


def _order(sort_by: str | None) -> tuple[str | None, bool]:
    """The field to sort by, if any, and whether the largest comes first; raises BadInput."""
    if sort_by is None:
        return None, False
    from levada.sdk.models import Job

    name = sort_by.lstrip("-").lower()
    name = {"age": "submitted", "prio": "priority", "state": "phase", "type": "gpu_type", "eta": "eta_s"}.get(
        name, name
    )
    if name not in Job.__annotations__:
        raise BadInput.one(f"--sort-by: jobs have no field {name!r}{did_you_mean(name, Job.__annotations__)}")
    return name, sort_by.startswith("-")


def _comparable(value: Any) -> tuple[bool, Any]:
    return value is None, "" if value is None else str(value) if isinstance(value, dict | list) else value


class Kind(StrEnum):
    """What `get` gets."""

    JOBS = "jobs"
    JOB = "job"
    NODES = "nodes"
    NODE = "node"
    QUEUES = "queues"
    QUEUE = "queue"


def get(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="jobs, nodes or queues.", show_default=False)],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Only these.", show_default=False)
    ] = None,
    output: Output = ListFormat.TABLE,
    no_headers: NoHeaders = False,
    server: Server = None,
    state: State = None,
) -> None:
    """Get jobs, nodes or queues, all or by name; jobs as Voda prints them."""
    with connect(server, state) as client:
        if kind in (Kind.JOBS, Kind.JOB):
            found: list[Any] = [client.get(name) for name in names] if names else list(client.jobs())
            if output is not ListFormat.TABLE:
                _one_or_all(found, output, no_headers, kind is Kind.JOB and names is not None and len(names) == 1)
                return
            text = jobtable.voda_table(found)
            data("\n".join(text.splitlines()[1:]) if no_headers else text)
            return
        if kind in (Kind.NODES, Kind.NODE):
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
            raise NotFound(f"there is no {kind} {name}" + did_you_mean(name, by_name, f"see levada get {kind}s"))
    return [by_name[name] for name in names] if names else list(items)


def describe(
    name: JobName,
    output: Output = ListFormat.TABLE,
    server: Server = None,
    state: State = None,
) -> None:
    """Show one job at length: what it has, where it runs, how fast it is at every size, what happened to it."""
    from levada.cli.page import job_page

    with connect(server, state) as client:
        job: Any = client.get(name)
        curve = client.curve(job["id"])
        if output not in (ListFormat.TABLE, ListFormat.WIDE):
            _one_or_all([{**job, "curve": curve}], output, False, True)
            return
        data(job_page(job, client.events(job["id"]), curve))
