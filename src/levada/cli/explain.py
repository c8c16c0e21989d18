"""`levada explain` and `decisions`: why a job waits or has its size, and what policies said."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from levada.cli.connection import LONG_S, JobName, Server, State, connect
from levada.cli.lists import ListFormat, Output, show
from levada.cli.output import TextOrJson, columns, data, data_json, printable
from levada.cli.words import clock, counted, short

#: Reasons of jobs that no wait lets start.
_CANNOT_START = ("too-large", "unknown-type", "dependency-failed", "set-aside", "invalid")


def register(app: typer.Typer) -> None:
    """Adds the verb `explain` and the group `decisions`."""
    app.command("explain")(explain)
    group = typer.Typer(help="Look at what the policy decided.", rich_markup_mode=None)
    group.command("ls")(ls)
    group.command("show")(show_one)
    app.add_typer(group, name="decisions")


def explain(
    name: JobName,
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="How to print it.")] = TextOrJson.TEXT,
    server: Server = None,
    state: State = None,
) -> None:
    """Show why a job waits or has its size, and when it should start and end."""
    with connect(server, state, timeout_s=LONG_S) as client:
        told = client.explain(name)
    if output is TextOrJson.JSON:
        data_json(told)
    else:
        data(as_text(told))


def as_text(told: Any) -> str:
    """The explanation in sentences."""
    lines = [f"{told['job']} is {told['phase']}: {told['reason']['text']}"]
    if told.get("workers"):
        where = f" on {', '.join(told['nodes'])}" if told.get("nodes") else ""
        kind = f" of {told['gpu_type']}" if told.get("gpu_type") else ""
        lines.append(f"It is given {counted(told['workers'], 'worker')}{kind}{where}.")
    if told.get("position"):
        before = told.get("before") or []
        behind = f", behind {', '.join(before[-3:])}" if before else ""
        lines.append(f"It is number {told['position']} in the line{behind}.")
    if told.get("stage"):
        lines.append(f"A change of it is {told['stage']}.")
    lines += [f"It would help: {text}" for text in told.get("would_help") or ()]
    for key, word in (("starts_in_s", "start"), ("ends_in_s", "end")):
        if told.get(key):
            lines.append(f"It should {word} in {short(told[key])}.")
    if "ends_in_s" in told and told["ends_in_s"] is None:
        lines += _why_no_end(told)
    return "\n".join(map(printable, lines))


def _why_no_end(told: Any) -> list[str]:
    """Why nothing is known of the end of a job; empty where its reason says that it cannot start."""
    if told["reason"]["code"] in _CANNOT_START:
        return []
    if told["phase"] == "Suspended":
        return ["End unknown: it is suspended."]
    return ["End unknown: needs declared steps and reported progress, its own and of the jobs ahead."]


def ls(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="The last so many.")] = 20,
    output: Output = ListFormat.TABLE,
    server: Server = None,
    state: State = None,
) -> None:
    """List the last decisions."""
    with connect(server, state) as client:
        found = client.decisions(limit)

    def table(wide: bool) -> Any:
        header = ("REVISION", "TIME", "POLICY", "TOOK", "JOBS", "FAILED")
        return header, [
            (str(each["revision"]), clock(each["time"]), each["policy"], _took(each), str(len(each["jobs"])),
             each["failed"] or "-")
            for each in found
        ]  # fmt: skip

    show(found, output, table, key="revision", nothing="No decision has been made yet.")


def show_one(
    revision: Annotated[int, typer.Argument(metavar="REVISION", min=0, help="Its number.", show_default=False)],
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="How to print it.")] = TextOrJson.TEXT,
    server: Server = None,
    state: State = None,
) -> None:
    """Show one decision: what each job was given and why."""
    with connect(server, state) as client:
        told = client.decision(revision)
    if output is TextOrJson.JSON:
        data_json(told)
        return
    head = f"Decision {told['revision']} of {told['policy']} at {clock(told['time'])} took {_took(told)}."
    rows = [(each["job"], str(each["workers"]), each["gpu_type"] or "-", each["reason"]) for each in told["jobs"]]
    failed = [f"It was not carried out: {told['failed']}"] if told["failed"] else []
    data("\n".join([head, *failed, "", columns(("JOB", "WORKERS", "TYPE", "REASON"), rows)]))


def _took(decision: Any) -> str:
    took = decision.get("took_s")
    return "-" if took is None else f"{took * 1000:.1f} ms"
