"""Jobs on their way: from a trace, or drawn for as long as somebody asks; told in batches, in the order of arrival."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from levada.core.batch import JobBatch
from levada.sim.traces.trace import Trace, TraceJob

#: So many jobs are drawn at a time.
CHUNK = 256


class Arrivals:
    """Jobs that come. They are named by their place, from 0 on, unless they have names of their own."""

    def __init__(self, chunks: Iterator[Trace]) -> None:
        self._chunks: Iterator[Trace] | None = chunks
        #: What was drawn so far, whether it has come already or not.
        self.drawn: list[Trace] = []
        #: How many have come, and how many of the first chunks hold them all.
        self.count = 0
        self._batch: JobBatch | None = None
        self._at = self._first = 0

    @staticmethod
    def of(trace: Trace) -> Arrivals:
        """The jobs of a trace."""
        return Arrivals(iter([trace]))

    def next_at(self) -> float:
        """When the next job comes; infinite when none does."""
        batch = self._current()
        return math.inf if batch is None else float(batch.columns["submitted"][self._at])

    def until(self, now: float) -> list[JobBatch]:
        """All that have come by *now* and were not told before."""
        told: list[JobBatch] = []
        while (batch := self._current()) is not None:
            stop = int(np.searchsorted(batch.columns["submitted"], now, side="right"))
            if stop <= self._at:
                break
            told.append(batch.rows(list(range(self._at, stop))))
            self.count += stop - self._at
            self._at = stop
        return told

    def seen(self) -> Trace:
        """The jobs that have come."""
        return joined(self.drawn).take(slice(0, self.count))

    def _current(self) -> JobBatch | None:
        """The chunk that holds the next job."""
        while self._batch is None or self._at >= len(self._batch):
            chunk = next(self._chunks, None) if self._chunks is not None else None
            if chunk is None:
                return None
            self._first += len(self._batch) if self._batch is not None else 0
            names = tuple(map(str, range(self._first, self._first + len(chunk))))
            self._batch, self._at = msgspec.structs.replace(chunk.jobs(), id=names), 0
            self.drawn.append(chunk)
        return self._batch

    def go_on_with(self, chunks: Iterator[Trace]) -> None:
        """Takes what comes from *chunks*, which begin where they began at first: what was drawn is passed over."""
        self._chunks = islice(chunks, len(self.drawn), None)

    def __getstate__(self) -> dict[str, Any]:
        # Generators cannot be written down; who reads this back draws the same jobs again.
        return {**self.__dict__, "_chunks": None}


def in_chunks(jobs: Iterator[TraceJob], change: Callable[[Trace], Trace] = lambda chunk: chunk) -> Iterator[Trace]:
    """Drawn jobs as columns, some at a time."""
    while chunk := list(islice(jobs, CHUNK)):
        yield change(Trace.of_jobs(chunk))


def joined(traces: list[Trace]) -> Trace:
    """One trace after the other, without their texts."""
    names = [name for name in Trace.__struct_fields__ if name != "texts"]
    columns: dict[str, Any] = {}
    for name in names:
        parts = [getattr(trace, name) for trace in traces]
        numbers = bool(parts) and isinstance(parts[0], np.ndarray)
        columns[name] = np.concatenate(parts) if numbers else tuple(each for part in parts for each in part)
    return Trace.of(**columns)
