"""The models of job and queue files; `levada schema job` prints them."""

from __future__ import annotations

import contextlib
import itertools
import re
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.alias_generators import to_camel

from levada.jobfile import torchrun, units
from levada.jobfile.faults import fault
from levada.jobfile.fields import (
    Count,
    Cpu,
    Duration,
    DurationText,
    Gpus,
    GpusPerWorker,
    GpuTypes,
    Memory,
    Positive,
    Seconds,
    Size,
    Text,
    Weight,
)
from levada.jobfile.program import Command, Environment

API_VERSION = "levada.dev/v1"

#: A job's id is its name and `-20261115-153048-k3x9`; together they must fit the 63 characters of a DNS label.
_LONGEST_NAME = 42
#: The most addresses of `notify`; for more, notify a relay.
_MOST_ADDRESSES = 16
#: The most characters of all labels: every job lists them, 10,000 times for a large array.
_MOST_LABELS = 4096
_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
#: All jobs of an array are listed at once; larger ones must be split.
_LARGEST_ARRAY = 10_000
#: A range of workers in another notation.
_RANGE = re.compile(r"\s*([0-9]{1,9})\s*(?:[-:,]|\.\.+)\s*([0-9]{1,9})\s*")
_NO_WORKERS = "must be a whole number, or a range, e.g. {min: 1, max: 8}"
_ARRAY = r"^[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*$"


class Model(BaseModel):
    """Strict and frozen; camelCase in files; unknown fields are faults."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=False,
        validate_by_alias=True,
    )


def _name(value: str) -> str:
    if not re.fullmatch(_NAME, value):
        raise fault("must be lower-case letters, digits and dashes, and begin and end with a letter or digit")
    return value


Name = Annotated[
    str, Field(min_length=1, max_length=_LONGEST_NAME, json_schema_extra={"pattern": _NAME}), AfterValidator(_name)
]


class Metadata(Model):
    """The name of a document."""

    name: Name = Field(description="Name of the document. Jobs of one name are one workload and share learned speeds.")


def at_least_min(value: int, info: ValidationInfo) -> int:
    """Validate `max` of a model that has `min`."""
    least = info.data.get("min", 1)
    if value < least:
        raise fault(f"must be at least min ({least})")
    return value


def between_min_and_max(value: int | None, info: ValidationInfo) -> int | None:
    """Validate `desired` of a model that has `min` and `max`."""
    least, most = info.data.get("min"), info.data.get("max")
    if value is not None and least is not None and most is not None and not least <= value <= most:
        raise fault(f"must be between min ({least}) and max ({most})")
    return value


class Workers(Model):
    """The elastic range of a job."""

    min: Size = Field(default=1, description="The fewest workers.")
    max: Size = Field(default=1, description="The most workers; default: the larger of min and desired.")
    desired: Size | None = Field(
        default=None, description="Requested workers, for policies that do not resize; default: min."
    )
    step: Size = Field(default=1, description="Sizes are the multiples of this from min to max.")

    _max = field_validator("max")(at_least_min)
    _desired = field_validator("desired")(between_min_and_max)


def _workers(value: Any) -> Any:
    """A number means a fixed size; the default of max is that of min or desired."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"min": value, "max": value} if value >= 1 else {"min": value}
    if isinstance(value, dict) and "max" not in value:
        known = [v for v in (value.get("min"), value.get("desired")) if isinstance(v, int) and v >= 1]
        return {**value, "max": max(known, default=1)}
    if isinstance(value, str):
        ends = _RANGE.fullmatch(value)
        raise fault(
            f"{value.strip()} is not a range; write {{min: {ends[1]}, max: {ends[2]}}}" if ends else _NO_WORKERS
        )
    if not isinstance(value, dict | Workers):
        raise fault(_NO_WORKERS)
    return value


def _on_grid(workers: Workers) -> Workers:
    """Round min up and max down to multiples of step, and desired up to one."""
    step = workers.step
    least, most = next_multiple(workers.min, step), workers.max // step * step
    if least > most:
        raise fault(f"no multiple of step ({step}) is between min ({workers.min}) and max ({workers.max})")
    desired = workers.desired
    if desired is not None:
        desired = min(next_multiple(desired, step), most)
    return workers.model_copy(update={"min": least, "desired": desired})


def next_multiple(size: int, step: int) -> int:
    """The smallest multiple of *step* that is at least *size*."""
    return -(-size // step) * step


class Resources(Model):
    """Resources of one worker besides GPUs."""

    cpu: Cpu = Field(default=0, description="Cores: 4, 0.5 or 500m.")
    memory: Memory = Field(default=0, description="E.g. 8Gi; a plain number is bytes.")


class ParameterServers(Resources):
    """A fixed group of workers without GPUs."""

    replicas: Size = Field(default=1, description="Number of parameter servers.")
    command: Command = Field(default=[], description="Program and arguments; default: the command of the workers.")
    env: Environment = Field(default={}, description="Environment variables in addition to those of the workers.")


class Checkpoint(Model):
    """How a job saves its state before it stops."""

    grace_period: Duration = Field(
        default=60.0, description="Time from SIGTERM to SIGKILL, in which a worker saves its state, e.g. 60s."
    )


class Run(Model):
    """The process of every worker."""

    command: Annotated[Command, Field(min_length=1)] = Field(
        description="Program and arguments; each worker is one such process."
    )
    env: Environment = Field(default={}, description="Environment variables of each worker.")
    workdir: Text = Field(
        default=".",
        description="Working directory of the workers; relative paths start at the folder of the job file. Default: "
        "the folder of the submission.",
    )
    framework: Literal["plain", "torchrun", "tensorflow", "horovod", "mpi"] | None = Field(
        default=None,
        description="How the workers are started: plain (one process per worker, with RANK etc.), torchrun (one agent "
        "per node runs the command; options of a torchrun in the command are merged), tensorflow (TF_CONFIG and "
        "parameter servers), horovod (horovodrun runs the command, unless the command calls it) or mpi (the command "
        "runs once, as the launcher). Default: tensorflow with parameterServers, torchrun if several workers run a "
        "command that calls torchrun, else plain; a single worker then has no RANK.",
    )


class Kubernetes(Model):
    """The pods of the Kubernetes backend."""

    image: Text | None = Field(default=None, description="Container image of the workers.")
    template: dict[str, Any] | None = Field(
        default=None, description="A pod template for the workers, as in a Deployment."
    )


def _deadline(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 <= value <= units.LARGEST:
            raise fault(f"must be 0 to {units.LARGEST} seconds")
        return value
    if isinstance(value, str) and re.fullmatch(units.DURATION_PATTERN, value):
        return units.duration_s(value)
    # The value may already be a datetime.
    moment = value if isinstance(value, datetime) else None
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            moment = datetime.fromisoformat(value)
    if moment is None or moment.tzinfo is None:
        raise fault("must be a duration, e.g. 2h, or a time with its zone, e.g. 2026-11-15T18:00:00Z")
    return moment


Deadline = Annotated[
    Seconds | datetime,
    BeforeValidator(
        _deadline,
        json_schema_input_type=Seconds
        | DurationText
        | Annotated[str, Field(json_schema_extra={"format": "date-time"})],
    ),
]


def _labels(value: dict[str, str]) -> dict[str, str]:
    size = sum(len(name) + len(text) for name, text in value.items())
    if size > _MOST_LABELS:
        raise fault(f"must have at most {_MOST_LABELS:,} characters in all; these have {size:,}")
    return value


def _array(value: str) -> str:
    if not re.fullmatch(_ARRAY, value):
        raise fault("must be indices, e.g. 0-9 or 1,3,5-7")
    ranges = _ranges(value)
    if any(not indices for indices in ranges):
        part = next(part for part, indices in zip(value.split(","), ranges, strict=True) if not indices)
        raise fault(f"{part} is descending")
    if sum(map(len, ranges)) > _LARGEST_ARRAY:
        raise fault(f"must have at most {_LARGEST_ARRAY} indices; submit several arrays, e.g. 0-9999 and 10000-19999")
    seen: set[int] = set()
    for index in itertools.chain(*ranges):
        if index in seen:
            raise fault(f"{index} is given twice")
        seen.add(index)
    return value


def _ranges(value: str) -> list[range]:
    ends = [part.partition("-") for part in value.split(",")]
    return [range(int(first), int(last or first) + 1) for first, _, last in ends]


def array_indices(value: str) -> list[int]:
    """The indices of an `array`, in its order."""
    return list(itertools.chain(*_ranges(value)))


def _url(value: str) -> str:
    if not re.fullmatch(r"https?://[^\s/]+\S*", value):
        raise fault("must be an http or https address")
    return value


class JobSpec(Model):
    """The command, sizes, resources and scheduling attributes of a job."""

    workers: Annotated[
        Workers, BeforeValidator(_workers, json_schema_input_type=Size | Workers), AfterValidator(_on_grid)
    ] = Field(default=Workers(), description="The range of workers, or one number for a fixed size.")
    gpu_memory: Memory | None = Field(
        default=None, description="GPU memory per worker, e.g. 3Gi; required for a fraction of a GPU."
    )
    gpus_per_worker: GpusPerWorker = Field(
        default=1, description="0 (a CPU job), a whole number, or a fraction of a GPU in steps of 0.001 with gpuMemory."
    )
    gpu_types: GpuTypes = Field(default=[], description="Allowed types, preferred first; empty means any.")
    resources: Resources = Field(default=Resources(), description="Resources of each worker besides GPUs.")
    parameter_servers: ParameterServers | None = Field(
        default=None, description="Processes without GPUs that store the model; their number is fixed."
    )
    queue: Text = Field(default="default", description="The job's queue.")
    priority: Annotated[int, Field(ge=-units.LARGEST, le=units.LARGEST)] = Field(
        default=0, description="Jobs with higher values come first."
    )
    weight: Weight = Field(default=1.0, description="Relative share under fair policies: 2 gets twice as much as 1.")
    steps: Positive | None = Field(
        default=None,
        description="Total training steps, for policies that use the remaining work, and for Gavel scripts, "
        "which end after them; or give epochs.",
    )
    epochs: Positive | None = Field(default=None, description="Total epochs; or give steps.")
    deadline: Deadline | None = Field(
        default=None, description="Deadline: a duration from submission, e.g. 2h, or a time with its zone."
    )
    time_limit: Duration | None = Field(default=None, description="Stop the job after this running time, e.g. 12h.")
    retries: Annotated[int, Field(ge=0, le=1000)] = Field(default=0, description="The most restarts after a failure.")
    ttl: Duration | None = Field(default=None, description="How long the ended job stays in lists, e.g. 7d.")
    after: list[Text] = Field(default=[], description="Ids of jobs that must succeed before this job starts.")
    array: Annotated[str, AfterValidator(_array), Field(json_schema_extra={"pattern": _ARRAY})] | None = Field(
        default=None, description="One job per index, e.g. 0-9; at most 10000."
    )
    preemptible: Literal["auto", True, False] = Field(
        default="auto",
        description="Whether the job may be resized, moved or stopped for others: "
        "auto: when it has saved its work; true: at any time; false: never.",
    )
    checkpoint: Checkpoint = Field(default=Checkpoint(), description="How the job saves its state before it stops.")
    labels: Annotated[dict[Text, str], AfterValidator(_labels)] = Field(
        default={}, description="User-defined labels for selection."
    )
    notify: Annotated[list[Annotated[str, AfterValidator(_url)]], Field(max_length=_MOST_ADDRESSES)] = Field(
        default=[], description="Addresses that get a POST when the job ends or is stuck."
    )
    kubernetes: Kubernetes | None = Field(
        default=None, description="The pods of its workers, for the Kubernetes backend."
    )
    run: Run | None = Field(
        default=None,
        validate_default=True,
        description="The process of its workers; required unless kubernetes is given.",
    )

    @field_validator("gpus_per_worker")
    @classmethod
    def _part_needs_memory(cls, value: float, info: ValidationInfo) -> float:
        # A faulty `gpuMemory` is not in the data: it has its own fault.
        if 0 < value < 1 and info.data.get("gpu_memory", 0) is None:
            raise fault("a fraction of a GPU requires gpuMemory")
        return value

    @field_validator("epochs")
    @classmethod
    def _steps_or_epochs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("steps") is not None:
            raise fault("give steps or epochs, not both")
        return value

    @field_validator("run")
    @classmethod
    def _runs_something(cls, value: Run | None, info: ValidationInfo) -> Run | None:
        # A faulty `kubernetes` is not in the data: it has its own fault.
        if value is None and info.data.get("kubernetes", True) is None:
            raise fault("is required (or kubernetes)")
        workers = info.data.get("workers")
        if value is not None and workers is not None:
            gpus = info.data.get("gpus_per_worker", 1)
            if why := torchrun.fault_of(value.command, value.framework, workers.min, workers.max, gpus):
                raise fault(why)
        return value


class Job(Model):
    """One training job."""

    api_version: Literal["levada.dev/v1"] = Field(description="The version of this format.")
    kind: Literal["Job"] = Field(description="What this document describes.")
    metadata: Metadata = Field(description="The name of the job.")
    spec: JobSpec = Field(description="Command, sizes, resources and scheduling attributes.")


#: The key of a limit on all GPU types together.
ALL_TYPES = "*"


def _by_type(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return {ALL_TYPES: value}
    if not isinstance(value, dict):
        raise fault("must be a whole number, or GPUs by type")
    return value


class QueueSpec(Model):
    """A queue's share of the cluster. Amounts are GPUs by type."""

    parent: Text | None = Field(
        default=None, description="Parent queue; this queue's share is taken from the parent's."
    )
    weight: Weight = Field(default=1.0, description="Relative share of the capacity that no queue claims.")
    guaranteed: Gpus = Field(default={}, description="GPUs by type that its jobs get whenever they request them.")
    limit: Gpus = Field(
        default={}, description="The most GPUs by type of all its jobs together; types not listed are unlimited."
    )
    borrow: bool = Field(default=True, description="Whether it may use capacity that other queues leave idle.")
    per_user_limit: Annotated[Gpus, BeforeValidator(_by_type, json_schema_input_type=Gpus | Count)] = Field(
        default={}, description="The most GPUs of one user's jobs: by type, or a number for all types together."
    )

    @field_validator("limit")
    @classmethod
    def _limit(cls, value: dict[str, int], info: ValidationInfo) -> dict[str, int]:
        for gpu_type, guaranteed in info.data.get("guaranteed", {}).items():
            if value.get(gpu_type, guaranteed) < guaranteed:
                raise fault(f"{gpu_type} must be at least what is guaranteed ({guaranteed})")
        return value


class Queue(Model):
    """One queue."""

    api_version: Literal["levada.dev/v1"] = Field(description="The version of this format.")
    kind: Literal["Queue"] = Field(description="What this document describes.")
    metadata: Metadata = Field(description="The name of the queue.")
    spec: QueueSpec = Field(default=QueueSpec(), description="Its share of the cluster.")


#: The kinds of documents that are Levada's own.
KINDS: dict[str, type[Job] | type[Queue]] = {"Job": Job, "Queue": Queue}

__all__ = [
    "ALL_TYPES", "API_VERSION", "KINDS", "Count", "Job", "JobSpec", "Model", "Queue", "QueueSpec", "Workers",
    "array_indices",
]  # fmt: skip
