"""`levada top`: the cluster and its jobs, as they are now and as they change."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli import jobtable
from levada.cli.connection import Server, State, connect
from levada.cli.output import columns, data
from levada.cli.words import number

if TYPE_CHECKING:
    from levada.sdk.client import Client

_BAR = 20
_OVER = ("Succeeded", "Failed", "Cancelled")


def register(app: typer.Typer) -> None:
    """Adds the verb `top`."""
    app.command("top")(top)


def top(
    interval: Annotated[float, typer.Option("--interval", "-n", min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print it once and end, as without a terminal.")] = False,
    server: Server = None,
    state: State = None,
) -> None:
    """Watch the cluster: GPUs in use by type and queue, and the jobs. Ctrl-C ends it."""
    with connect(server, state) as client:
        if once or not sys.stdout.isatty():
            data(page(look(client)))
            return
        _stay(client, interval)


def look(client: Client) -> dict[str, Any]:
    """What there is to be seen now."""
    return {
        "nodes": client.nodes(),
        "queues": client.queues(),
        "policy": client.policy(),
        "jobs": [job for job in client.jobs() if job["phase"] not in _OVER],
    }


def page(seen: dict[str, Any], most_jobs: int | None = None) -> str:
    """All of it as text; of the jobs, those with GPUs first."""
    by_type: dict[str, list[int]] = {}
    for node in seen["nodes"]:
        for kind, of in node["gpus"].items():
            sums = by_type.setdefault(kind, [0, 0])
            sums[0] += of["used"]
            sums[1] += of["total"]
    jobs = sorted(seen["jobs"], key=lambda job: (-job["gpus"], job["position"] or 0, job["submitted"], job["id"]))
    phases: dict[str, int] = {}
    for job in jobs:
        phases[job["phase"]] = phases.get(job["phase"], 0) + 1
    ready = sum(node["phase"] == "Ready" for node in seen["nodes"])
    counts = ", ".join(f"{count} {phase.lower()}" for phase, count in phases.items()) or "none"
    lines = [
        f"Policy {seen['policy']['name']}   nodes {ready}/{len(seen['nodes'])} ready   jobs: {counts}",
        "",
        *(_bar(kind, used, total) for kind, (used, total) in sorted(by_type.items())),
        "",
        columns(
            ("QUEUE", "RUNNING", "WAITING", "USED"),
            [
                (queue["name"], str(queue["running"]), str(queue["waiting"]), _used(queue["used"]))
                for queue in seen["queues"]
            ],
        ),
    ]
    shown = jobs[:most_jobs] if most_jobs is not None else jobs
    if shown:
        header, rows = jobtable.rows(shown, False)
        lines += ["", columns(header, rows, spare=jobtable.SPARE)]
    if len(shown) < len(jobs):
        lines.append(f"and {len(jobs) - len(shown)} more")
    return "\n".join(lines)


def _bar(kind: str, used: int, total: int) -> str:
    full = round(_BAR * used / total) if total else 0
    return f"{kind:<12} [{'#' * full}{'.' * (_BAR - full)}] {used}/{total}"


def _used(used: dict[str, float]) -> str:
    return ",".join(f"{kind}={number(amount)}" for kind, amount in used.items()) or "-"


def _stay(client: Client, interval: float) -> None:
    from rich.live import Live
    from rich.text import Text

    def shown() -> Text:
        text = Text.from_ansi(page(look(client), most_jobs=max(1, live.console.height - 14)))
        text.no_wrap = True
        return text

    with Live(screen=True, auto_refresh=False) as live:
        while True:
            live.update(shown(), refresh=True)
            time.sleep(interval)
