"""The text output of `levada describe`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from levada.cli import job_table
from levada.cli.formatting import clock, counted, number, short
from levada.cli.output import columns, printable

#: Only this many of the last events are shown.
_MOST_EVENTS = 20
_COSTS = {
    "start": "A restart takes",
    "resize": "A resize pauses training for",
    "stop": "Checkpoint and stop take",
}


def job_page(job: Mapping[str, Any], events: Sequence[Mapping[str, Any]], curve: Mapping[str, Any]) -> str:
    """Format all details of a job."""
    progress = job["progress"] or {}
    rate = progress.get("rate")
    fields = [
        ("Id", job["id"]),
        ("Workload", job["workload"]),
        ("Kind", job["kind"]),
        *((("Array", f"index {job['array_index']}"),) if job.get("array_index") is not None else ()),
        ("User", job["user"] or "-"),
        ("Queue", job["queue"]),
        ("Priority", str(job["priority"])),
        ("State", job["phase"]),
        ("Reason", job_table.why(job)),
        ("GPUs", f"{number(job['gpus'])} {job['gpu_type'] or ''}".strip()),
        ("Workers", f"{len(job['workers'])} of {job_table.sizes(job)}{_each(job)}{_fixed(job)}"),
        ("Preempt", str(job.get("preemptible", "auto")).lower()),
        ("Command", job.get("command") or "-"),
        ("Folder", job.get("workdir") or "-"),
        ("Progress", _steps(progress)),
        ("Rate", "-" if rate is None else f"{rate:g} steps/s"),
        ("Ends in", short(job["eta_s"])),
        ("Submitted", clock(job["submitted"])),
        ("Started", clock(job["started"])),
        ("Finished", clock(job["finished"])),
        ("Waited", short(job["waiting_s"])),
        ("Ran", f"{short(job['running_s'])} ({job['gpu_seconds'] / 3600:.2f} GPU hours)"),
        ("Changes", ", ".join(counted(job[f"{change}s"], change) for change in ("restart", "resize", "move"))),
        ("Retries", f"{job.get('retried', 0)} of {job.get('retries', 0)} used"),
        ("Exit code", "-" if job["exit_code"] is None else str(job["exit_code"])),
        ("Labels", ", ".join(f"{key}={value}" for key, value in job["labels"].items()) or "-"),
    ]
    lines = [f"{name + ':':<11} {printable(text)}" for name, text in fields]
    if job["workers"]:
        rows = [
            (str(worker["index"]), worker["node"], ",".join(worker["devices"]) or "-", worker["phase"])
            for worker in job["workers"]
        ]
        lines += ["", columns(("WORKER", "NODE", "DEVICES", "STATE"), rows)]
    if curve["points"]:
        lines += ["", speeds(curve)]
    if curve["costs"]:
        lines.append("")
    for cost in curve["costs"]:
        times = "once" if cost["times"] == 1 else f"{cost['times']} times"
        lines.append(f"{_COSTS[cost['change']]} {cost['seconds']:.3g} s (measured {times}).")
    if events:
        lines += ["", event_table(events[-_MOST_EVENTS:])]
    return "\n".join(lines)


def _steps(progress: Mapping[str, Any]) -> str:
    """Format the steps so far, and the total if it is known."""
    step, total = progress.get("step"), progress.get("total")
    if total and step is None:
        return f"unknown, of {number(total)} steps; scripts report it with levada.runtime"
    if total:
        return f"{number(step)} of {number(total)} steps"
    return f"{number(step)} steps" if step is not None else "unknown; scripts report it with levada.runtime"


def _each(job: Mapping[str, Any]) -> str:
    """Format the GPUs of a worker; empty for one GPU."""
    gpus = job.get("gpus_per_worker", 1)
    return "" if gpus == 1 else f", {number(gpus)} GPUs each" if gpus else ", without a GPU"


def _fixed(job: Mapping[str, Any]) -> str:
    """Format the size that `levada scale` fixed, if any."""
    return f", fixed at {job['fixed']} by its user" if job.get("fixed") else ""


def speeds(curve: Mapping[str, Any]) -> str:
    """Format measured and fitted speed by GPU type and size; `*` marks the current size."""
    header = ("GPU", "WORKERS", "MEASURED", "FITTED", "MEASURED SPEED-UP", "FITTED SPEED-UP", "CONFIDENCE")
    rows = [
        (
            point["gpu_type"],
            f"{point['workers']}{'*' if _is_now(curve, point) else ''}",
            _rate(point["measured"], " steps/s"),
            _rate(point["fitted"], " steps/s"),
            _rate(point["measured_speedup"], "x"),
            _rate(point["speedup"], "x"),
            f"{point['confidence']:.0%}",
        )
        for point in curve["points"]
    ]
    return columns(header, rows)


def _is_now(curve: Mapping[str, Any], point: Mapping[str, Any]) -> bool:
    return bool(curve["now"] == {"gpu_type": point["gpu_type"], "workers": point["workers"]})


def _rate(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.4g}{unit}"


def event_table(events: Sequence[Mapping[str, Any]]) -> str:
    """Format events as a table."""
    return columns(("TIME", "TYPE", "WHAT"), [(clock(e["time"]), e["type"], e["text"]) for e in events], spare=())
