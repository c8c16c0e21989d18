"""The case that describes pods and nodes as DRAGON saw them, checked before anything is made of it.

Units are those of the case: millicores, MiB, devices; `gpu_request` is a part of a device and `gpu_mem` bytes, both as
text. Keys beside those of a case are notes, as long as they do not look like one misspelt; inside they are faults.
"""

from __future__ import annotations

import math
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from difflib import SequenceMatcher
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from levada.cases.limits import MOST_GPUS
from levada.core.types import WHOLE
from levada.errors import BadInput, Fault
from levada.jobfile.faults import bad_input, unknown_field
from levada.jobfile.fields import Count, Finite, NotNegative, Text

_OVER = ("Succeeded", "Failed")
#: 1/1000ths; a decimal beyond it is nonsense, and costly to compute with.
_MOST_MILLI = 10**9
#: Parts of a GPU that fit into all nodes: each one is placed by itself.
_MOST_PARTS = 500_000

#: Devices of a node or pod, and processes of a group: far more than anybody has, few enough to count one by one.
Some = Annotated[int, Field(ge=0, le=4096)]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class Use(_Model):
    """What a pod takes."""

    cpu: Count | None = Field(default=None, description="Requested cores, in 1/1000ths (millicores).")
    mem: Count | None = Field(default=None, description="Requested memory, in MiB.")
    limit_cpu: Count | None = Field(default=None, description="Its limit, in millicores; counts where cpu is absent.")
    limit_mem: Count | None = Field(default=None, description="Its limit, in MiB; counts where mem is absent.")
    gpu: Some = Field(default=0, description="Whole GPUs, in mode nvidia.")
    gpu_request: Any = Field(default=None, description='A part of one GPU as text, such as "0.5", in mode kubeshare.')
    gpu_mem: Any = Field(default=None, description="GPU memory in bytes, as text, in mode kubeshare.")


class Replicas(Use):
    """One group of a job: its parameter servers or its workers. Amounts are those of one replica."""

    replicas: Some = Field(default=1, description="How many there are, or were asked for.")


class Place(_Model):
    """One planned process of a running job."""

    node: Text = Field(description="The node that it stands on.")
    critical: bool = Field(default=False, description="Whether it is the chief, which is never removed.")
    gpuid: Text | None = Field(default=None, description="The shared GPU that it is on, in mode kubeshare.")
    live: bool = Field(default=True, description="Whether its pod exists; false: planned, and not seen yet.")


class Places(_Model):
    """The plan of a running job."""

    ps: list[Place] = Field(default=[], description="Its parameter servers.")
    worker: list[Place] = Field(default=[], description="Its workers.")


class Pending(_Model):
    """A job that waits."""

    name: Text = Field(description="The job's name in the answer.")
    waited: NotNegative = Field(default=0.0, description="Seconds that it has waited, at now.")
    min: Some | None = Field(default=None, description="The fewest workers it can run with; a job without is refused.")
    max: Some | None = Field(default=None, description="The most it can use; a job without is refused.")
    ps: Replicas | None = Field(default=None, description="Its parameter servers, if it has any.")
    worker: Replicas = Field(description="Its workers.")


class Running(_Model):
    """A job that runs."""

    name: Text = Field(description="The job's name in the answer.")
    min: Some = Field(description="The fewest workers it can run with.")
    max: Some = Field(description="The most it can use.")
    ps: Replicas | None = Field(default=None, description="Its parameter servers, if it has any.")
    worker: Replicas = Field(description="Its workers.")
    placement: Places = Field(default=Places(), description="Where its processes stand.")


class Pod(Use):
    """A pod or SharePod of somebody else."""

    node: Text = Field(description="The node that it stands on.")
    gpuid: Text | None = Field(default=None, description="The shared GPU that it is on, in mode kubeshare.")
    kubeshare_internal: bool = Field(default=False, description="Whether it only holds a GPU for KubeShare.")
    terminating: bool = Field(default=False, description="Whether it is on its way out.")
    phase: str | None = Field(default=None, description="Its phase; Succeeded and Failed use nothing any more.")

    @property
    def is_over(self) -> bool:
        """Whether it uses nothing any more."""
        return self.phase in _OVER


class ServingPod(Use):
    """A priority pod, which waits unless it has a node."""

    name: Text = Field(description="The pod's name in the answer.")
    node: Text | None = Field(default=None, description="The node that it stands on; null: it waits.")
    gpuid: Text | None = Field(default=None, description="The shared GPU that it is on, in mode kubeshare.")
    priority: int = Field(default=0, description="Higher ones come first.")


class DragonNode(_Model):
    """One node."""

    name: Text = Field(description="The node's name.")
    cpu: Count = Field(description="Its cores, in 1/1000ths (millicores).")
    mem: Count = Field(description="Its memory, in MiB.")
    gpus: Some = Field(default=0, description="How many GPUs it has.")
    gpu_mem_mib: Count | None = Field(default=None, description="Memory of each of its GPUs, in MiB.")
    taints: list[str] = Field(default=[], description="Effects such as NoSchedule, which keep pods off.")


class DragonCase(_Model):
    """One cycle of DRAGON: pods and nodes as it saw them."""

    # Cases carry notes, ids and expected answers for other programs.
    model_config = ConfigDict(extra="ignore", json_schema_extra={"additionalProperties": True})

    policy: Text | None = Field(default=None, description="Who decides: dragon or dragon-compat.")
    mode: Literal["nvidia", "kubeshare"] = Field(
        default="nvidia", description="Whether jobs take whole GPUs, or parts of them as KubeShare hands them out."
    )
    now: Finite = Field(description="The time of the decision, in seconds on a clock of your own.")
    last_action: Finite | None = Field(
        default=None, description="When something was last started, shrunk or grown, on the clock of now."
    )
    nodes: list[DragonNode] = Field(description="The nodes of the cluster.")
    running: list[Running] = Field(default=[], description="The jobs that run, oldest first.")
    pending: list[Pending] = Field(default=[], description="The jobs that wait, first in line first.")
    other_pods: list[Pod] = Field(default=[], description="Pods of others, whose room is taken.")
    other_sharepods: list[Pod] = Field(default=[], description="SharePods of others, in mode kubeshare.")
    priority_pods: list[ServingPod] = Field(default=[], description="Serving pods, for which training makes room.")
    options: dict[str, Any] = Field(
        default={}, description="Settings of the policy, as `levada policy describe` lists them."
    )


def check(raw: dict[str, Any]) -> DragonCase:
    """The case that *raw* describes; raises BadInput with all faults."""
    # Whoever has hundreds of notes beside the case has not misspelt one of its fields.
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
        faults.append(Fault("nodes", f"have room for more than {_MOST_PARTS} parts of a GPU; ask for larger ones"))
    if faults:
        raise BadInput(faults)
    return case


def _misspelt(key: Any) -> str:
    """What to say about *key* at the top of a case: strange keys are ignored, misspelt ones are not."""
    if key in DragonCase.model_fields:
        return ""
    # `note` is as near to `nodes` as many a slip, and notes are welcome: only what is nearer still is a fault.
    alike = max(SequenceMatcher(None, str(key), name).ratio() for name in DragonCase.model_fields)
    return unknown_field(str(key), DragonCase.model_fields) if alike >= 0.8 else ""


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
