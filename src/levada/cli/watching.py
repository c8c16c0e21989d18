"""`-w`: what is listed is printed again when it changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from levada.cli import jobtable
from levada.cli.lists import ListFormat, data_as
from levada.cli.output import columns, data

if TYPE_CHECKING:
    from levada.sdk.client import Client

#: What is compared: the rest changes all the time.
_TELLING = ("phase", "gpus", "gpu_type", "nodes", "generation", "queue", "priority", "reason", "position", "min", "max")


def watch_jobs(client: Client, found: Callable[[Client], list[Any]], output: ListFormat, no_headers: bool) -> None:
    """Prints all jobs, then each one that changes, until interrupted."""
    seen: dict[str, Any] = {}
    first = True
    with client.watch() as events:
        while True:
            jobs = found(client)
            changed = [job for job in jobs if seen.get(job["id"]) != _telling(job)]
            seen = {job["id"]: _telling(job) for job in jobs}
            _show(changed, output, header=first and not no_headers)
            first = False
            next(events)


def _telling(job: Any) -> list[Any]:
    return [job[name] for name in _TELLING]


def _show(jobs: list[Any], output: ListFormat, header: bool) -> None:
    if output is ListFormat.NAME:
        for job in jobs:
            data(job["id"])
    elif output in (ListFormat.TABLE, ListFormat.WIDE):
        names, rows = jobtable.rows(jobs, output is ListFormat.WIDE)
        if jobs or header:
            lines = columns(names, rows).splitlines()
            data("\n".join(lines if header else lines[1:]))
    else:
        # A stream has no end, so that only lines can be read from it.
        for job in jobs:
            data_as(ListFormat.JSONL, job)
