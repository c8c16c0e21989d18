"""`-w`: what is listed is printed again when it changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from levada.cli import jobtable
from levada.cli.lists import ListFormat, data_as
from levada.cli.output import bold, data, line_width

if TYPE_CHECKING:
    from levada.sdk.client import Client

#: What is told at once; progress and the rest change all the time.
_TELLING = ("phase", "gpus", "gpu_type", "nodes", "generation", "queue", "priority", "reason", "position", "min", "max")
#: How often progress is told.
_LOOK_S = 3.0


def watch_jobs(client: Client, found: Callable[[Client], list[Any]], output: ListFormat, no_headers: bool) -> None:
    """Prints all jobs, then each one that changes, until interrupted."""
    told: dict[str, tuple[float, list[Any], Any]] = {}
    show = _Rows(output is ListFormat.WIDE, no_headers) if output in (ListFormat.TABLE, ListFormat.WIDE) else _lines
    while True:
        with client.watch(timeout_s=_LOOK_S) as events:
            while True:
                now, jobs = time.monotonic(), found(client)
                changed = [job for job in jobs if _is_news(job, told.get(job["id"]), now)]
                told |= {job["id"]: (now, _telling(job), job["progress"]) for job in changed}
                if changed or isinstance(show, _Rows):
                    show(changed, output)
                if next(events, None) is None:
                    break


def _is_news(job: Any, told: tuple[float, list[Any], Any] | None, now: float) -> bool:
    if told is None or told[1] != _telling(job):
        return True
    return now - told[0] >= _LOOK_S and job["progress"] != told[2]


def _telling(job: Any) -> list[Any]:
    return [job[name] for name in _TELLING]


def _lines(jobs: list[Any], output: ListFormat) -> None:
    for job in jobs:
        if output is ListFormat.NAME:
            data(job["id"])
        else:
            # A stream has no end, so that only lines can be read from it.
            data_as(ListFormat.JSONL, job)


class _Rows:
    """Rows below one header: it is said again where a row needs wider columns."""

    def __init__(self, wide: bool, no_headers: bool) -> None:
        self._wide, self._headers = wide, not no_headers
        self._widths: list[int] = []

    def __call__(self, jobs: list[Any], _output: ListFormat) -> None:
        names, rows = jobtable.rows(jobs, self._wide)
        needed = [max(len(row[place]) for row in (names, *rows)) for place in range(len(names))]
        # Some room for what will be there later.
        needed = [max(width, _ROOM.get(name, 0)) for name, width in zip(names, needed, strict=True)]
        is_wider = any(new > old for new, old in zip(needed[:-1], self._widths[:-1], strict=False))
        if not self._widths or is_wider:
            self._widths = [max(pair) for pair in zip(needed, self._widths or needed, strict=True)]
            if self._headers:
                data(bold(self._line(names)))
        for row in rows:
            data(self._line(row))

    def _line(self, row: Sequence[str]) -> str:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, self._widths, strict=True)).rstrip()
        room = line_width()
        return line if room is None or len(line) <= room else f"{line[: room - 1]}…"


_ROOM = {"ID": 30, "STATE": 9, "TYPE": 5, "PROGRESS": 8, "ETA": 5, "AGE": 4}
