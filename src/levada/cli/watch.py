"""`-w`: print jobs again when they change."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from levada.cli import job_table
from levada.cli.lists import ListFormat, data_as
from levada.cli.output import bold, data, line_width

if TYPE_CHECKING:
    from levada.sdk.client import Client

#: A change of these fields is printed at once; progress and other fields change all the time.
_CHANGE_FIELDS = (
    "phase",
    "gpus",
    "gpu_type",
    "nodes",
    "generation",
    "queue",
    "priority",
    "reason",
    "position",
    "min",
    "max",
)
#: Minimum time between two lines for progress alone.
_PROGRESS_S = 3.0


def watch_jobs(client: Client, selected: Callable[[Client], list[Any]], output: ListFormat, no_headers: bool) -> None:
    """Print all jobs, then each one that changes, until interrupted."""
    printed: dict[str, tuple[float, list[Any], Any]] = {}
    show = _Rows(output is ListFormat.WIDE, no_headers) if output in (ListFormat.TABLE, ListFormat.WIDE) else _lines
    while True:
        with client.watch(timeout_s=_PROGRESS_S) as events:
            while True:
                now, jobs = time.monotonic(), selected(client)
                changed = [job for job in jobs if _is_changed(job, printed.get(job["id"]), now)]
                printed |= {job["id"]: (now, _change_fields(job), job["progress"]) for job in changed}
                if changed or isinstance(show, _Rows):
                    show(changed, output)
                if next(events, None) is None:
                    break


def _is_changed(job: Any, printed: tuple[float, list[Any], Any] | None, now: float) -> bool:
    if printed is None or printed[1] != _change_fields(job):
        return True
    return now - printed[0] >= _PROGRESS_S and job["progress"] != printed[2]


def _change_fields(job: Any) -> list[Any]:
    return [job[name] for name in _CHANGE_FIELDS]


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
        names, rows = job_table.rows(jobs, self._wide)
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
