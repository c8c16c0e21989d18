"""A job as its user wrote it: what to run is the backend's affair; here is its shape and what it is worth."""

from __future__ import annotations

from typing import Final

import msgspec

from levada.core.codes import Codes

#: Workers, or parameter servers, that one job may have.
LARGEST_SIZE = 1_000_000
LARGEST_PRIORITY = 1_000_000_000


class Phase(Codes):
    """Where a job stands. The last three are final."""

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
        """The word that users see."""
        return cls.name(number).capitalize()


class Preemptible(Codes):
    """Whether a running job may be resized, moved or stopped for others."""

    NEVER: Final = 0
    #: In place at once; by restart only after a checkpoint, so that no work is lost silently.
    AUTO: Final = 1
    ALWAYS: Final = 2
    #: As `ALWAYS`, by its user's own word: not even left alone for having just started.
    AT_ONCE: Final = 3


class ParameterServers(msgspec.Struct, frozen=True, kw_only=True):
    """A fixed group of workers without GPUs that hold the model."""

    replicas: int
    cpu: int = 0
    memory: int = 0


class Tags(msgspec.Struct, frozen=True, kw_only=True):
    """Who may share a GPU with whom (only fractions of a GPU have them)."""

    affinity: str | None = None
    anti_affinity: str | None = None
    exclusion: str | None = None


NO_TAGS = Tags()


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One training job. Counts are workers."""

    id: str
    submitted: float
    min: int = 1
    max: int = 1
    #: What the user asked for; policies without elasticity that honour a request start with it.
    desired: int | None = None
    #: Sizes are `min` plus multiples of this.
    step: int = 1
    #: GPU per worker in 1/1000ths: 0, a multiple of 1000, or a part of one GPU.
    milli: int = 1000
    #: MiB of GPU memory per worker; counts only for parts of a GPU.
    gpu_memory: int = 0
    #: Cores per worker in 1/1000ths, and MiB.
    cpu: int = 0
    memory: int = 0
    #: Allowed GPU types, preferred first; empty means any.
    gpu_types: tuple[str, ...] = ()
    servers: ParameterServers | None = None
    tags: Tags = NO_TAGS
    workload: str = ""
    user: str = ""
    queue: str = "default"
    #: Whose job it is where resources are counted by owner: the user, unless said otherwise.
    entity: str = ""
    #: Higher is more important.
    priority: int = 0
    weight: float = 1.0
    #: Total work, if known.
    steps: float | None = None
    deadline: float | None = None
    time_limit_s: float | None = None
    retries: int = 0
    #: Jobs that must have succeeded before this one starts.
    after: tuple[str, ...] = ()
    preemptible: int = Preemptible.ALWAYS
    #: The backend changes its size without a restart of all workers.
    resizes_in_place: bool = True

    @property
    def size(self) -> int:
        """What the user asked for, inside the range."""
        asked = self.min if self.desired is None else self.desired
        return max(self.min, min(self.max, asked))


def faults_of(job: Job) -> list[tuple[str, str]]:
    """What is wrong with *job* by itself, as (field, sentence); empty when it may be accepted."""
    faults: list[tuple[str, str]] = []

    def demand(ok: bool, field: str, text: str) -> None:
        if not ok:
            faults.append((field, text))

    demand(job.id != "", "id", "must not be empty")
    demand(job.min >= 1, "min", "must be at least 1")
    demand(job.max >= job.min, "max", f"must be at least min ({job.min})")
    demand(job.max <= LARGEST_SIZE, "max", f"must be at most {LARGEST_SIZE}")
    demand(job.step >= 1, "step", "must be at least 1")
    if job.desired is not None:
        demand(job.min <= job.desired <= job.max, "desired", f"must be between min ({job.min}) and max ({job.max})")
    whole_or_part = job.milli % 1000 == 0 or 0 < job.milli < 1000
    demand(job.milli >= 0 and whole_or_part, "milli", "must be 0, a whole number of GPUs, or a part of one")
    for field in ("gpu_memory", "cpu", "memory", "retries"):
        demand(getattr(job, field) >= 0, field, "must not be negative")
    for field in ("submitted", "weight"):
        demand(abs(getattr(job, field)) < float("inf"), field, "must be a finite number")
    demand(job.weight > 0, "weight", "must be above 0")
    if job.steps is not None:
        demand(0 <= job.steps < float("inf"), "steps", "must be a finite number, 0 or more")
    if job.servers is not None:
        demand(job.servers.replicas >= 0, "servers.replicas", "must not be negative")
        demand(job.servers.cpu >= 0 and job.servers.memory >= 0, "servers", "cpu and memory must not be negative")
    return faults
