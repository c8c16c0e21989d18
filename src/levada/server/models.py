"""Bodies and answers of the API, as OpenAPI shows them. Answers may hold more than is listed."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

T = TypeVar("T")

#: The largest whole number that every JSON reader keeps exact.
LARGEST = 2**53 - 1
PHASES = (
    "Pending",
    "Starting",
    "Running",
    "Resizing",
    "Stopping",
    "Suspended",
    "Succeeded",
    "Failed",
    "Cancelled",
)
#: After these nothing happens to a job any more.
OVER = frozenset({"Succeeded", "Failed", "Cancelled"})
Phase = Literal[
    "Pending", "Starting", "Running", "Resizing", "Stopping", "Suspended", "Succeeded", "Failed", "Cancelled"
]
RoleName = Literal["viewer", "user", "operator", "admin"]
Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Name = Annotated[str, Field(min_length=1, max_length=253)]
#: Whole numbers stay whole.
Number = int | float
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class View(BaseModel):
    """An answer."""

    model_config = ConfigDict(extra="allow")


class Given(BaseModel):
    """A body."""

    model_config = ConfigDict(extra="forbid", strict=True)


class FaultView(BaseModel):
    """One mistake in a body."""

    path: str
    text: str


class ProblemView(BaseModel):
    """Why it was not done."""

    status: int
    title: str
    detail: str
    code: str = Field(description="For programs: refused, not_found, bad_input …")
    errors: list[FaultView] | None = Field(default=None, description="What is wrong with the body: 100 at most.")
    more: int | None = Field(default=None, description="How many more faults there are than `errors` has.")


class Page(BaseModel, Generic[T]):
    """Some of many; `next` is the cursor of the next page, null on the last."""

    items: list[T]
    next: str | None = None


# -------------------------------------------------------------------------------------------------------------- answers
class ReasonView(View):
    """Why a job waits or is as it is."""

    code: str
    text: str


class ProgressView(View):
    """How far a job is."""

    step: Number | None
    total: Number | None
    rate: float | None


class WorkerView(View):
    """One worker."""

    index: int
    node: str | None
    devices: list[str]
    phase: str


class JobView(View):
    """A job. Times are RFC 3339 in UTC, durations seconds; what is not known is null."""

    id: str
    name: str
    workload: str
    kind: str
    user: str
    queue: str
    priority: int
    phase: Phase
    reason: ReasonView | None
    position: int | None
    gpus: Number
    min: int
    max: int
    fixed: int | None = Field(default=None, description="The size its user fixed it at; null = any of its range.")
    preemptible: Literal["auto"] | bool = Field(default="auto", description="As in its job file.")
    gpu_type: str | None
    nodes: list[str]
    workers: list[WorkerView]
    generation: int
    progress: ProgressView | None
    eta_s: float | None
    submitted: Moment
    started: Moment | None
    finished: Moment | None
    waiting_s: float
    running_s: float
    gpu_seconds: float
    restarts: int
    resizes: int
    moves: int
    exit_code: int | None
    labels: dict[str, str]
    gpus_per_worker: Number = 1
    array_index: int | None = Field(default=None, description="Which one of an array it is.")
    command: str | None = Field(default=None, description="What its workers run, shortened.")
    workdir: str | None = Field(default=None, description="The folder that they start in.")
    retries: int = Field(default=0, description="How often it may start again after it failed.")
    retried: int = Field(default=0, description="How many of its retries are used.")
    message: str | None = Field(default=None, description="After a change of its size: when the job has it.")
    unsaved: str | None = Field(default=None, description="And what it would lose if it had to have it now.")


class SubmittedJob(JobView):
    """A job that was just accepted."""

    warnings: list[str] | None = Field(
        default=None,
        description="Why it cannot start, or will miss its deadline; absent where there is nothing to warn of.",
    )


class JobColumns(BaseModel):
    """Some of many jobs by column: the values of one field of all of them, in the same order."""

    columns: dict[str, list[Any]]
    next: str | None = None


#: What may be asked for as a column: fields of a job, and those of its reason and progress.
JOB_COLUMNS = frozenset(
    [
        *JobView.model_fields,
        *(f"reason.{name}" for name in ReasonView.model_fields),
        *(f"progress.{name}" for name in ProgressView.model_fields),
    ]
)


class PointView(View):
    """The speed of a workload with so many workers of a GPU type: steps/s, and times that of one worker."""

    gpu_type: str
    workers: int
    measured: Number | None = Field(default=None, description="As seen; null where it never ran so.")
    fitted: Number = Field(description="As policies believe it.")
    measured_speedup: Number | None = None
    speedup: Number
    confidence: Number = Field(description="From 0, a guess, to 1.")
    seconds: Number | None = Field(default=None, description="Of running that it was seen for.")


class CostView(View):
    """Seconds without progress at a change of workers, and how often that was seen."""

    change: Literal["start", "resize", "stop"]
    seconds: Number
    times: int


class CurveView(View):
    """What was learned of the speed of a job's workload."""

    job: str
    workload: str
    now: dict[str, Any] | None = Field(default=None, description="GPU type and workers that the job has.")
    points: list[PointView]
    costs: list[CostView]


class EventView(View):
    """Something that happened; more fields by type."""

    id: int
    time: Moment
    type: str
    job: str | None
    text: str


class LogLineView(View):
    """One line of output."""

    worker: str
    time: Moment | None
    text: str


class NamedView(View):
    """A node or a queue."""

    name: str


class PolicyView(View):
    """A policy that could decide."""

    name: str


class CurrentPolicyView(View):
    """The policy that decides."""

    name: str
    options: dict[str, Any]
    rate_limit_s: float


class ChangedPolicyView(CurrentPolicyView):
    """The policy that decides from now on, or would."""

    warnings: list[str] = Field(default=[], description="Which running jobs it stops or shrinks.")


class MeView(View):
    """Who one is."""

    user: str
    role: RoleName


class TokenView(View):
    """A token without its secret."""

    id: str
    user: str
    role: RoleName
    created: Moment
    expires: Moment | None


class NewTokenView(View):
    """A new token; its secret is told only now."""

    id: str
    token: str
    user: str
    role: RoleName


class UserView(View):
    """Somebody who has tokens."""

    name: str
    role: RoleName = Field(description="The highest role of their tokens.")
    tokens: int


class AuditView(View):
    """Somebody changed something, or tried to."""

    time: Moment
    user: str
    role: RoleName
    method: str
    path: str
    status: int
    detail: str


class HealthView(BaseModel):
    """The server is there."""

    status: str
    version: str


# --------------------------------------------------------------------------------------------------------------- bodies
def _whole(value: Any) -> Any:
    """1.0 is as whole as 1: JSON knows only numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole, json_schema_input_type=int)]


def _absent() -> Any:
    """Of a field that may be left out and not be null; it is never looked at."""
    return None


class Update(Given):
    """What of a job may change; at least one of it."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    priority: Annotated[Whole, Field(ge=-LARGEST, le=LARGEST)] = Field(default_factory=_absent)
    queue: Name = Field(default_factory=_absent)
    min: Annotated[Whole, Field(ge=1, le=LARGEST)] = Field(default_factory=_absent)
    max: Annotated[Whole, Field(ge=1, le=LARGEST)] = Field(default_factory=_absent)
    weight: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] = Field(default_factory=_absent)
    preemptible: Literal["auto"] | bool = Field(default_factory=_absent)


class Scale(Given):
    """Another size."""

    workers: Annotated[Whole, Field(ge=1, le=1_000_000)]


class WhatIf(Given):
    """Jobs that might be submitted."""

    documents: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=1000)]
    policy: Name | None = None


class Reserve(Given):
    """GPUs to keep free of jobs."""

    gpus: Annotated[Whole, Field(ge=1, le=1_000_000)]
    seconds: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
    gpu_type: Name | None = None
    node: Name | None = None


class SetPolicy(Given):
    """The policy that shall decide."""

    name: Name
    options: dict[str, Any] = {}


class RateLimit(Given):
    """The least time between two decisions."""

    seconds: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)]


class NewToken(Given):
    """A token to be made."""

    user: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,62}$")] | None = Field(
        default=None, description="Whose; your own name unless given."
    )
    role: RoleName = "user"
    expires_s: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] | None = None


class WorkerReport(Given):
    """What a worker tells of itself; the fields of its report file."""

    job: Name | None = Field(default=None, description="Its own, where it is given.")
    generation: Annotated[Whole, Field(ge=0, le=LARGEST)] | None = Field(
        default=None, description="The one it trains in; only for who reads along."
    )
    rank: Annotated[Whole, Field(ge=0, le=LARGEST)] | None = None
    flags: Annotated[Whole, Field(ge=0, le=2**32)] | None = Field(
        default=None,
        description="1 uses the runtime, 2 resizes in process, 4 all is done, 8 leaves on request, "
        "16 saves when asked to leave, 32 exit code 0 alone does not end the job.",
    )
    step: Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)] | None = Field(
        default=None, description="Steps done, by the whole job."
    )
    step_s: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = Field(
        default=None, description="Seconds per step."
    )
    saves: Annotated[Whole, Field(ge=0, le=LARGEST)] | None = Field(default=None, description="Checkpoints, ever.")
    saved_step: Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)] | None = Field(
        default=None, description="Steps in the last one."
    )
