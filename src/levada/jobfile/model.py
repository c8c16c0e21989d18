"""The job file: what `levada submit` takes and `levada schema job` prints."""

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
#: Who wants to tell more tells one that passes it on.
_MOST_ADDRESSES = 16
#: Characters of all labels: they are shown with every job, 10,000 times for a large array.
_MOST_LABELS = 4096
_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
#: All of them are in lists from the first moment; more of them come in several arrays.
_LARGEST_ARRAY = 10_000
_ARRAY = r"^[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*$"


class Model(BaseModel):
    """Strict, frozen, camelCase outside and snake_case inside; an unknown field is a fault."""

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
    """What a thing is called."""

    name: Name = Field(
        description="What it is called. Jobs of one name are one workload: what is learned about their speed is shared."
    )


class Workers(Model):
    """The elastic range of a job."""

    min: Size = Field(default=1, description="The fewest workers it can run with.")
    max: Size = Field(default=1, description="The most it can use; the larger of min and desired unless given.")
    desired: Size | None = Field(
        default=None, description="How many it would like; policies that do not resize give it this. Defaults to min."
    )
    step: Size = Field(default=1, description="Sizes are the multiples of this from min to max.")

    @field_validator("max")
    @classmethod
    def _max(cls, value: int, info: ValidationInfo) -> int:
        least = info.data.get("min", 1)
        if value < least:
            raise fault(f"must be at least min ({least})")
        return value

    @field_validator("desired")
    @classmethod
    def _desired(cls, value: int | None, info: ValidationInfo) -> int | None:
        least, most = info.data.get("min"), info.data.get("max")
        if value is not None and least is not None and most is not None and not least <= value <= most:
            raise fault(f"must be between min ({least}) and max ({most})")
        return value


def _workers(value: Any) -> Any:
    """A number is a rigid job; a range without max ends at the larger of min and desired."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"min": value, "max": value} if value >= 1 else {"min": value}
    if isinstance(value, dict) and "max" not in value:
        known = [v for v in (value.get("min"), value.get("desired")) if isinstance(v, int) and v >= 1]
        return {**value, "max": max(known, default=1)}
    return value


def _on_grid(workers: Workers) -> Workers:
    """With a step, all sizes are multiples of it: a minimum or wish between two of them is the next one."""
    step = workers.step
    least, most = next_multiple(workers.min, step), workers.max // step * step
    if least > most:
        raise fault(f"no multiple of step ({step}) is between min ({workers.min}) and max ({workers.max})")
    wish = workers.desired
    if wish is not None:
        wish = min(next_multiple(wish, step), most)
    return workers.model_copy(update={"min": least, "desired": wish})


def next_multiple(size: int, step: int) -> int:
    """The least multiple of *step* that is not below *size*."""
    return -(-size // step) * step


class Resources(Model):
    """What one worker takes beside GPUs."""

    cpu: Cpu = Field(default=0, description="Cores: 4, 0.5 or 500m.")
    memory: Memory = Field(default=0, description="E.g. 8Gi; a plain number is bytes.")


class ParameterServers(Resources):
    """A fixed group of workers without GPUs."""

    replicas: Size = Field(default=1, description="How many of them.")
    command: Command = Field(
        default=[], description="Program and arguments, where they run something else than the workers."
    )
    env: Environment = Field(
        default={}, description="Environment variables that they have beside those of the workers."
    )


class Checkpoint(Model):
    """How a job leaves."""

    grace_period: Duration = Field(
        default=60.0, description="How long a worker may take to save and leave: from SIGTERM to SIGKILL. E.g. 60s."
    )


class Run(Model):
    """The process of every worker."""

    command: Annotated[Command, Field(min_length=1)] = Field(
        description="Program and arguments; one such process is started per worker."
    )
    env: Environment = Field(default={}, description="Environment variables of each worker.")
    workdir: Text = Field(
        default=".",
        description="The folder in which workers start. A relative one is below the folder of the job file; unless "
        "given it is the folder that the job is submitted from.",
    )
    framework: Literal["plain", "torchrun", "tensorflow", "horovod", "mpi"] | None = Field(
        default=None,
        description="Who brings the workers together: plain (one process per worker, with RANK and the like), torchrun "
        "(one agent per node runs the command; options of a torchrun in the command are merged), tensorflow "
        "(TF_CONFIG and parameter servers), horovod (horovodrun runs the command, unless it calls that itself) or "
        "mpi (the command is run once, as the launcher). Unless given: tensorflow where there are parameterServers, "
        "torchrun where several workers run a command that calls torchrun, else plain; a lone worker then has no RANK.",
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
    # YAML reads times by itself.
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
        raise fault(f"{part} runs backwards")
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
    """The indices that an `array` names, in its order."""
    return list(itertools.chain(*_ranges(value)))


def _url(value: str) -> str:
    if not re.fullmatch(r"https?://[^\s/]+\S*", value):
        raise fault("must be an http or https address")
    return value


class JobSpec(Model):
    """What to run, in which range of sizes, and what it is worth."""

    workers: Annotated[
        Workers, BeforeValidator(_workers, json_schema_input_type=Size | Workers), AfterValidator(_on_grid)
    ] = Field(
        default=Workers(),
        description="How many workers it may have: a range in which it is resized, or one number for a rigid job.",
    )
    gpu_memory: Memory | None = Field(
        default=None, description="GPU memory per worker, e.g. 3Gi; required for a part of a GPU."
    )
    gpus_per_worker: GpusPerWorker = Field(
        default=1, description="0 (a CPU job), a whole number, or a part of one GPU in steps of 0.001 with gpuMemory."
    )
    gpu_types: GpuTypes = Field(default=[], description="Allowed types, preferred first; empty means any.")
    resources: Resources = Field(default=Resources(), description="What each worker takes beside GPUs.")
    parameter_servers: ParameterServers | None = Field(
        default=None, description="Processes without GPUs that hold the model for the workers; their number is fixed."
    )
    queue: Text = Field(default="default", description="The queue it waits in and whose share it uses.")
    priority: Annotated[int, Field(ge=-units.LARGEST, le=units.LARGEST)] = Field(
        default=0, description="Higher is more important."
    )
    weight: Weight = Field(
        default=1.0, description="Its share beside other jobs under fair policies: 2 gets twice as much as 1."
    )
    steps: Positive | None = Field(
        default=None,
        description="Total work in training steps, for policies that need to know how much is left, and for scripts "
        "written for Gavel, which end after them; or give epochs.",
    )
    epochs: Positive | None = Field(default=None, description="Total work in epochs; or give steps.")
    deadline: Deadline | None = Field(
        default=None,
        description="When it should have ended: a duration from submission, e.g. 2h, or a time with its zone.",
    )
    time_limit: Duration | None = Field(default=None, description="It is stopped after running for so long, e.g. 12h.")
    retries: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=0, description="How often it starts again after it failed."
    )
    ttl: Duration | None = Field(default=None, description="How long it is kept in lists after its end, e.g. 7d.")
    after: list[Text] = Field(default=[], description="Ids of jobs; it starts when all of them have succeeded.")
    array: Annotated[str, AfterValidator(_array), Field(json_schema_extra={"pattern": _ARRAY})] | None = Field(
        default=None, description="One job per index, e.g. 0-9; 10000 at most."
    )
    preemptible: Literal["auto", True, False] = Field(
        default="auto",
        description="Whether it may be resized, moved or stopped for others: "
        "auto means once no work would be lost by it, true at once, false never.",
    )
    checkpoint: Checkpoint = Field(default=Checkpoint(), description="How it saves its work before it leaves.")
    labels: Annotated[dict[Text, str], AfterValidator(_labels)] = Field(
        default={}, description="Names and values of your own, to find it by."
    )
    notify: Annotated[list[Annotated[str, AfterValidator(_url)]], Field(max_length=_MOST_ADDRESSES)] = Field(
        default=[], description="Addresses for a POST at its end and when it is stuck."
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
            raise fault("is a part of a GPU, which needs gpuMemory")
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
    metadata: Metadata = Field(description="What it is called.")
    spec: JobSpec = Field(description="The job itself: what runs, in which sizes, on which terms.")


#: Stands for all GPU types together where one number is given.
ALL_TYPES = "*"


def _by_type(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return {ALL_TYPES: value}
    if not isinstance(value, dict):
        raise fault("must be a whole number, or GPUs by type")
    return value


class QueueSpec(Model):
    """A queue's share of the cluster. Amounts are GPUs by type."""

    parent: Text | None = Field(default=None, description="The queue above it, whose share it is part of.")
    weight: Weight = Field(
        default=1.0, description="How much of what nobody claims is lent to it, beside other queues."
    )
    guaranteed: Gpus = Field(default={}, description="GPUs by type that its jobs get whenever they ask for them.")
    limit: Gpus = Field(
        default={},
        description="The most GPUs by type that its jobs may have together; a type that is not named has no limit.",
    )
    borrow: bool = Field(default=True, description="Whether it may use what others leave idle.")
    per_user_limit: Annotated[Gpus, BeforeValidator(_by_type, json_schema_input_type=Gpus | Count)] = Field(
        default={},
        description="The most GPUs that jobs of one user may have in it: by type, or a number for all types together.",
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
    metadata: Metadata = Field(description="What it is called.")
    spec: QueueSpec = Field(default=QueueSpec(), description="Its share of the cluster.")


#: The kinds of documents that are Levada's own.
KINDS: dict[str, type[Job] | type[Queue]] = {"Job": Job, "Queue": Queue}

__all__ = [
    "ALL_TYPES", "API_VERSION", "KINDS", "Count", "Job", "JobSpec", "Model", "Queue", "QueueSpec", "Workers",
    "array_indices",
]  # fmt: skip
