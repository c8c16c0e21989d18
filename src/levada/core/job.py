"""A job as submitted, without the command, which only the backend needs."""

from __future__ import annotations

from typing import Final

import msgspec

from levada.core.codes import Codes

#: Most workers, or parameter servers, of a job.
LARGEST_SIZE = 1_000_000
LARGEST_PRIORITY = 1_000_000_000


class Phase(Codes):
    """The phase of a job. The last three are final."""

    PENDING: Final = 0
    STARTING: Final = 1
    RUNNING: Final = 2
    RESIZING: Final = 3
    STOPPING: Final = 4
    SUSPENDED: Final = 5
    SUCCEEDED: Final = 6
    FAILED: Final = 7
    CANCELLED: Final = 8

    @classmethod
    def label(cls, number: int) -> str:
        """The name that users see."""
        return cls.name(number).capitalize()


class Preemptible(Codes):
    """Whether a running job may be resized, moved or stopped in favour of other jobs."""

    NEVER: Final = 0
    #: In place at any time; by restart only after a checkpoint, so that no work is lost.
    AUTO: Final = 1
    ALWAYS: Final = 2
    #: Like `ALWAYS`, even within the minimum run time, as set by the user.
    AT_ONCE: Final = 3


class ParameterServers(msgspec.Struct, frozen=True, kw_only=True):
    """A fixed group of processes without GPUs that store the model."""

    replicas: int
    cpu: int = 0
    memory: int = 0


class Tags(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs may share a GPU; only for jobs with fractions of a GPU."""

    affinity: str | None = None
    anti_affinity: str | None = None
    exclusion: str | None = None


NO_TAGS = Tags()


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A training job. Counts are workers."""

    id: str
    submitted: float
    min: int = 1
    max: int = 1
    #: The requested size, which policies without elasticity use.
    desired: int | None = None
    #: Sizes are `min` plus multiples of this.
    step: int = 1
    #: 1/1000ths of GPUs per worker: 0, a multiple of 1000, or a fraction of one GPU.
    milli: int = 1000
    #: MiB of GPU memory per worker; only for fractions of a GPU.
    gpu_memory: int = 0
    #: 1/1000ths of cores and MiB per worker.
    cpu: int = 0
    memory: int = 0
    #: Allowed GPU types, preferred first; empty means any.
    gpu_types: tuple[str, ...] = ()
    #: Only nodes that are open to this class may be used; empty = all nodes. The backend defines classes, e.g. one for
    #: each combination of node selector, tolerations and volume zones.
    node_class: str = ""
    servers: ParameterServers | None = None
    tags: Tags = NO_TAGS
    workload: str = ""
    user: str = ""
    queue: str = "default"
    #: The owner for limits per user; default: the user.
    entity: str = ""
    #: Higher is more important.
    priority: int = 0
    weight: float = 1.0
    #: Total work, if known.
    steps: float | None = None
    deadline: float | None = None
    time_limit_s: float | None = None
    retries: int = 0
    #: Ids of jobs that must succeed before this one starts.
    after: tuple[str, ...] = ()
    preemptible: int = Preemptible.ALWAYS
    #: The backend resizes it without a restart.
    resizes_in_place: bool = True

    @property
    def size(self) -> int:
        """The requested size, limited to the range."""
        desired = self.min if self.desired is None else self.desired
        return max(self.min, min(self.max, desired))


def faults_of(job: Job) -> list[tuple[str, str]]:
    """Errors in the fields of *job*, as (field, sentence)."""
    faults: list[tuple[str, str]] = []

    def check(ok: bool, field: str, text: str) -> None:
        if not ok:
            faults.append((field, text))

    check(job.id != "", "id", "must not be empty")
    check(job.min >= 1, "min", "must be at least 1")
    check(job.max >= job.min, "max", f"must be at least min ({job.min})")
    check(job.max <= LARGEST_SIZE, "max", f"must be at most {LARGEST_SIZE}")
    check(job.step >= 1, "step", "must be at least 1")
    if job.desired is not None:
        check(job.min <= job.desired <= job.max, "desired", f"must be between min ({job.min}) and max ({job.max})")
    whole_or_part = job.milli % 1000 == 0 or 0 < job.milli < 1000
    check(job.milli >= 0 and whole_or_part, "milli", "must be 0, a whole number of GPUs, or a fraction of one")
    for field in ("gpu_memory", "cpu", "memory", "retries"):
        check(getattr(job, field) >= 0, field, "must not be negative")
    for field in ("submitted", "weight"):
        check(abs(getattr(job, field)) < float("inf"), field, "must be a finite number")
    check(job.weight > 0, "weight", "must be above 0")
    if job.steps is not None:
        check(0 <= job.steps < float("inf"), "steps", "must be a finite number, 0 or more")
    if job.servers is not None:
        check(job.servers.replicas >= 0, "servers.replicas", "must not be negative")
        check(job.servers.cpu >= 0 and job.servers.memory >= 0, "servers", "cpu and memory must not be negative")
    return faults
