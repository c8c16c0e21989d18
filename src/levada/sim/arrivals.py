"""Arriving jobs, from a trace or generated, as batches in order of arrival."""

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
from levada.tables.new_jobs import NewJobs

#: Jobs that are generated at a time.
CHUNK = 256


class Arrivals:
    """Arriving jobs; a job's id is its position, from 0."""

    def __init__(self, chunks: Iterator[Trace]) -> None:
        self._chunks: Iterator[Trace] | None = chunks
        #: All chunks read so far, including jobs that have not arrived yet.
        self.drawn: list[Trace] = []
        #: Jobs that have arrived.
        self.count = 0
        self._batch: JobBatch | None = None
        self._times: list[float] = []
        self._at = self._first = 0
        #: Time of the next arrival; nan: not computed yet.
        self._next = math.nan

    @staticmethod
    def of(trace: Trace) -> Arrivals:
        """Arrivals of the jobs of a trace."""
        return Arrivals(iter([trace]))

    def next_at(self) -> float:
        """Time of the next arrival; infinite if there is none."""
        if self._next != self._next:
            if self._at >= len(self._times):
                self._read_chunk()
            self._next = self._times[self._at] if self._at < len(self._times) else math.inf
        return self._next

    def until(self, now: float) -> list[JobBatch]:
        """Return the jobs that arrived by *now* and were not returned before."""
        batches: list[JobBatch] = []
        while self.next_at() <= now:
            assert self._batch is not None
            stop = bisect_right(self._times, now, self._at)
            batches.append(_cut(self._batch, self._at, stop))
            self.count += stop - self._at
            self._at, self._next = stop, math.nan
        return batches

    def seen(self) -> Trace:
        """Return the jobs that have arrived."""
        return joined(self.drawn).take(slice(0, self.count))

    def _read_chunk(self) -> None:
        """Read the chunk that contains the next job, if there is one."""
        while self._at >= len(self._times):
            chunk = next(self._chunks, None) if self._chunks is not None else None
            if chunk is None:
                self._chunks = None
                return
            self._first += len(self._times)
            names = tuple(map(str, range(self._first, self._first + len(chunk))))
            jobs = chunk.jobs()
            self._batch, self._at = (
                msgspec.structs.replace(jobs, id=names, columns=NewJobs.of(jobs.columns, len(jobs))),
                0,
            )
            self._times = chunk.arrival_s.tolist()
            self.drawn.append(chunk)

    def resume(self, chunks: Iterator[Trace]) -> None:
        """Continue from *chunks*, which restart at the first job: chunks that were read before are skipped."""
        self._chunks = islice(chunks, len(self.drawn), None)

    def __getstate__(self) -> dict[str, Any]:
        # Generators cannot be saved; `resume` generates the same jobs again.
        return {**self.__dict__, "_chunks": None}


def _cut(batch: JobBatch, start: int, stop: int) -> JobBatch:
    """Return consecutive jobs of a batch. Columns are not copied, because nearly every job is a batch of its own."""
    return JobBatch(
        id=batch.id[start:stop],
        columns=NewJobs.of(batch.columns, len(batch)).cut(start, stop),
        gpu_types=batch.gpu_types[start:stop] if len(batch.gpu_types) > 1 else batch.gpu_types,
        workload=batch.workload[start:stop] if len(batch.workload) > 1 else batch.workload,
        queue=batch.queue[start:stop] if len(batch.queue) > 1 else batch.queue,
        entity=batch.entity[start:stop] if len(batch.entity) > 1 else batch.entity,
    )


def in_chunks(jobs: Iterator[TraceJob], change: Callable[[Trace], Trace] = lambda chunk: chunk) -> Iterator[Trace]:
    """Yield generated jobs as columns, CHUNK at a time."""
    while chunk := list(islice(jobs, CHUNK)):
        yield change(Trace.of_jobs(chunk))


def joined(traces: list[Trace]) -> Trace:
    """Concatenate traces, without their text columns."""
    names = [name for name in Trace.__struct_fields__ if name != "texts"]
    columns: dict[str, Any] = {}
    for name in names:
        parts = [getattr(trace, name) for trace in traces]
        is_array = bool(parts) and isinstance(parts[0], np.ndarray)
        columns[name] = np.concatenate(parts) if is_array else tuple(value for part in parts for value in part)
    return Trace.of(**columns)
