"""A trace: the jobs of a simulation as columns, in the order of their arrival."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, nan
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from levada.core.batch import JobBatch
from levada.core.job import LARGEST_SIZE
from levada.core.types import Bools, Floats, Ints

#: Steps per second of a workload with so many GPUs, on the GPU that durations are meant for (Gavel's is the v100).
Rate: TypeAlias = Callable[[str, int], float]

#: Text that some formats have: what a job was called, whose it is, where it queued, and how Gavel would start it.
TEXTS = (
    "name", "user", "queue", "command", "working_directory", "steps_argument", "needs_data_dir", "mode", "batch_size",
)  # fmt: skip


class TraceJob(NamedTuple):
    """One job, as a generator makes it; see `Trace` for what the fields mean."""

    arrival_s: float
    workload: str
    scale: int
    steps: float
    duration_s: float
    weight: float = 1.0
    slo: float = nan


class Trace(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Jobs by arrival; a job is named by its place, from "0" on. In columns of numbers `nan` means unknown or none."""

    #: Seconds from the start of the trace, never decreasing.
    arrival_s: Floats
    #: What is trained, e.g. `ResNet-50 (batch size 64)`; the key of a throughput table. Empty where nobody knows.
    workload: tuple[str, ...]
    #: GPUs that its user asked for, one for each worker.
    scale: Ints
    #: The whole work.
    steps: Floats
    #: Seconds on the GPU that the trace was made for, at `scale`.
    duration_s: Floats
    #: Share for fair policies.
    weight: Floats
    #: A deadline as a multiple of the duration, counted from arrival.
    slo: Floats
    #: A deadline in seconds from the start of the trace; it comes before `slo`.
    deadline_s: Floats
    #: The elastic range; both are `scale` for a rigid job.
    min_workers: Ints
    max_workers: Ints
    #: Allowed GPU types, preferred first; empty means any.
    gpu_types: tuple[tuple[str, ...], ...]
    #: Columns of text, by name: those of `TEXTS` and others that a file of ours had. A job without one has "".
    texts: Mapping[str, tuple[str, ...]]

    @staticmethod
    def of(
        *,
        arrival_s: ArrayLike,
        workload: Sequence[str] | None = None,
        scale: ArrayLike = 1,
        steps: ArrayLike = nan,
        duration_s: ArrayLike = nan,
        weight: ArrayLike = 1.0,
        slo: ArrayLike = nan,
        deadline_s: ArrayLike = nan,
        min_workers: ArrayLike | None = None,
        max_workers: ArrayLike | None = None,
        gpu_types: Sequence[tuple[str, ...]] | None = None,
        texts: Mapping[str, Sequence[str]] = {},
    ) -> Trace:
        """A trace of these columns; one number stands for all jobs, and what is absent has its default."""
        arrivals = np.array(arrival_s, np.float64)
        count = len(arrivals)

        def floats(column: ArrayLike) -> Floats:
            return np.array(np.broadcast_to(np.asarray(column, np.float64), count))

        def ints(column: ArrayLike) -> Ints:
            return np.array(np.broadcast_to(np.asarray(column, np.int64), count))

        sizes = ints(scale)
        return Trace(
            arrival_s=arrivals,
            workload=tuple(workload) if workload is not None else ("",) * count,
            scale=sizes,
            steps=floats(steps),
            duration_s=floats(duration_s),
            weight=floats(weight),
            slo=floats(slo),
            deadline_s=floats(deadline_s),
            min_workers=sizes if min_workers is None else ints(min_workers),
            max_workers=sizes if max_workers is None else ints(max_workers),
            gpu_types=tuple(gpu_types) if gpu_types is not None else ((),) * count,
            texts={name: tuple(column) for name, column in texts.items() if any(column)},
        )

    @staticmethod
    def of_jobs(jobs: Iterable[TraceJob]) -> Trace:
        """The columns of *jobs*."""
        rows = list(jobs)
        columns = zip(*rows, strict=True) if rows else [()] * len(TraceJob._fields)
        named: dict[str, Any] = dict(zip(TraceJob._fields, columns, strict=True))
        return Trace.of(**named)

    def __len__(self) -> int:
        return len(self.arrival_s)

    def __eq__(self, other: object) -> bool:
        """Whether every column is the same; unknown equals unknown."""
        if not isinstance(other, Trace):
            return NotImplemented
        return all(_same(getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)

    # Columns can change, so a trace is no key; mypy wants a method here.
    __hash__ = None  # type: ignore[assignment]

    @property
    def id(self) -> tuple[str, ...]:
        """The names of the jobs: their places."""
        return tuple(map(str, range(len(self))))

    def text(self, name: str) -> tuple[str, ...]:
        """A column of text; empty where the trace has none of that name."""
        return self.texts.get(name) or ("",) * len(self)

    def take(self, rows: Ints | Bools | slice) -> Trace:
        """The trace of these rows only; jobs are named anew."""
        places = np.arange(len(self))[rows].tolist()

        def pick(column: Any) -> Any:
            return column[rows] if isinstance(column, np.ndarray) else tuple(column[place] for place in places)

        columns = {name: pick(getattr(self, name)) for name in self.__struct_fields__ if name != "texts"}
        return Trace.of(texts={name: pick(column) for name, column in self.texts.items()}, **columns)

    def order(self) -> Ints:
        """The rows by arrival; jobs that arrive together stay in their order."""
        return np.argsort(self.arrival_s, kind="stable")

    def filled(self, rate: Rate) -> Trace:
        """The trace with steps computed from durations and durations from steps, where one is unknown."""
        rates = np.array([rate(*job) for job in zip(self.workload, self.scale.tolist(), strict=True)], np.float64)
        steps = np.where(np.isnan(self.steps), self.duration_s * rates, self.steps)
        with np.errstate(divide="ignore", invalid="ignore"):
            lasts = np.where(np.isnan(self.duration_s) & (rates > 0), self.steps / rates, self.duration_s)
        return msgspec.structs.replace(self, steps=steps, duration_s=lasts)

    def deadlines(self) -> Floats:
        """When each job should be done, in seconds from the start of the trace; `inf` where nobody said."""
        due = np.where(np.isnan(self.deadline_s), self.arrival_s + self.slo * self.duration_s, self.deadline_s)
        return np.where(np.isnan(due), inf, due)

    def jobs(self) -> JobBatch:
        """The jobs as the engine takes them: a worker has one GPU, and the user is the entity."""
        return JobBatch(
            id=self.id,
            columns={
                "submitted": self.arrival_s,
                "min": self.min_workers,
                "max": self.max_workers,
                "desired": self.scale,
                "steps": self.steps,
                "weight": self.weight,
                "deadline": self.deadlines(),
            },
            gpu_types=self.gpu_types if any(self.gpu_types) else ((),),
            workload=self.workload if any(self.workload) else ("",),
            queue=tuple(queue or "default" for queue in self.texts["queue"]) if "queue" in self.texts else ("default",),
            entity=self.texts.get("user", ("",)),
        )


class BadCell(NamedTuple):
    """What is wrong with one value of a trace."""

    row: int
    column: str
    text: str


def check(trace: Trace, limit: int) -> list[BadCell]:
    """The first *limit* values in each column that no job can have."""
    arrival, scale = trace.arrival_s, trace.scale
    earlier = np.zeros(len(trace), bool)
    earlier[1:] = arrival[1:] < arrival[:-1]
    sizes = f"must be from 1 to {LARGEST_SIZE}"
    rules: list[tuple[str, Bools, str]] = [
        ("arrival_s", ~((arrival >= 0) & (arrival < inf)), "must be a number of seconds, 0 or more"),
        ("arrival_s", earlier, "must not be before the arrival of the job above"),
        ("scale", (scale < 1) | (scale > LARGEST_SIZE), sizes),
        ("steps", _outside(trace.steps, trace.steps > 0), "must be above 0"),
        ("duration_s", _outside(trace.duration_s, trace.duration_s >= 0), "must be 0 or more"),
        ("weight", ~((trace.weight > 0) & (trace.weight < inf)), "must be above 0"),
        ("slo", _outside(trace.slo, trace.slo > 0), "must be above 0"),
        ("deadline_s", _outside(trace.deadline_s, trace.deadline_s >= 0), "must be 0 or more"),
        ("min_workers", (trace.min_workers < 1) & (scale >= 1), "must be at least 1"),
        ("min_workers", (trace.min_workers > scale) & (scale >= 1), "must be at most the job's scale"),
        ("max_workers", trace.max_workers < scale, "must be at least the job's scale"),
        ("max_workers", trace.max_workers > LARGEST_SIZE, sizes),
    ]
    return [
        BadCell(row, column, text)
        for column, wrong, text in rules
        if wrong.any()
        for row in wrong.nonzero()[0][:limit].tolist()
    ]


def _outside(column: Floats, good: Bools) -> Bools:
    """Where a number is known and neither *good* nor finite."""
    return ~np.isnan(column) & ~(good & (column < inf))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))
    return bool(one == other)
