"""One job as a page for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from levada.cli import jobtable
from levada.cli.output import columns
from levada.cli.words import clock, number, short

#: Of what happened, the last lines.
_MOST_EVENTS = 20


def job_page(job: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> str:
    """All that is known of a job."""
    done = job["progress"] or {}
    rate = done.get("rate")
    fields = [
        ("Id", job["id"]),
        ("Workload", job["workload"]),
        ("Kind", job["kind"]),
        ("User", job["user"] or "-"),
        ("Queue", job["queue"]),
        ("Priority", str(job["priority"])),
        ("State", job["phase"]),
        ("Reason", jobtable.why(job)),
        ("GPUs", f"{number(job['gpus'])} {job['gpu_type'] or ''}".strip()),
        ("Workers", f"{len(job['workers'])} of {jobtable.sizes(job)}"),
        ("Progress", f"{number(done.get('step'))} of {number(done.get('total'))} steps"),
        ("Rate", "-" if rate is None else f"{rate:g} steps/s"),
        ("Ends in", short(job["eta_s"])),
        ("Submitted", clock(job["submitted"])),
        ("Started", clock(job["started"])),
        ("Finished", clock(job["finished"])),
        ("Waited", short(job["waiting_s"])),
        ("Ran", f"{short(job['running_s'])} ({job['gpu_seconds'] / 3600:.2f} GPU hours)"),
        ("Changes", f"{job['restarts']} restarts, {job['resizes']} resizes, {job['moves']} moves"),
        ("Exit code", "-" if job["exit_code"] is None else str(job["exit_code"])),
        ("Labels", ", ".join(f"{key}={value}" for key, value in job["labels"].items()) or "-"),
    ]
    lines = [f"{name + ':':<11} {text}" for name, text in fields]
    if job["workers"]:
        rows = [
            (str(worker["index"]), worker["node"], ",".join(worker["devices"]) or "-", worker["phase"])
            for worker in job["workers"]
        ]
        lines += ["", columns(("WORKER", "NODE", "DEVICES", "STATE"), rows)]
    if events:
        lines += ["", event_table(events[-_MOST_EVENTS:])]
    return "\n".join(lines)


def event_table(events: Sequence[Mapping[str, Any]]) -> str:
    """Events as a table."""
    return columns(("TIME", "TYPE", "WHAT"), [(clock(e["time"]), e["type"], e["text"]) for e in events], spare=())
