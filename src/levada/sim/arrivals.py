"""Jobs on their way: from a trace, or drawn for as long as somebody asks; told in batches, in the order of arrival."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from levada.core.batch import JobBatch
from levada.sim.traces.trace import Trace, TraceJob
from levada.tables.newcomers import Newcomers

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
        self._times: list[float] = []
        self._at = self._first = 0
        #: When the next job comes; nan: to be looked up.
        self._next = math.nan

    @staticmethod
    def of(trace: Trace) -> Arrivals:
        """The jobs of a trace."""
        return Arrivals(iter([trace]))

    def next_at(self) -> float:
        """When the next job comes; infinite when none does."""
        if self._next != self._next:
            if self._at >= len(self._times):
                self._read_on()
            self._next = self._times[self._at] if self._at < len(self._times) else math.inf
        return self._next

    def until(self, now: float) -> list[JobBatch]:
        """All that have come by *now* and were not told before."""
        told: list[JobBatch] = []
        while self.next_at() <= now:
            assert self._batch is not None
            stop = bisect_right(self._times, now, self._at)
            told.append(_cut(self._batch, self._at, stop))
            self.count += stop - self._at
            self._at, self._next = stop, math.nan
        return told

    def seen(self) -> Trace:
        """The jobs that have come."""
        return joined(self.drawn).take(slice(0, self.count))

    def _read_on(self) -> None:
        """Takes the chunk that holds the next job, if there is one."""
        while self._at >= len(self._times):
            chunk = next(self._chunks, None) if self._chunks is not None else None
            if chunk is None:
                self._chunks = None
                return
            self._first += len(self._times)
            names = tuple(map(str, range(self._first, self._first + len(chunk))))
            jobs = chunk.jobs()
            self._batch, self._at = (
                msgspec.structs.replace(jobs, id=names, columns=Newcomers.of(jobs.columns, len(jobs))),
                0,
            )
            self._times = chunk.arrival_s.tolist()
            self.drawn.append(chunk)

    def go_on_with(self, chunks: Iterator[Trace]) -> None:
        """Takes what comes from *chunks*, which begin where they began at first: what was drawn is passed over."""
        self._chunks = islice(chunks, len(self.drawn), None)

    def __getstate__(self) -> dict[str, Any]:
        # Generators cannot be written down; who reads this back draws the same jobs again.
        return {**self.__dict__, "_chunks": None}


def _cut(batch: JobBatch, start: int, stop: int) -> JobBatch:
    """Some of the jobs that follow each other. Their columns are not copied: there is a batch for nearly every job."""

    return JobBatch(
        id=batch.id[start:stop],
        columns=Newcomers.of(batch.columns, len(batch)).cut(start, stop),
        gpu_types=batch.gpu_types[start:stop] if len(batch.gpu_types) > 1 else batch.gpu_types,
        workload=batch.workload[start:stop] if len(batch.workload) > 1 else batch.workload,
        queue=batch.queue[start:stop] if len(batch.queue) > 1 else batch.queue,
        entity=batch.entity[start:stop] if len(batch.entity) > 1 else batch.entity,
    )


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
