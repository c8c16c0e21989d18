"""The case that describes pods and nodes as DRAGON saw them, checked before anything is made of it.

Units are those of the case: millicores, MiB, devices; `gpu_request` is a part of a device and `gpu_mem` bytes, both as
text. Keys that nobody knows are ignored.
"""

from __future__ import annotations

import math
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from levada.cases.limits import MOST_GPUS
from levada.core.types import WHOLE
from levada.errors import BadInput, Fault
from levada.jobfile.faults import faults_of
from levada.jobfile.fields import Count, Finite, NotNegative, Text

_OVER = ("Succeeded", "Failed")
#: 1/1000ths; a decimal beyond it is nonsense, and costly to compute with.
_MOST_MILLI = 10**9
#: Parts of a GPU that fit into all nodes: each one is placed by itself.
_MOST_PARTS = 500_000

#: Devices of a node or pod, and processes of a group: far more than anybody has, few enough to count one by one.
Some = Annotated[int, Field(ge=0, le=4096)]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class Use(_Model):
    """What a pod takes. `limit_*` counts where nothing is requested."""

    cpu: Count | None = None
    mem: Count | None = None
    limit_cpu: Count | None = None
    limit_mem: Count | None = None
    gpu: Some = 0
    gpu_request: Any = None
    gpu_mem: Any = None


class Replicas(Use):
    """One group of a job."""

    replicas: Some = 1


class Place(_Model):
    """One planned process of a running job."""

    node: Text
    critical: bool = False
    gpuid: Text | None = None
    live: bool = True


class Places(_Model):
    """The plan of a running job."""

    ps: list[Place] = []
    worker: list[Place] = []


class Pending(_Model):
    """A job that waits."""

    name: Text
    waited: NotNegative = 0.0
    min: Some | None = None
    max: Some | None = None
    ps: Replicas | None = None
    worker: Replicas


class Running(_Model):
    """A job that runs."""

    name: Text
    min: Some
    max: Some
    ps: Replicas | None = None
    worker: Replicas
    placement: Places = Places()


class Pod(Use):
    """A pod or SharePod of somebody else."""

    node: Text
    gpuid: Text | None = None
    kubeshare_internal: bool = False
    terminating: bool = False
    phase: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether it uses nothing any more."""
        return self.phase in _OVER


class ServingPod(Use):
    """A priority pod, which waits unless it has a node."""

    name: Text
    node: Text | None = None
    gpuid: Text | None = None
    priority: int = 0


class CaseNode(_Model):
    """One node. `taints` are effects."""

    name: Text
    cpu: Count
    mem: Count
    gpus: Some = 0
    gpu_mem_mib: Count | None = None
    taints: list[str] = []


class DragonCase(_Model):
    """One cycle of DRAGON."""

    mode: Literal["nvidia", "kubeshare"] = "nvidia"
    now: Finite
    last_action: Finite | None = None
    nodes: list[CaseNode]
    running: list[Running] = []
    pending: list[Pending] = []
    other_pods: list[Pod] = []
    other_sharepods: list[Pod] = []
    priority_pods: list[ServingPod] = []
    options: dict[str, Any] = {}


def check(raw: dict[str, Any]) -> DragonCase:
    """The case that *raw* describes; raises BadInput with all faults."""
    try:
        case = DragonCase.model_validate(raw)
    except ValidationError as error:
        raise BadInput(faults_of(error, DragonCase)) from None
    faults = _repeated([node.name for node in case.nodes], "nodes[{}].name", len(case.nodes))
    jobs = [*(job.name for job in case.running), *(job.name for job in case.pending)]
    faults += _repeated(jobs, "running[{}].name", len(case.running), "pending[{}].name")
    faults += _repeated([pod.name for pod in case.priority_pods], "priority_pods[{}].name", len(case.priority_pods))
    gpus = sum(node.gpus for node in case.nodes)
    if gpus > MOST_GPUS:
        faults.append(Fault("nodes", f"have more than {MOST_GPUS} GPUs"))
    if _parts(case, gpus) > _MOST_PARTS:
        faults.append(Fault("nodes", f"have room for more than {_MOST_PARTS} parts of a GPU; ask for larger ones"))
    if faults:
        raise BadInput(faults)
    return case


def _parts(case: DragonCase, gpus: int) -> int:
    """How many parts of a GPU could be handed out one by one."""
    jobs: list[Running | Pending] = [*case.running, *case.pending]
    shares = []
    for job in jobs:
        with suppress(Unreadable):
            shares.append(_milli(job.worker.gpu_request))
    asked = sum(max(job.max or 0, job.worker.replicas) for job in jobs)
    smallest = min((milli for milli in shares if milli), default=WHOLE)
    return min(asked, gpus * WHOLE // smallest) if case.mode == "kubeshare" else 0


def _repeated(names: list[str], path: str, first: int, beyond: str = "") -> list[Fault]:
    """A fault for each name given twice; those from *first* on have the path *beyond*."""
    seen: set[str] = set()
    faults = []
    for i, name in enumerate(names):
        if name in seen:
            where = path.format(i) if i < first else beyond.format(i - first)
            faults.append(Fault(where, f"{name!r} is given twice"))
        seen.add(name)
    return faults


class Needed(NamedTuple):
    """What one process takes: millicores, MiB, 1/1000ths of a GPU, bytes of its memory."""

    cpu: int
    memory: int
    milli: int = 0
    gpu_memory: int = 0


class Unreadable(ValueError):
    """A job or pod cannot be understood by itself; the text says why."""


class Reading(NamedTuple):
    """How one policy reads the case."""

    mode: str
    #: As the original: limits are not looked at, and a share above one device is one device.
    as_original: bool

    def demand(self, use: Use) -> Needed:
        """What the scheduler thinks a process takes; raises Unreadable."""
        milli, gpu_memory = self._gpu(use)
        if self.as_original:
            return Needed(use.cpu or 0, use.mem or 0, milli, gpu_memory)
        return Needed(_first(use.cpu, use.limit_cpu), _first(use.mem, use.limit_mem), milli, gpu_memory)

    def live(self, use: Use) -> Needed:
        """What it takes once it lives: the API server has filled in requests, though not for SharePods."""
        if self.as_original and self.mode == "kubeshare":
            return self.demand(use)
        cpu, memory = _first(use.cpu, use.limit_cpu), _first(use.mem, use.limit_mem)
        return self.demand(use)._replace(cpu=cpu, memory=memory)

    def _gpu(self, use: Use) -> tuple[int, int]:
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


def counts_as_share(use: Use, gpuid: str | None) -> bool:
    """Whether the original counted a live share: only with device, request and memory."""
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
        raise Unreadable(f"gpu_request {value!r} is not a share of a GPU") from None
    return math.ceil(number * WHOLE)


def _bytes(value: Any) -> int:
    if value is None or value == "":
        return 0
    text = str(value).strip()
    if isinstance(value, bool) or not (text.isascii() and text.isdigit()) or len(text) > 15:
        raise Unreadable(f"gpu_mem {value!r} is not a number of bytes")
    return int(text)
