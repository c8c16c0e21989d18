"""The case of `levada allocate`: one decision's input as a file, checked before any policy sees it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from levada.cases.casefaults import faults_between
from levada.errors import BadInput, Fault
from levada.jobfile.faults import bad_input, fault, unknown_field
from levada.jobfile.fields import (
    Cpu,
    Finite,
    Gpus,
    GpusPerWorker,
    GpuType,
    GpuTypes,
    MemoryMib,
    NotNegative,
    Positive,
    Text,
    Weight,
)
from levada.jobfile.text import parse_documents, parse_json
from levada.jobfile.units import LARGEST


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


def _named_sizes(value: Any) -> Any:
    """Sizes as names: YAML reads 2 as a number where JSON can only write "2"."""
    if not isinstance(value, dict):
        return value
    return {str(size) if type(size) is int else size: gain for size, gain in value.items()}


class CaseJob(_Model):
    """One job. Counts are workers."""

    id: Text = Field(description="The job's name in the answer.")
    submitted: Finite = Field(
        default=0.0, description="When it came, in seconds on the clock of now; earlier is first in line."
    )
    min: Positive = Field(default=1, description="The fewest workers it can run with; scale_factor unless given.")
    max: Positive = Field(default=1, description="The most it can use; the larger of min and desired unless given.")
    desired: Positive | None = Field(
        default=None,
        description="How many it asked for, for policies that do not choose sizes; scale_factor or min unless given.",
    )
    step: Positive = Field(default=1, description="Sizes are min plus multiples of this.")
    gpus_per_worker: GpusPerWorker = Field(
        default=1, description="GPUs that one worker takes: 0 (a CPU job), a whole number, or a part of one GPU."
    )
    gpu_memory: MemoryMib = Field(default=0, description="GPU memory per worker, in MiB or as a quantity such as 3Gi.")
    cpu: Cpu = Field(default=0, description="Cores per worker.")
    memory: MemoryMib = Field(default=0, description="Memory per worker, in MiB or as a quantity such as 8Gi.")
    gpu_types: GpuTypes = Field(default=[], description="Allowed types, preferred first; empty means any.")
    queue: Text = Field(default="default", description="The queue it waits in, one of queues.")
    priority: Annotated[int, Field(ge=-LARGEST, le=LARGEST)] = Field(
        default=0, description="Higher is more important; for the Tiresias family the queue, 0 being the first."
    )
    weight: Weight = Field(default=1.0, description="Its share beside other jobs under fair policies.")
    entity: Text | None = Field(default=None, description="The group it belongs to, one of entities.")
    scale_factor: Positive = Field(
        default=1, description="The number of workers that throughput was measured with; share policies give so many."
    )
    running: Gpus | None = Field(
        default=None, description="What it has now: workers by GPU type, of one type. Absent: it waits."
    )
    first_started: Finite | None = Field(
        default=None, description="When it first ran, on the clock of now; null: never."
    )
    elapsed_s: NotNegative | None = Field(default=None, description="Seconds since it came; instead of submitted.")
    isolated_s: NotNegative | None = Field(
        default=None,
        description="Seconds it would have taken so far alone on its share of the cluster (finish-time fairness).",
    )
    remaining_s: NotNegative | None = Field(default=None, description="Seconds it still needs on one GPU.")
    steps_left: NotNegative | None = Field(
        default=None, description="Training steps it still has to do; with throughput, instead of remaining_s."
    )
    deadline_s: Finite | None = Field(default=None, description="Seconds from now until it should have ended.")
    speedup: Annotated[
        dict[str, Finite] | None, BeforeValidator(_named_sizes, json_schema_input_type=dict[str, float] | None)
    ] = Field(default=None, description="How many times as fast as with one worker it is, by number of workers.")
    throughput: dict[GpuType, NotNegative] | None = Field(
        default=None, description="Steps per second of the whole job at its scale_factor, by GPU type; 0: cannot run."
    )

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

    @field_validator("running")
    @classmethod
    def _running(cls, value: dict[str, int] | None) -> dict[str, int] | None:
        if value is not None and sum(1 for workers in value.values() if workers) > 1:
            raise fault("must be of one GPU type")
        return value

    @field_validator("speedup")
    @classmethod
    def _speedup(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for size in value or ():
            if not (size.isascii() and size.isdigit() and int(size) <= LARGEST):
                raise fault(f"{size!r} is not a number of workers")
        return value


def _with_sizes(value: Any) -> Any:
    """The job with the sizes it means where it does not name all of them."""
    if not isinstance(value, dict):
        return value
    sizes = {name: value.get(name) for name in ("min", "max", "desired", "scale_factor")}
    known = {name: size for name, size in sizes.items() if isinstance(size, int) and size >= 1}
    scale = known.get("scale_factor")
    most = known.get("max")
    meant: dict[str, int] = {}
    if scale is not None and "desired" not in value:
        meant["desired"] = max(min(scale, most or scale), known.get("min", 1))
    if scale is not None and "min" not in value:
        meant["min"] = min(known.get("desired", scale), most or scale, scale)
    if "max" not in value:
        given = known | meant
        meant["max"] = max((given[name] for name in ("min", "desired") if name in given), default=1)
    return {**value, **meant}


class CaseNode(_Model):
    """One node and what it offers."""

    name: Text = Field(description="The node's name.")
    gpus: Gpus = Field(default={}, description="Its GPUs by type.")
    cpu: Cpu | None = Field(default=None, description="Its cores; null: not counted.")
    memory: MemoryMib | None = Field(
        default=None, description="Its memory, in MiB or as a quantity; null: not counted."
    )
    gpu_memory: MemoryMib | None = Field(
        default=None, description="Memory of each of its GPUs, in MiB or as a quantity."
    )
    labels: dict[Text, str] = Field(default={}, description="Names and values of your own.")


class CaseCluster(_Model):
    """GPUs by type, or nodes; exactly one of them."""

    gpus: Gpus | None = Field(default=None, description="GPUs by type, where only sizes matter.")
    nodes: list[CaseNode] | None = Field(default=None, description="The nodes, where it matters what stands where.")
    prices: dict[GpuType, NotNegative] = Field(default={}, description="$ per GPU and hour; 1 where absent.")


class CasePair(_Model):
    """What two jobs reach together on the same devices."""

    jobs: Annotated[list[Text], Field(min_length=2, max_length=2)] = Field(description="The ids of the two.")
    throughput: dict[GpuType, Annotated[list[NotNegative], Field(min_length=2, max_length=2)]] = Field(
        description="Steps per second of each, by GPU type."
    )


class CaseEntity(_Model):
    """A group of jobs in hierarchical policies."""

    weight: Weight = Field(default=1.0, description="Its share beside other entities.")
    policy: Literal["fairness", "fifo"] = Field(
        default="fairness", description="How its share is split among its jobs: evenly, or first come, first served."
    )


class CaseQueue(_Model):
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


class Case(_Model):
    """The input of one decision."""

    # Cases carry notes, ids and expected answers for other programs.
    model_config = ConfigDict(extra="ignore", json_schema_extra={"additionalProperties": True})

    policy: Text | None = Field(
        default=None, description="Who decides: a name of `levada policy ls`, or path/to/file.py:Class."
    )
    options: dict[str, Any] = Field(
        default={}, description="Settings of the policy, as `levada policy describe` lists them, and seed."
    )
    now: Finite = Field(default=0.0, description="The time of the decision, in seconds on a clock of your own.")
    cluster: CaseCluster = Field(description="What there is to give.")
    jobs: list[Annotated[CaseJob, BeforeValidator(_with_sizes, json_schema_input_type=CaseJob)]] = Field(
        description="Who wants it."
    )
    pairs: list[CasePair] = Field(
        default=[], description="What pairs of jobs reach on the same GPUs, for policies that pack them."
    )
    entities: dict[Text, CaseEntity] = Field(
        default={}, description="Groups of jobs by name, for hierarchical policies."
    )
    queues: dict[Text, CaseQueue] = Field(
        default={}, description="Queues by name; without any, all jobs share the whole cluster."
    )
    state: Any = Field(default=None, description="A policy's state, as an earlier answer printed it.")


def parse(text: str) -> dict[str, Any]:
    """The mapping in a JSON (or YAML) text; raises BadInput."""
    if text.lstrip()[:1] in ("{", "["):
        value = parse_json(text)
    else:
        documents = parse_documents(text)
        if len(documents) != 1:
            raise BadInput.one("the file must hold one case")
        value = documents[0]
    if not isinstance(value, dict):
        raise BadInput.one("a case must be a mapping")
    return value


def check(raw: dict[str, Any]) -> Case:
    """The case that *raw* describes; raises BadInput with all faults."""
    # Whoever has hundreds of notes beside the case has not misspelt one of its fields.
    faults = [Fault(str(key), text) for key in list(raw)[:200] if (text := _misspelt(key))]
    case, more = None, 0
    try:
        case = Case.model_validate(raw)
    except ValidationError as error:
        bad = bad_input(error, Case)
        faults, more = faults + bad.faults, bad.more
    faults += faults_between(raw)
    if case is None or faults:
        raise BadInput(faults, more)
    return case


def _misspelt(key: Any) -> str:
    """What to say about *key* at the top of a case: strange keys are ignored, misspelt ones are not."""
    text = "" if key in Case.model_fields else unknown_field(str(key), Case.model_fields)
    return text if "did you mean" in text else ""
