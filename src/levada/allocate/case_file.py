"""The case file of `levada allocate`, checked before a policy sees it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from levada.allocate.case_faults import faults_between
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
from levada.jobfile.model import at_least_min, between_min_and_max
from levada.jobfile.text import parse_documents, parse_json
from levada.jobfile.units import LARGEST


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


def _named_sizes(value: Any) -> Any:
    """Sizes as strings: YAML reads 2 as a number, JSON keys are always "2"."""
    if not isinstance(value, dict):
        return value
    return {str(size) if type(size) is int else size: gain for size, gain in value.items()}


class CaseJob(_Model):
    """One job. Counts are workers."""

    id: Text = Field(description="The job's name in the answer.")
    submitted: Finite = Field(
        default=0.0, description="Submission time, in seconds on the same clock as `now`; earlier jobs come first."
    )
    min: Positive = Field(default=1, description="The fewest workers; default: scale_factor.")
    max: Positive = Field(default=1, description="The most workers; default: the larger of min and desired.")
    desired: Positive | None = Field(
        default=None,
        description="Requested workers, for policies that do not choose sizes; default: scale_factor or min.",
    )
    step: Positive = Field(default=1, description="Sizes are min plus multiples of this.")
    gpus_per_worker: GpusPerWorker = Field(
        default=1, description="GPUs per worker: 0 (a CPU job), a whole number, or a fraction of one GPU."
    )
    gpu_memory: MemoryMib = Field(default=0, description="GPU memory per worker, in MiB or as a quantity such as 3Gi.")
    cpu: Cpu = Field(default=0, description="Cores per worker.")
    memory: MemoryMib = Field(default=0, description="Memory per worker, in MiB or as a quantity such as 8Gi.")
    gpu_types: GpuTypes = Field(default=[], description="Allowed types, preferred first; empty means any.")
    queue: Text = Field(default="default", description="The job's queue, one of queues.")
    priority: Annotated[int, Field(ge=-LARGEST, le=LARGEST)] = Field(
        default=0, description="Higher values come first; for the Tiresias family, the number of the queue (from 0)."
    )
    weight: Weight = Field(default=1.0, description="Relative share of the job under fair policies.")
    entity: Text | None = Field(default=None, description="The job's group, one of entities.")
    scale_factor: Positive = Field(
        default=1, description="Workers at which throughput was measured; share policies use this size."
    )
    running: Gpus | None = Field(
        default=None, description="Current workers by GPU type, of one type only. Absent: the job is pending."
    )
    first_started: Finite | None = Field(
        default=None,
        description="Time of the first start, in seconds on the same clock as `now`; null = never started.",
    )
    elapsed_s: NotNegative | None = Field(default=None, description="Seconds since submission; instead of submitted.")
    isolated_s: NotNegative | None = Field(
        default=None,
        description="Seconds that the work so far would take alone on 1/n of the cluster (finish-time fairness).",
    )
    remaining_s: NotNegative | None = Field(default=None, description="Remaining seconds on one GPU.")
    steps_left: NotNegative | None = Field(
        default=None, description="Remaining training steps; with throughput, instead of remaining_s."
    )
    deadline_s: Finite | None = Field(default=None, description="Seconds from now to the deadline.")
    speedup: Annotated[
        dict[str, Finite] | None, BeforeValidator(_named_sizes, json_schema_input_type=dict[str, float] | None)
    ] = Field(default=None, description="Speed relative to one worker, by number of workers.")
    throughput: dict[GpuType, NotNegative] | None = Field(
        default=None,
        description="Steps per second of the whole job at scale_factor, by GPU type; 0: the job cannot run there.",
    )

    _max = field_validator("max")(at_least_min)
    _desired = field_validator("desired")(between_min_and_max)

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
    """The job with defaults for the sizes that it does not give."""
    if not isinstance(value, dict):
        return value
    sizes = {name: value.get(name) for name in ("min", "max", "desired", "scale_factor")}
    known = {name: size for name, size in sizes.items() if isinstance(size, int) and size >= 1}
    scale = known.get("scale_factor")
    most = known.get("max")
    defaults: dict[str, int] = {}
    if scale is not None and "desired" not in value:
        defaults["desired"] = max(min(scale, most or scale), known.get("min", 1))
    if scale is not None and "min" not in value:
        defaults["min"] = min(known.get("desired", scale), most or scale, scale)
    if "max" not in value:
        known |= defaults
        defaults["max"] = max((known[name] for name in ("min", "desired") if name in known), default=1)
    return {**value, **defaults}


class CaseNode(_Model):
    """One node and its resources."""

    name: Text = Field(description="The node's name.")
    gpus: Gpus = Field(default={}, description="Its GPUs by type.")
    cpu: Cpu | None = Field(default=None, description="Its cores; null: unlimited.")
    memory: MemoryMib | None = Field(default=None, description="Its memory, in MiB or as a quantity; null: unlimited.")
    gpu_memory: MemoryMib | None = Field(
        default=None, description="Memory of each of its GPUs, in MiB or as a quantity."
    )
    labels: dict[Text, str] = Field(default={}, description="User-defined labels.")


class CaseCluster(_Model):
    """GPUs by type, or nodes; exactly one of the two."""

    gpus: Gpus | None = Field(default=None, description="GPUs by type, if only sizes matter.")
    nodes: list[CaseNode] | None = Field(default=None, description="The nodes, if placement matters.")
    prices: dict[GpuType, NotNegative] = Field(default={}, description="$ per GPU and hour; default: 1.")


class CasePair(_Model):
    """The throughput of two jobs on the same devices."""

    jobs: Annotated[list[Text], Field(min_length=2, max_length=2)] = Field(description="The ids of the two jobs.")
    throughput: dict[GpuType, Annotated[list[NotNegative], Field(min_length=2, max_length=2)]] = Field(
        description="Steps per second of each job, by GPU type."
    )


class CaseEntity(_Model):
    """A group of jobs in hierarchical policies."""

    weight: Weight = Field(default=1.0, description="Relative share of the entity.")
    policy: Literal["fairness", "fifo"] = Field(
        default="fairness", description="How its share is split among its jobs: fairly, or first come, first served."
    )


class CaseQueue(_Model):
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


class Case(_Model):
    """The input of one decision."""

    # Cases may contain notes, ids and expected answers for other programs.
    model_config = ConfigDict(extra="ignore", json_schema_extra={"additionalProperties": True})

    policy: Text | None = Field(
        default=None, description="The policy: a name from `levada policy ls`, or path/to/file.py:Class."
    )
    options: dict[str, Any] = Field(
        default={}, description="Options of the policy (see `levada policy describe`), and seed."
    )
    now: Finite = Field(default=0.0, description="The time of the decision in seconds, on any clock.")
    cluster: CaseCluster = Field(description="The cluster.")
    jobs: list[Annotated[CaseJob, BeforeValidator(_with_sizes, json_schema_input_type=CaseJob)]] = Field(
        description="The jobs, pending and running."
    )
    pairs: list[CasePair] = Field(
        default=[], description="Throughput of pairs of jobs on the same GPUs, for policies with space sharing."
    )
    entities: dict[Text, CaseEntity] = Field(
        default={}, description="Groups of jobs by name, for hierarchical policies."
    )
    queues: dict[Text, CaseQueue] = Field(
        default={}, description="Queues by name; without any, all jobs share the whole cluster."
    )
    state: Any = Field(default=None, description="The policy's state from an earlier answer.")


def parse(text: str) -> dict[str, Any]:
    """The mapping in a JSON (or YAML) text; raises BadInput."""
    if text.lstrip()[:1] in ("{", "["):
        value = parse_json(text)
    else:
        documents = parse_documents(text)
        if len(documents) != 1:
            raise BadInput.one(f"must contain one case, not {len(documents)} documents")
        value = documents[0]
    if not isinstance(value, dict):
        raise BadInput.one("a case must be a mapping")
    return value


def check(raw: dict[str, Any]) -> Case:
    """The case that *raw* describes; raises BadInput with all faults."""
    # With hundreds of other top-level keys, a misspelt field is unlikely.
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
    """The fault of a top-level key: only misspelt fields have one, notes do not."""
    text = "" if key in Case.model_fields else unknown_field(str(key), Case.model_fields)
    return text if "did you mean" in text else ""
