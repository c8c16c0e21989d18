"""`levada ls`, `get` and `describe`: the jobs there are, in short and at length."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli import jobtable
from levada.cli.connection import JobName, Server, State, StateDir, connect
from levada.cli.lists import ListFormat, NoHeaders, Output, data_as, show
from levada.cli.output import data
from levada.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    from levada.sdk.client import Client

PHASES = ("Pending", "Starting", "Running", "Resizing", "Stopping", "Suspended", "Succeeded", "Failed", "Cancelled")
#: Jobs that ended longer ago are listed with -A only.
_RECENT_S = 86_400.0


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
    labels = _labels(label or [])

    def found(client: Client) -> list[Any]:
        jobs: list[Any] = client.jobs(phases=phases, user="me" if me else user, queue=queue, labels=labels)
        if not everything and phases is None:
            jobs = [job for job in jobs if _is_recent(job)]
        # The newest, whatever they are ordered by.
        jobs = jobs[-limit:] if limit is not None else jobs
        return jobs if sort_by is None else _sorted(jobs, sort_by)

    with connect(server, state_dir) as client:
        if watch:
            from levada.cli.watching import watch_jobs

            watch_jobs(client, found, output, no_headers)
            return
        show_jobs(found(client), output, no_headers)


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
        nothing="There are no jobs here. Submit one with: levada submit -f FILE",
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


def _is_recent(job: Any) -> bool:
    import time

    from levada.cli.words import moment

    ended = moment(job["finished"])
    return ended is None or time.time() - ended < _RECENT_S


def _sorted(jobs: list[Any], field: str) -> list[Any]:
    name = field.lstrip("-").lower()
    name = {"age": "submitted", "prio": "priority", "state": "phase", "type": "gpu_type", "eta": "eta_s"}.get(
        name, name
    )
    if jobs and name not in jobs[0]:
        raise BadInput.one(f"--sort-by: jobs have no field {name!r}{did_you_mean(name, jobs[0])}")

    def key(job: Any) -> tuple[bool, Any]:
        value = job[name]
        return value is None, "" if value is None else str(value) if isinstance(value, dict | list) else value

    return sorted(jobs, key=key, reverse=field.startswith("-"))


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
