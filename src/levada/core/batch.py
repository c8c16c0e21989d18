"""A batch of new jobs as columns, as in the event `JobsSubmitted`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from levada.core.job import Job

_PLAIN = ("submitted", "min", "max", "step", "milli", "gpu_memory", "cpu", "memory", "priority", "weight", "retries")


class JobBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs in the order of their submission. Text columns may have one entry for all jobs."""

    id: tuple[str, ...]
    #: By name of the column (see `JobColumns`); `submitted` is required, `desired` defaults to `min`.
    columns: Mapping[str, np.ndarray[Any, Any]]
    gpu_types: tuple[tuple[str, ...], ...] = ((),)
    workload: tuple[str, ...] = ("",)
    queue: tuple[str, ...] = ("default",)
    entity: tuple[str, ...] = ("",)
    node_class: tuple[str, ...] = ("",)
    #: (affinity, anti-affinity, exclusion) of jobs with tags, by row.
    tags: Mapping[int, tuple[str, str, str]] = {}
    #: Ids of dependencies, by row.
    after: Mapping[int, tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len(self.id)

    def rows(self, rows: Sequence[int]) -> JobBatch:
        """The batch with only these rows."""

        def pick(texts: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(texts[row] for row in rows) if len(texts) > 1 else texts

        new_row = {row: at for at, row in enumerate(rows)}
        return JobBatch(
            id=tuple(self.id[row] for row in rows),
            columns={name: column[rows] for name, column in self.columns.items()},
            gpu_types=tuple(self.gpu_types[row] for row in rows) if len(self.gpu_types) > 1 else self.gpu_types,
            workload=pick(self.workload),
            queue=pick(self.queue),
            entity=pick(self.entity),
            node_class=pick(self.node_class),
            tags={new_row[row]: tags for row, tags in self.tags.items() if row in new_row},
            after={new_row[row]: after for row, after in self.after.items() if row in new_row},
        )

    @staticmethod
    def of(jobs: Sequence[Job]) -> JobBatch:
        """*jobs* as columns."""
        columns: dict[str, np.ndarray[Any, Any]] = {
            name: np.array([getattr(job, name) for job in jobs]) for name in _PLAIN
        }
        columns["desired"] = np.array([job.size for job in jobs])
        columns["preemptible"] = np.array([int(job.preemptible) for job in jobs])
        columns["resizes_in_place"] = np.array([int(job.resizes_in_place) for job in jobs])
        columns["steps"] = np.array([math.nan if job.steps is None else job.steps for job in jobs])
        columns["deadline"] = np.array([math.inf if job.deadline is None else job.deadline for job in jobs])
        columns["time_limit"] = np.array([math.inf if job.time_limit_s is None else job.time_limit_s for job in jobs])
        columns["servers"] = np.array([0 if job.servers is None else job.servers.replicas for job in jobs])
        columns["server_cpu"] = np.array([0 if job.servers is None else job.servers.cpu for job in jobs])
        columns["server_memory"] = np.array([0 if job.servers is None else job.servers.memory for job in jobs])
        tags = {
            row: (job.tags.affinity or "", job.tags.anti_affinity or "", job.tags.exclusion or "")
            for row, job in enumerate(jobs)
            if job.tags.affinity or job.tags.anti_affinity or job.tags.exclusion
        }
        return JobBatch(
            id=tuple(job.id for job in jobs),
            columns=columns,
            gpu_types=tuple(job.gpu_types for job in jobs),
            workload=tuple(job.workload for job in jobs),
            queue=tuple(job.queue for job in jobs),
            entity=tuple(job.entity or job.user for job in jobs),
            node_class=tuple(job.node_class for job in jobs) if any(job.node_class for job in jobs) else ("",),
            tags=tags,
            after={row: job.after for row, job in enumerate(jobs) if job.after},
        )
