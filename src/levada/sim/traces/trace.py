"""Traces: the jobs of a simulation as columns, in the order of arrival."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, nan
from typing import Any, NamedTuple, Required, TypeAlias, TypedDict, Unpack

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from levada.core.batch import JobBatch
from levada.core.job import LARGEST_SIZE
from levada.core.types import Bools, Floats, Ints

#: Steps per second by workload and number of GPUs, on the GPU type that durations refer to (v100 for Gavel).
Rate: TypeAlias = Callable[[str, int], float]

#: Known text columns: name, owner and queue of a job, and how Gavel starts it.
TEXTS = (
    "name", "user", "queue", "command", "working_directory", "steps_argument", "needs_data_dir", "mode", "batch_size",
)  # fmt: skip


class TraceColumns(TypedDict, total=False):
    """Arguments of `Trace.of`."""

    arrival_s: Required[ArrayLike]
    workload: Sequence[str]
    scale: ArrayLike
    steps: ArrayLike
    duration_s: ArrayLike
    weight: ArrayLike
    slo: ArrayLike
    deadline_s: ArrayLike
    min_workers: ArrayLike
    max_workers: ArrayLike
    gpu_types: Sequence[tuple[str, ...]]
    texts: Mapping[str, Sequence[str]]


class TraceJob(NamedTuple):
    """One generated job; the fields are those of `Trace`."""

    arrival_s: float
    workload: str
    scale: int
    steps: float
    duration_s: float
    weight: float = 1.0
    slo: float = nan


class Trace(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Jobs by arrival; a job's id is its position, from "0". In columns of numbers nan means unknown or none."""

    #: Seconds from the start of the trace, never decreasing.
    arrival_s: Floats
    #: Key of the throughput table, e.g. `ResNet-50 (batch size 64)`; "" if unknown.
    workload: tuple[str, ...]
    #: Requested GPUs, one per worker.
    scale: Ints
    #: Total work.
    steps: Floats
    #: Seconds at `scale`, on the GPU type of the trace.
    duration_s: Floats
    #: Share for fair policies.
    weight: Floats
    #: Deadline as a multiple of the duration, from arrival.
    slo: Floats
    #: Deadline in seconds from the start of the trace; takes precedence over `slo`.
    deadline_s: Floats
    #: Elastic range; both are `scale` for a rigid job.
    min_workers: Ints
    max_workers: Ints
    #: Allowed GPU types, preferred first; empty: any.
    gpu_types: tuple[tuple[str, ...], ...]
    #: Text columns by name: those of `TEXTS`, and others of a Levada file; "" if a job has no value.
    texts: Mapping[str, tuple[str, ...]]

    @staticmethod
    def of(**columns: Unpack[TraceColumns]) -> Trace:
        """Create a trace; a single number applies to all jobs, and missing columns have their default."""
        arrivals = np.array(columns["arrival_s"], np.float64)
        count = len(arrivals)

        def floats(column: ArrayLike) -> Floats:
            return np.array(np.broadcast_to(np.asarray(column, np.float64), count))

        def ints(column: ArrayLike) -> Ints:
            return np.array(np.broadcast_to(np.asarray(column, np.int64), count))

        sizes = ints(columns.get("scale", 1))
        texts = columns.get("texts", {})
        return Trace(
            arrival_s=arrivals,
            workload=tuple(columns.get("workload", ("",) * count)),
            scale=sizes,
            steps=floats(columns.get("steps", nan)),
            duration_s=floats(columns.get("duration_s", nan)),
            weight=floats(columns.get("weight", 1.0)),
            slo=floats(columns.get("slo", nan)),
            deadline_s=floats(columns.get("deadline_s", nan)),
            min_workers=ints(columns.get("min_workers", sizes)),
            max_workers=ints(columns.get("max_workers", sizes)),
            gpu_types=tuple(columns.get("gpu_types", ((),) * count)),
            texts={name: tuple(column) for name, column in texts.items() if any(column)},
        )

    @staticmethod
    def of_jobs(jobs: Iterable[TraceJob]) -> Trace:
        """Return the columns of *jobs*."""
        rows = list(jobs)
        columns = zip(*rows, strict=True) if rows else [()] * len(TraceJob._fields)
        named: dict[str, Any] = dict(zip(TraceJob._fields, columns, strict=True))
        return Trace.of(**named)

    def __len__(self) -> int:
        return len(self.arrival_s)

    def __eq__(self, other: object) -> bool:
        """Return whether all columns are equal; unknown equals unknown."""
        if not isinstance(other, Trace):
            return NotImplemented
        return all(_same(getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)

    # Columns are mutable, so a trace cannot be a key; mypy expects a method.
    __hash__ = None  # type: ignore[assignment]

    @property
    def id(self) -> tuple[str, ...]:
        """Ids of the jobs: their positions."""
        return tuple(map(str, range(len(self))))

    def text(self, name: str) -> tuple[str, ...]:
        """Return a text column; empty texts if the trace does not have it."""
        return self.texts.get(name) or ("",) * len(self)

    def take(self, rows: Ints | Bools | slice) -> Trace:
        """Return the trace of these rows; jobs get new ids."""
        positions = np.arange(len(self))[rows].tolist()

        def pick(column: Any) -> Any:
            return column[rows] if isinstance(column, np.ndarray) else tuple(column[position] for position in positions)

        columns = {name: pick(getattr(self, name)) for name in self.__struct_fields__ if name != "texts"}
        return Trace.of(texts={name: pick(column) for name, column in self.texts.items()}, **columns)

    def order(self) -> Ints:
        """Return the rows by arrival; a stable sort."""
        return np.argsort(self.arrival_s, kind="stable")

    def filled(self, rate: Rate) -> Trace:
        """Compute unknown steps from durations, and unknown durations from steps."""
        rates = np.array([rate(*job) for job in zip(self.workload, self.scale.tolist(), strict=True)], np.float64)
        steps = np.where(np.isnan(self.steps), self.duration_s * rates, self.steps)
        with np.errstate(divide="ignore", invalid="ignore"):
            durations = np.where(np.isnan(self.duration_s) & (rates > 0), self.steps / rates, self.duration_s)
        return msgspec.structs.replace(self, steps=steps, duration_s=durations)

    def deadlines(self) -> Floats:
        """Return deadlines in seconds from the start of the trace; inf if there is none."""
        due = np.where(np.isnan(self.deadline_s), self.arrival_s + self.slo * self.duration_s, self.deadline_s)
        return np.where(np.isnan(due), inf, due)

    def jobs(self) -> JobBatch:
        """Return the jobs for the engine: one GPU per worker, the user is the entity."""
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
    """A fault of one value of a trace."""

    row: int
    column: str
    text: str


def check(trace: Trace, limit: int) -> list[BadCell]:
    """Return the first *limit* invalid values of each rule."""
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
    """Return where a number is known and either not *good* or infinite."""
    return ~np.isnan(column) & ~(good & (column < inf))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))
    return bool(one == other)
