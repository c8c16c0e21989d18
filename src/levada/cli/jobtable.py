"""Jobs as rows: Levada's own table, and Voda's."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from levada.cli.words import ago, exact, number, short

Job = Mapping[str, Any]

GPUS = "GPUS(have/min-max)"
COLUMNS = ("ID", "NAME", "USER", "QUEUE", "PRIO", "STATE", GPUS, "TYPE", "PROGRESS", "ETA", "AGE", "REASON")
WIDE = ("KIND", "INDEX", "NODES", "GENERATION", "RESTARTS", "RESIZES", "MOVES", "WAITING", "RUNNING")
#: What is left out first where a terminal is narrow.
SPARE = ("NAME", "USER", "PRIO", "QUEUE", "TYPE", "ETA")
#: What Voda calls the phases of a job.
_VODA_STATUS = {"Pending": "Waiting", "Suspended": "Waiting", "Succeeded": "Completed", "Failed": "Failed"}
_VODA = "{:<60} {:<10} {:<10} {:<25} {:<10} {:<10} {:<10}"


def rows(jobs: Sequence[Job], wide: bool) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Header and rows of `levada ls`."""
    now = time.time()
    header = (*COLUMNS[:-1], *WIDE, COLUMNS[-1]) if wide else COLUMNS
    return header, [row(job, wide, now) for job in jobs]


def row(job: Job, wide: bool = False, now: float | None = None) -> Sequence[str]:
    """One job as a line of `levada ls`."""
    head = (
        job["id"],
        job["workload"],
        job["user"] or "-",
        job["queue"],
        str(job["priority"]),
        job["phase"],
        gpus(job),
        job["gpu_type"] or "-",
        progress(job),
        short(job["eta_s"]),
        ago(job["submitted"], now),
    )
    more = (
        job["kind"],
        "-" if job.get("array_index") is None else str(job["array_index"]),
        ",".join(job["nodes"]) or "-",
        str(job["generation"]),
        str(job["restarts"]),
        str(job["resizes"]),
        str(job["moves"]),
        short(job["waiting_s"]),
        short(job["running_s"]),
    )
    return (*head, *(more if wide else ()), why(job))


def gpus(job: Job) -> str:
    """`4/1-8`: the GPUs that it has, and the range that it may have."""
    each = job.get("gpus_per_worker", 1)
    least, most = number(job["min"] * each), number(job["max"] * each)
    return f"{number(job['gpus'])}/{least}" + ("" if least == most else f"-{most}")


def sizes(job: Job) -> str:
    """The workers that it may have: `1-8`, or `4` for a job of one size."""
    return f"{job['min']}-{job['max']}" if job["min"] != job["max"] else str(job["min"])


def why(job: Job) -> str:
    """The reason, and the place in the line where it waits in one."""
    text = (job.get("reason") or {}).get("text") or "-"
    return f"{text} (#{job['position']})" if job.get("position") else text


def progress(job: Job) -> str:
    """Per cent where the whole is known, else steps."""
    done = job.get("progress") or {}
    step, total = done.get("step"), done.get("total")
    if step is None:
        return "-"
    return f"{min(1.0, step / total):.0%}" if total else number(step)


def voda_table(jobs: Sequence[Job]) -> str:
    """Voda's table of jobs, to the blank and in its words, in the order of the rows' text."""
    header = _VODA.format("NAME", "STATUS", "WORKERS", "SCHEDULER", "WAITING", "RUNNING", "TOTAL")
    lines = [
        _VODA.format(
            job["id"],
            _VODA_STATUS.get(job["phase"], "Running"),
            number(job["gpus"]),
            job["gpu_type"] or "-",
            exact(job["waiting_s"]),
            exact(job["running_s"]),
            exact(round(job["waiting_s"]) + round(job["running_s"])),
        )
        for job in jobs
        # What was deleted is gone.
        if job["phase"] != "Cancelled"
    ]
    return "\n".join([header, *sorted(lines)])
