"""`levada top`: a live view of the cluster and its jobs."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli import job_table
from levada.cli.connection import Server, StateDir, connect
from levada.cli.formatting import number
from levada.cli.output import columns, data

if TYPE_CHECKING:
    from levada.sdk.client import Client

_BAR = 20
_FINISHED = ("Succeeded", "Failed", "Cancelled")


def register(app: typer.Typer) -> None:
    """Add the verb `top`."""
    app.command("top")(top)


def top(
    interval: Annotated[float, typer.Option("--interval", "-n", min=0.2, help="Seconds between two updates.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit (always without a terminal).")] = False,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Watch GPUs in use by type and queue, and the jobs.

    Ctrl-C exits.
    """
    with connect(server, state) as client:
        if once or not sys.stdout.isatty():
            data(page(observe(client)))
            return
        _watch(client, interval)


def observe(client: Client) -> dict[str, Any]:
    """Return nodes, queues, policy and unfinished jobs."""
    return {
        "nodes": client.nodes(),
        "queues": client.queues(),
        "policy": client.policy(),
        "jobs": [job for job in client.jobs() if job["phase"] not in _FINISHED],
    }


def page(state: dict[str, Any], most_jobs: int | None = None) -> str:
    """Format the state as text; jobs with most GPUs first."""
    by_type: dict[str, list[int]] = {}
    for node in state["nodes"]:
        for kind, count in node["gpus"].items():
            sums = by_type.setdefault(kind, [0, 0])
            sums[0] += count["used"]
            sums[1] += count["total"]
    jobs = sorted(state["jobs"], key=lambda job: (-job["gpus"], job["position"] or 0, job["submitted"], job["id"]))
    phases: dict[str, int] = {}
    for job in jobs:
        phases[job["phase"]] = phases.get(job["phase"], 0) + 1
    ready = sum(node["phase"] == "Ready" for node in state["nodes"])
    counts = ", ".join(f"{count} {phase.lower()}" for phase, count in phases.items()) or "none"
    lines = [
        f"Policy {state['policy']['name']}   nodes {ready}/{len(state['nodes'])} ready   jobs: {counts}",
        "",
        *(_bar(kind, used, total) for kind, (used, total) in sorted(by_type.items())),
        "",
        columns(
            ("QUEUE", "RUNNING", "WAITING", "USED"),
            [
                (queue["name"], str(queue["running"]), str(queue["waiting"]), _used(queue["used"]))
                for queue in state["queues"]
            ],
        ),
    ]
    listed = jobs[:most_jobs] if most_jobs is not None else jobs
    if listed:
        header, rows = job_table.rows(listed, False)
        lines += ["", columns(header, rows, spare=job_table.SPARE)]
    if len(listed) < len(jobs):
        lines.append(f"and {len(jobs) - len(listed)} more")
    return "\n".join(lines)


def _bar(kind: str, used: int, total: int) -> str:
    full = round(_BAR * used / total) if total else 0
    return f"{kind:<12} [{'#' * full}{'.' * (_BAR - full)}] {used}/{total}"


def _used(used: dict[str, float]) -> str:
    return ",".join(f"{kind}={number(amount)}" for kind, amount in used.items()) or "-"


def _watch(client: Client, interval: float) -> None:
    from rich.live import Live
    from rich.text import Text

    def screen() -> Text:
        text = Text.from_ansi(page(observe(client), most_jobs=max(1, live.console.height - 14)))
        text.no_wrap = True
        return text

    with Live(screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(), refresh=True)
            time.sleep(interval)
