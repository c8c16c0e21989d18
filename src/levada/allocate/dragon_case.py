"""The case with DRAGON's pods and nodes, checked before it is used.

Units are those of the case: millicores, MiB, devices; `gpu_request` is a fraction of a device and `gpu_mem` is in
bytes, both as text. Unknown top-level keys are ignored as notes unless they look like a misspelt field; nested ones are
faults.
"""

from __future__ import annotations

import math
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from difflib import SequenceMatcher
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from levada.allocate.limits import MOST_GPUS
from levada.core.types import WHOLE
from levada.errors import BadInput, Fault
from levada.jobfile.faults import bad_input, unknown_field
from levada.jobfile.fields import Count, Finite, NotNegative, Text

_OVER = ("Succeeded", "Failed")
#: In 1/1000ths; larger decimals are invalid, and slow to compute with.
_MOST_MILLI = 10**9
#: GPU fractions that fit on all nodes together: each one is placed separately.
_MOST_PARTS = 500_000

#: Devices of a node or pod, and processes of a group: above any real number, small enough to iterate over.
Some = Annotated[int, Field(ge=0, le=4096)]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class NodeUse(_Model):
    """The resources of a pod."""

    cpu: Count | None = Field(default=None, description="Requested cores, in 1/1000ths (millicores).")
    mem: Count | None = Field(default=None, description="Requested memory, in MiB.")
    limit_cpu: Count | None = Field(default=None, description="CPU limit, in millicores; used if cpu is absent.")
    limit_mem: Count | None = Field(default=None, description="Memory limit, in MiB; used if mem is absent.")
    gpu: Some = Field(default=0, description="Whole GPUs, in mode nvidia.")
    gpu_request: Any = Field(default=None, description='Fraction of one GPU as text, e.g. "0.5", in mode kubeshare.')
    gpu_mem: Any = Field(default=None, description="GPU memory in bytes, as text, in mode kubeshare.")


class Replicas(NodeUse):
    """One group of a job: servers or workers. Amounts are per replica."""

    replicas: Some = Field(default=1, description="Number of replicas.")


class PodPlace(_Model):
    """One planned process of a running job."""

    node: Text = Field(description="The node of the process.")
    critical: bool = Field(default=False, description="Whether it is the chief, which is never removed.")
    gpuid: Text | None = Field(default=None, description="Its shared GPU, in mode kubeshare.")
    live: bool = Field(default=True, description="Whether its pod exists; false: planned, but not observed yet.")


class PodPlaces(_Model):
    """The planned processes of a running job."""

    ps: list[PodPlace] = Field(default=[], description="Its parameter servers.")
    worker: list[PodPlace] = Field(default=[], description="Its workers.")


class Pending(_Model):
    """A pending job."""

    name: Text = Field(description="The job's name in the answer.")
    waited: NotNegative = Field(default=0.0, description="Waiting time until now, in seconds.")
    min: Some | None = Field(default=None, description="The fewest workers; a job without it is rejected.")
    max: Some | None = Field(default=None, description="The most workers; a job without it is rejected.")
    ps: Replicas | None = Field(default=None, description="Its parameter servers, if it has any.")
    worker: Replicas = Field(description="Its workers.")


class RunningPod(_Model):
    """A running job."""

    name: Text = Field(description="The job's name in the answer.")
    min: Some = Field(description="The fewest workers.")
    max: Some = Field(description="The most workers.")
    ps: Replicas | None = Field(default=None, description="Its parameter servers, if it has any.")
    worker: Replicas = Field(description="Its workers.")
    placement: PodPlaces = Field(default=PodPlaces(), description="The nodes of its processes.")


class CasePod(NodeUse):
    """A pod or SharePod that does not belong to a training job."""

    node: Text = Field(description="The node of the pod.")
    gpuid: Text | None = Field(default=None, description="Its shared GPU, in mode kubeshare.")
    kubeshare_internal: bool = Field(default=False, description="Whether it only holds a GPU for KubeShare.")
    terminating: bool = Field(default=False, description="Whether it is terminating.")
    phase: str | None = Field(default=None, description="Its phase; Succeeded and Failed pods use no resources.")

    @property
    def is_over(self) -> bool:
        """Whether the pod has ended and uses no resources."""
        return self.phase in _OVER


class ServingPod(NodeUse):
    """A priority pod; pending unless it has a node."""

    name: Text = Field(description="The pod's name in the answer.")
    node: Text | None = Field(default=None, description="The node of the pod; null: pending.")
    gpuid: Text | None = Field(default=None, description="Its shared GPU, in mode kubeshare.")
    priority: int = Field(default=0, description="Pods with higher values come first.")


class DragonNode(_Model):
    """One node."""

    name: Text = Field(description="The node's name.")
    cpu: Count = Field(description="Its cores, in 1/1000ths (millicores).")
    mem: Count = Field(description="Its memory, in MiB.")
    gpus: Some = Field(default=0, description="Number of its GPUs.")
    gpu_mem_mib: Count | None = Field(default=None, description="Memory of each of its GPUs, in MiB.")
    taints: list[str] = Field(default=[], description="Effects of its taints, e.g. NoSchedule.")


class DragonCase(_Model):
    """One cycle of DRAGON: its pods and nodes."""

    # Cases may contain notes, ids and expected answers for other programs.
    model_config = ConfigDict(extra="ignore", json_schema_extra={"additionalProperties": True})

    policy: Text | None = Field(default=None, description="The policy: dragon or dragon-compat.")
    mode: Literal["nvidia", "kubeshare"] = Field(
        default="nvidia", description="nvidia: jobs use whole GPUs; kubeshare: fractions of GPUs."
    )
    now: Finite = Field(description="The time of the decision in seconds, on any clock.")
    last_action: Finite | None = Field(
        default=None,
        description="Time of the last start, shrink or growth, in seconds on the same clock as `now`; null = none yet.",
    )
    nodes: list[DragonNode] = Field(description="The nodes of the cluster.")
    running: list[RunningPod] = Field(default=[], description="Running jobs, oldest first.")
    pending: list[Pending] = Field(default=[], description="Pending jobs, in queue order.")
    other_pods: list[CasePod] = Field(default=[], description="Other pods; their resources are in use.")
    other_sharepods: list[CasePod] = Field(default=[], description="Other SharePods, in mode kubeshare.")
    priority_pods: list[ServingPod] = Field(default=[], description="Serving pods; training makes room for them.")
    options: dict[str, Any] = Field(default={}, description="Options of the policy (see `levada policy describe`).")


def check(raw: dict[str, Any]) -> DragonCase:
    """The case that *raw* describes; raises BadInput with all faults."""
    # With hundreds of other top-level keys, a misspelt field is unlikely.
    misspelt = [Fault(key, text) for key in list(raw)[:200] if (text := _misspelt(key))]
    try:
        case = DragonCase.model_validate(raw)
    except ValidationError as error:
        bad = bad_input(error, DragonCase)
        raise BadInput([*misspelt, *bad.faults], bad.more) from None
    faults = misspelt
    faults += _repeated([node.name for node in case.nodes], "nodes[{}].name", len(case.nodes))
    jobs = [*(job.name for job in case.running), *(job.name for job in case.pending)]
    faults += _repeated(jobs, "running[{}].name", len(case.running), "pending[{}].name")
    faults += _repeated([pod.name for pod in case.priority_pods], "priority_pods[{}].name", len(case.priority_pods))
    gpus = sum(node.gpus for node in case.nodes)
    if gpus > MOST_GPUS:
        faults.append(Fault("nodes", f"have more than {MOST_GPUS} GPUs"))
    if _parts(case, gpus) > _MOST_PARTS:
        faults.append(Fault("nodes", f"hold more than {_MOST_PARTS} fractions of a GPU; request larger ones"))
    if faults:
        raise BadInput(faults)
    return case


def _misspelt(key: Any) -> str:
    """The fault of a top-level key: only misspelt fields have one, notes do not."""
    if key in DragonCase.model_fields:
        return ""
    # `note` is similar to `nodes` and must be allowed, so only more similar keys are faults.
    similarity = max(SequenceMatcher(None, str(key), name).ratio() for name in DragonCase.model_fields)
    return unknown_field(str(key), DragonCase.model_fields) if similarity >= 0.8 else ""


def _parts(case: DragonCase, gpus: int) -> int:
    """The most GPU fractions that could be assigned one by one."""
    jobs: list[RunningPod | Pending] = [*case.running, *case.pending]
    shares = []
    for job in jobs:
        with suppress(Unreadable):
            shares.append(_milli(job.worker.gpu_request))
    asked = sum(max(job.max or 0, job.worker.replicas) for job in jobs)
    smallest = min((milli for milli in shares if milli), default=WHOLE)
    return min(asked, gpus * WHOLE // smallest) if case.mode == "kubeshare" else 0


def _repeated(names: list[str], path: str, first: int, beyond: str = "") -> list[Fault]:
    """A fault for each repeated name; names from *first* on have the path *beyond*."""
    seen: set[str] = set()
    faults = []
    for i, name in enumerate(names):
        if name in seen:
            where = path.format(i) if i < first else beyond.format(i - first)
            faults.append(Fault(where, f"{name!r} is given twice"))
        seen.add(name)
    return faults


class Needed(NamedTuple):
    """Resources of a process: millicores, MiB, 1/1000ths of a GPU, GPU bytes."""

    cpu: int
    memory: int
    milli: int = 0
    gpu_memory: int = 0


class Unreadable(ValueError):
    """A job or pod is invalid by itself; the text says why."""


class GpuReading(NamedTuple):
    """How a policy interprets the resources of a case."""

    mode: str
    #: As in the original: ignore limits, and reduce a request above one device to one device.
    as_original: bool

    def demand(self, use: NodeUse) -> Needed:
        """The resources that the scheduler assumes for a process; raises Unreadable."""
        milli, gpu_memory = self._gpu(use)
        if self.as_original:
            return Needed(use.cpu or 0, use.mem or 0, milli, gpu_memory)
        return Needed(_first(use.cpu, use.limit_cpu), _first(use.mem, use.limit_mem), milli, gpu_memory)

    def live(self, use: NodeUse) -> Needed:
        """The resources of a live process; the API server fills in missing requests.

        It does not do so for SharePods.
        """
        if self.as_original and self.mode == "kubeshare":
            return self.demand(use)
        cpu, memory = _first(use.cpu, use.limit_cpu), _first(use.mem, use.limit_mem)
        return self.demand(use)._replace(cpu=cpu, memory=memory)

    def _gpu(self, use: NodeUse) -> tuple[int, int]:
        if self.mode == "nvidia":
            return use.gpu * WHOLE, 0
        milli = _milli(use.gpu_request)
        if milli == 0:
            return 0, 0
        if self.as_original:
            milli = min(milli, WHOLE)
        elif milli > WHOLE:
            raise Unreadable(f"gpu_request {use.gpu_request} is more than one GPU")
        return milli, _bytes(use.gpu_mem)


def counts_as_share(use: NodeUse, gpuid: str | None) -> bool:
    """Whether the original counts a live fraction: device, request and memory given."""
    return bool(gpuid) and use.gpu_request is not None and use.gpu_mem is not None


def _first(*values: int | None) -> int:
    return next((value for value in values if value is not None), 0)


def _milli(value: Any) -> int:
    """1/1000ths of a device, rounded up."""
    if value is None or value == "":
        return 0
    try:
        number = Decimal(str(value).strip())
        if isinstance(value, bool) or not number.is_finite() or not 0 <= number * WHOLE <= _MOST_MILLI:
            raise InvalidOperation
    except InvalidOperation:
        raise Unreadable(f"gpu_request {value!r} is not a fraction of a GPU") from None
    return math.ceil(number * WHOLE)


def _bytes(value: Any) -> int:
    if value is None or value == "":
        return 0
    text = str(value).strip()
    if isinstance(value, bool) or not (text.isascii() and text.isdigit()) or len(text) > 15:
        raise Unreadable(f"gpu_mem {value!r} is not a number of bytes")
    return int(text)
