"""Types of the answers of the HTTP API; an answer may have further keys.

The server derives its OpenAPI document from these types; a string below a field is its description there.
Times are RFC 3339 in UTC, durations are in seconds, and unknown values are null.
"""

import sys
from typing import Annotated, Any, Literal, NotRequired

if sys.version_info >= (3, 12):
    from typing import TypedDict
else:  # pydantic does not accept `typing.TypedDict` there
    from typing_extensions import TypedDict


class _DateTime:
    """Adds the format `date-time` to the JSON schema of a string; pydantic calls the method."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), "format": "date-time"}


PhaseName = Literal[
    "Pending", "Starting", "Running", "Resizing", "Stopping", "Suspended", "Succeeded", "Failed", "Cancelled"
]
RoleName = Literal["viewer", "user", "operator", "admin"]
Moment = Annotated[str, _DateTime()]
#: Whole numbers stay whole in JSON.
Number = int | float


class View(TypedDict):
    """An answer of the API."""


# Read by pydantic in the server: keep additional keys, and use the strings below fields as descriptions.
View.__pydantic_config__ = {"extra": "allow", "use_attribute_docstrings": True}  # type: ignore[attr-defined]


# --------------------------------------------------------------------------------------------------------------- errors
class FaultView(View):
    """One fault in a request body."""

    path: str
    text: str


class ProblemView(View):
    """An error."""

    status: int
    title: str
    detail: str
    code: str
    """For programs: refused, not_found, bad_input …"""
    errors: NotRequired[list[FaultView] | None]
    """Faults of the body, at most 100."""
    more: NotRequired[int | None]
    """Number of faults beyond those in `errors`."""


# ----------------------------------------------------------------------------------------------------------------- jobs
class ReasonView(View):
    """Why a job waits or has its size."""

    code: str
    text: str


class ProgressView(View):
    """Progress of a job in steps; `rate` is in steps per second."""

    step: Number | None
    total: Number | None
    rate: float | None


class WorkerView(View):
    """One worker of a job."""

    index: int
    node: str | None
    devices: list[str]
    phase: str


class JobView(View):
    """A job. Times are RFC 3339 in UTC, durations are in seconds, unknown values are null."""

    id: str
    name: str
    workload: str
    kind: str
    user: str
    queue: str
    priority: int
    phase: PhaseName
    reason: ReasonView | None
    position: int | None
    gpus: Number
    min: int
    max: int
    fixed: NotRequired[int | None]
    """Size that its user fixed; null = any size of its range."""
    preemptible: NotRequired[Literal["auto"] | bool]
    """As in its job file."""
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
    gpus_per_worker: NotRequired[Number]
    array_index: NotRequired[int | None]
    """Index in its array job."""
    command: NotRequired[str | None]
    """Command of its workers, at most 200 characters."""
    workdir: NotRequired[str | None]
    """Working directory of its workers."""
    retries: NotRequired[int]
    """Number of restarts allowed after failures."""
    retried: NotRequired[int]
    """Number of retries used."""
    message: NotRequired[str | None]
    """After a change of its size: when the new size takes effect."""
    unsaved: NotRequired[str | None]
    """After a change of its size: work that is lost if the change is forced now."""
    warnings: NotRequired[list[str] | None]
    """After its submission: why it cannot start or will miss its deadline; absent without a warning."""


class JobColumnsView(View):
    """A page of jobs by column: the values of one field of all jobs, in the same order."""

    columns: dict[str, list[Any]]
    next: str | None


#: Names of columns: fields of a job, of its reason and of its progress.
JOB_COLUMNS = frozenset(
    [
        *JobView.__annotations__,
        *(f"reason.{name}" for name in ReasonView.__annotations__),
        *(f"progress.{name}" for name in ProgressView.__annotations__),
    ]
)


class AllocationView(View):
    """GPU type and number of workers."""

    gpu_type: str
    workers: int


class PointView(View):
    """Speed of a workload on one GPU type and size: steps/s, and relative to one worker of that type."""

    gpu_type: str
    workers: int
    measured: NotRequired[Number | None]
    """Observed; null if it never ran with this size."""
    fitted: Number
    """Used by policies."""
    measured_speedup: NotRequired[Number | None]
    speedup: Number
    confidence: Number
    """From 0, a guess, to 1."""
    seconds: NotRequired[Number | None]
    """Observed running time."""


class CostView(View):
    """Mean seconds without progress at a change of workers, and number of observations."""

    change: Literal["start", "resize", "stop"]
    seconds: Number
    times: int


class CurveView(View):
    """Learned speed of a job's workload."""

    job: str
    workload: str
    now: NotRequired[AllocationView | None]
    """Current GPU type and workers of the job."""
    points: list[PointView]
    costs: list[CostView]


class ForecastView(View, total=False):
    """Expected start and end of a job; null = unknown, or more than 90 days from now."""

    starts: Moment | None
    ends: Moment | None
    starts_in_s: float | None
    ends_in_s: float | None


class ExplanationView(ForecastView):
    """Why a job waits or has its size, with a forecast while it has not ended."""

    job: str
    phase: PhaseName
    reason: ReasonView | None
    would_help: list[str]
    """Changes that would let it start or grow, one sentence each."""
    before: list[str]
    """Ids of pending jobs ahead of it in the order of the policy."""
    position: NotRequired[int | None]
    """Position among pending jobs, from 1."""
    gpu_type: NotRequired[str | None]
    workers: NotRequired[int]
    nodes: NotRequired[list[str]]
    stage: NotRequired[str | None]
    """Of its operation: "waiting for release" or "under way"."""


class JobForecastView(ForecastView):
    """Expected start and end of a hypothetical job."""

    job: str


class ForecastChangeView(View):
    """Effect of hypothetical jobs on a present one."""

    job: str
    before: ForecastView | None
    after: ForecastView | None


class WhatIfView(View):
    """Forecast of hypothetical jobs."""

    policy: str
    now: Moment
    jobs: list[JobForecastView]
    others: list[ForecastChangeView]
    """Present jobs whose forecast changes."""


class LogLineView(View):
    """One line of a worker's output."""

    worker: str
    time: Moment | None
    text: str


class StepLeaseView(View):
    """Number of steps that a job may train."""

    total_steps: Number


class MasterView(View):
    """Address of the worker with rank 0."""

    address: str
    port: int


class WorldView(View):
    """The workers of a generation, in the order of their ranks."""

    generation: int
    members: list[str]
    master: MasterView
    key: NotRequired[str]


class ReportAnswerView(View):
    """Answer to the report of a worker."""

    world: NotRequired[WorldView]
    """Only where the backend tells workers of resizes this way."""

    lease: NotRequired[StepLeaseView]
    """Only for a job that was granted a fixed number of steps."""


# -------------------------------------------------------------------------------------------------------------- cluster
class GpuCountView(View):
    """GPUs of one type on a node."""

    total: int
    used: Number


class DeviceView(View):
    """A GPU."""

    id: str
    type: str
    healthy: bool


class DrainingJobView(View):
    """A job that still runs on a draining node, and why."""

    job: str
    why: str


class NodeView(View):
    """A node."""

    name: str
    phase: Literal["Ready", "Cordoned", "Draining", "Drained", "Lost"]
    gpus: dict[str, GpuCountView]
    """By GPU type."""
    cpu: Number | None
    """Cores."""
    memory_mib: int | None
    labels: dict[str, str]
    jobs: list[str]
    draining: list[DrainingJobView] | None
    """Jobs that still run on a draining node; null if the node is not draining."""
    devices: list[DeviceView]


class ReservationView(View):
    """GPUs that no job uses until a time."""

    id: str
    devices: dict[str, list[str]]
    """Ids by node."""
    until: Moment


class QueueView(View):
    """A queue."""

    name: str
    parent: str | None
    weight: float
    guaranteed: dict[str, float]
    """GPUs by type."""
    limit: dict[str, float]
    """GPUs by type."""
    per_user_limit: dict[str, float]
    """GPUs by type; `*` is the total."""
    borrow: bool
    used: dict[str, Number]
    """GPUs by type."""
    running: int
    waiting: int


class PolicyView(View):
    """An installed policy."""

    name: str
    aliases: list[str]
    text: str


class CurrentPolicyView(View):
    """The active policy."""

    name: str
    options: dict[str, Any]
    rate_limit_s: float
    rejections: NotRequired[int]
    """Decisions rejected in a row."""
    last_rejection: NotRequired[str | None]
    warnings: NotRequired[list[str]]
    """After a change of the policy: running jobs that it stops or shrinks."""


# -------------------------------------------------------------------------------------------------------------- history
class EventView(View):
    """An event; more fields by type."""

    id: int
    time: Moment
    type: str
    job: str | None
    text: str
    phase: NotRequired[PhaseName]
    """New phase of the job, for events of type `phase`."""


class DecidedJobView(View):
    """Allocation of one job in a decision."""

    job: str
    workers: int
    gpu_type: str | None
    reason: str
    """Code of the reason."""


class DecisionView(View):
    """A decision of a policy."""

    revision: int
    time: Moment
    policy: str
    failed: str | None
    """Why it failed or was rejected; null if it was applied."""
    took_s: float | None
    jobs: list[DecidedJobView]


class DecisionCountView(View):
    """Decisions of one policy since the server started."""

    policy: str
    made: int
    failed: int
    seconds: float


class OperationView(View):
    """One operation of a plan."""

    job: str
    kind: str
    generation: int
    workers: int
    gpu_type: str | None
    adds: list[str]
    drops: list[str]


class PlanView(View):
    """Operations that the server issued together."""

    revision: int
    time: Moment
    operations: list[OperationView]


class EngineFaultView(View):
    """An internal error of the engine that was rolled back."""

    kind: str
    error: str
    traceback: str
    times: int
    first: Moment
    last: Moment
    version: str
    jobs: list[str]
    event: str


class UsageView(View):
    """GPU time of one group of jobs, with the fields that it is grouped by."""

    user: NotRequired[str]
    queue: NotRequired[str]
    workload: NotRequired[str]
    gpu_type: NotRequired[str]
    jobs: int
    gpu_seconds: float
    running_s: float
    waiting_s: float


class SnapshotJobView(JobView):
    """A job with its job file."""

    document: dict[str, Any]


class SnapshotView(View):
    """The whole state, for `levada replay`."""

    time: Moment
    revision: int
    policy: CurrentPolicyView
    nodes: list[NodeView]
    queues: list[QueueView]
    jobs: list[SnapshotJobView]


# ---------------------------------------------------------------------------------------------------- users and health
class MeView(View):
    """The authenticated user."""

    user: str
    role: RoleName


class TokenView(View):
    """A token without its secret."""

    id: str
    user: str
    role: RoleName
    created: Moment
    expires: Moment | None
    last_used: NotRequired[Moment | None]


class NewTokenView(View):
    """A new token; the only answer with its secret."""

    id: str
    token: str
    user: str
    role: RoleName


class UserView(View):
    """A user who has tokens."""

    name: str
    role: RoleName
    """Highest role of the user's tokens."""
    tokens: int


class AuditView(View):
    """A write request and its outcome."""

    time: Moment
    user: str
    role: RoleName
    method: str
    path: str
    status: int
    detail: str


class HealthView(View):
    """Status of the server."""

    status: str
    version: str
