"""`levada explain` and `decisions`: reasons of jobs, and decisions of the policy."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from levada.cli.connection import LONG_S, JobName, Server, StateDir, connect
from levada.cli.formatting import clock, counted, short
from levada.cli.lists import ListFormat, Output, show
from levada.cli.output import TextOrJson, columns, data, data_json, printable

#: Reasons of jobs that can never start.
_CANNOT_START = ("too-large", "unknown-type", "dependency-failed", "set-aside", "invalid")


def register(app: typer.Typer) -> None:
    """Add the verb `explain` and the group `decisions`."""
    app.command("explain")(explain)
    group = typer.Typer(help="List and show the decisions of the policy.", rich_markup_mode=None)
    group.command("ls")(ls)
    group.command("show")(show_one)
    app.add_typer(group, name="decisions")


def explain(
    name: JobName,
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="Output format.")] = TextOrJson.TEXT,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Show why a job waits or has its size, and its forecast.

    The forecast is the time until its start and end.
    """
    with connect(server, state, timeout_s=LONG_S) as client:
        explanation = client.explain(name)
    if output is TextOrJson.JSON:
        data_json(explanation)
    else:
        data(as_text(explanation))


def as_text(job: Any) -> str:
    """Format the explanation of a job in sentences."""
    why = job["reason"]["text"]
    lines = [f"{job['job']} is {job['phase']}{f': {why}' if why else '.'}"]
    if job.get("workers"):
        where = f" on {', '.join(job['nodes'])}" if job.get("nodes") else ""
        kind = f" of {job['gpu_type']}" if job.get("gpu_type") else ""
        lines.append(f"Target: {counted(job['workers'], 'worker')}{kind}{where}.")
    if job.get("position"):
        before = job.get("before") or []
        behind = f", behind {', '.join(before[-3:])}" if before else ""
        lines.append(f"Position {job['position']} in the queue{behind}.")
    if job.get("stage"):
        lines.append(f"Operation in progress: {job['stage']}.")
    lines += [f"What would help: {text}" for text in job.get("would_help") or ()]
    for key, word in (("starts_in_s", "start"), ("ends_in_s", "end")):
        if job.get(key):
            lines.append(f"Expected {word}: in {short(job[key])}.")
    if "ends_in_s" in job and job["ends_in_s"] is None:
        lines += _why_no_end(job)
    return "\n".join(map(printable, lines))


def _why_no_end(job: Any) -> list[str]:
    """Explain why the end of a job is unknown; empty if it can never start."""
    if job["reason"]["code"] in _CANNOT_START:
        return []
    if job["phase"] == "Suspended":
        return ["End unknown: the job is suspended."]
    return ["End unknown: this job and the jobs ahead must declare their total steps and report progress."]


def ls(
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, help="List this many of the last decisions.")
    ] = 20,
    output: Output = ListFormat.TABLE,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """List the last decisions."""
    with connect(server, state) as client:
        decisions = client.decisions(limit)

    def table(wide: bool) -> Any:
        header = ("REVISION", "TIME", "POLICY", "TOOK", "JOBS", "FAILED")
        return header, [
            (str(row["revision"]), clock(row["time"]), row["policy"], _took(row), str(len(row["jobs"])),
             row["failed"] or "-")
            for row in decisions
        ]  # fmt: skip

    show(decisions, output, table, key="revision", nothing="No decision has been made yet.")


def show_one(
    revision: Annotated[
        int,
        typer.Argument(
            metavar="REVISION",
            min=0,
            help="Revision of the decision, as listed by `levada decisions ls`.",
            show_default=False,
        ),
    ],
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="Output format.")] = TextOrJson.TEXT,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Show one decision: workers and reason of each job."""
    with connect(server, state) as client:
        decision = client.decision(revision)
    if output is TextOrJson.JSON:
        data_json(decision)
        return
    head = (
        f"Decision {decision['revision']} of {decision['policy']} at {clock(decision['time'])} took {_took(decision)}."
    )
    rows = [(row["job"], str(row["workers"]), row["gpu_type"] or "-", row["reason"]) for row in decision["jobs"]]
    failed = [f"Not carried out: {decision['failed']}"] if decision["failed"] else []
    data("\n".join([head, *failed, "", columns(("JOB", "WORKERS", "TYPE", "REASON"), rows)]))


def _took(decision: Any) -> str:
    took_s = decision.get("took_s")
    return "-" if took_s is None else f"{took_s * 1000:.1f} ms"
