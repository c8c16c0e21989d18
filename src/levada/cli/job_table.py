"""Tables of jobs: Levada's and Voda's."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from levada.cli.formatting import ago, exact, number, short

Job = Mapping[str, Any]
#: Jobs as columns: the values of all jobs by field, in the same order.
Columns = Mapping[str, Sequence[Any]]

GPUS = "GPUS(have/min-max)"
COLUMNS = ("ID", "NAME", "USER", "QUEUE", "PRIO", "STATE", GPUS, "TYPE", "PROGRESS", "ETA", "AGE", "REASON")
WIDE = ("KIND", "INDEX", "NODES", "GENERATION", "RESTARTS", "RESIZES", "MOVES", "WAITING", "RUNNING")
_FIELDS = (
    *("id", "workload", "user", "queue", "priority", "phase", "gpus", "min", "max", "gpus_per_worker", "gpu_type"),
    *("progress.step", "progress.total", "eta_s", "submitted", "reason.text", "position"),
)
_WIDE_FIELDS = (
    *("kind", "array_index", "nodes", "generation", "restarts", "resizes", "moves", "waiting_s", "running_s"),
)
#: Columns that are dropped first on a narrow terminal.
SPARE = ("NAME", "USER", "PRIO", "QUEUE", "TYPE", "ETA")
#: Voda's names of the phases.
_VODA_STATUS = {"Pending": "Waiting", "Suspended": "Waiting", "Succeeded": "Completed", "Failed": "Failed"}
_VODA = "{:<60} {:<10} {:<10} {:<25} {:<10} {:<10} {:<10}"


def fields(wide: bool) -> tuple[str, ...]:
    """Return the fields of the table, as named in the server's column format."""
    return (*_FIELDS, *_WIDE_FIELDS) if wide else _FIELDS


def columns_of(jobs: Sequence[Job], names: Iterable[str]) -> Columns:
    """Convert jobs to columns, like the server's column format."""
    return {name: [_part(job, name) for job in jobs] for name in names}


def _part(job: Job, name: str) -> Any:
    outer, _, inner = name.partition(".")
    value = job.get(outer)
    return value.get(inner) if inner and value is not None else value


def table(jobs: Columns, wide: bool) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Return header and columns of `levada ls`; column by column is fast for thousands of jobs."""
    now = time.time()
    texts: list[Sequence[str]] = [
        jobs["id"],
        jobs["workload"],
        [user or "-" for user in jobs["user"]],
        jobs["queue"],
        [str(priority) for priority in jobs["priority"]],
        jobs["phase"],
        list(map(_gpus, jobs["gpus"], jobs["min"], jobs["max"], jobs["gpus_per_worker"])),
        [gpu_type or "-" for gpu_type in jobs["gpu_type"]],
        list(map(_progress, jobs["progress.step"], jobs["progress.total"])),
        [short(seconds) for seconds in jobs["eta_s"]],
        [ago(submitted, now) for submitted in jobs["submitted"]],
    ]
    if wide:
        texts += [
            jobs["kind"],
            ["-" if index is None else str(index) for index in jobs["array_index"]],
            [",".join(nodes) or "-" for nodes in jobs["nodes"]],
            *([str(count) for count in jobs[name]] for name in ("generation", "restarts", "resizes", "moves")),
            *([short(seconds) for seconds in jobs[name]] for name in ("waiting_s", "running_s")),
        ]
    texts.append(list(map(_why, jobs["reason.text"], jobs["position"])))
    return (*COLUMNS[:-1], *WIDE, COLUMNS[-1]) if wide else COLUMNS, texts


def rows(jobs: Sequence[Job], wide: bool) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Return header and rows of `levada ls`."""
    header, texts = table(columns_of(jobs, fields(wide)), wide)
    return header, list(zip(*texts, strict=True))


@lru_cache(1024)
def _gpus(have: float, least: int, most: int, each: float | None) -> str:
    each = 1 if each is None else each
    from_, to = number(least * each), number(most * each)
    return f"{number(have)}/{from_}" + ("" if from_ == to else f"-{to}")


def _progress(step: float | None, total: float | None) -> str:
    if step is None:
        return "-"
    return f"{min(1.0, step / total):.0%}" if total else number(step)


def _why(text: str | None, position: int | None) -> str:
    return f"{text or '-'} (#{position})" if position else text or "-"


def sizes(job: Job) -> str:
    """Format the range of workers: `1-8`, or `4` for a rigid job."""
    return f"{job['min']}-{job['max']}" if job["min"] != job["max"] else str(job["min"])


def gpus(job: Job) -> str:
    """Format the GPUs of a job and their range: `4/1-8`."""
    return _gpus(job["gpus"], job["min"], job["max"], job.get("gpus_per_worker"))


def progress(job: Job) -> str:
    """Format the progress in per cent if the total is known, else in steps."""
    return _progress(_part(job, "progress.step"), _part(job, "progress.total"))


def why(job: Job) -> str:
    """Format the reason, with the position in the queue of a pending job."""
    return _why((job.get("reason") or {}).get("text"), job.get("position"))


def voda_table(jobs: Sequence[Job]) -> str:
    """Format jobs exactly like Voda, sorted by the text of the rows."""
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
        # Voda does not list deleted jobs.
        if job["phase"] != "Cancelled"
    ]
    return "\n".join([header, *sorted(lines)])
