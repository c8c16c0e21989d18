"""What the server answers, as types. Answers stay plain dicts, so that what a newer server adds is not lost."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

Json = dict[str, Any]

#: Phases after which nothing happens to a job any more.
OVER = frozenset({"Succeeded", "Failed", "Cancelled"})


class Reason(TypedDict):
    """Why a job waits or is as it is."""

    code: str
    text: str


class Progress(TypedDict):
    """How far a job is, in steps; rate is steps per second."""

    step: float | None
    total: float | None
    rate: float | None


class WorkerView(TypedDict):
    """One worker of a job."""

    index: int
    node: str
    devices: list[str]
    phase: str


class Job(TypedDict):
    """A job. Times are RFC 3339 in UTC, durations seconds; what is not known is None."""

    id: str
    name: str
    workload: str
    kind: str
    user: str
    queue: str
    priority: int
    phase: str
    reason: Reason | None
    position: int | None
    gpus: float
    min: int
    max: int
    #: The size its user fixed it at; None = any of its range.
    fixed: int | None
    #: `auto`, True or False, as in its job file.
    preemptible: str | bool
    gpu_type: str | None
    nodes: list[str]
    workers: list[WorkerView]
    generation: int
    progress: Progress | None
    eta_s: float | None
    submitted: str
    started: str | None
    finished: str | None
    waiting_s: float
    running_s: float
    gpu_seconds: float
    restarts: int
    resizes: int
    moves: int
    exit_code: int | None
    labels: dict[str, str]
    gpus_per_worker: float
    #: Which one of an array it is.
    array_index: int | None
    #: What its workers run, shortened, and the folder that they start in.
    command: str | None
    workdir: str | None
    retries: int
    #: How many of its retries are used.
    retried: int
    #: After a change of its size: when the job has it, and what it would lose if it had to have it now.
    message: NotRequired[str | None]
    unsaved: NotRequired[str | None]
    #: Of a job that was just submitted: why it cannot start as things are, or will miss its deadline.
    warnings: NotRequired[list[str]]


class CurvePoint(TypedDict):
    """The speed of a workload with so many workers of a GPU type, in steps per second.

    Speed-ups are relative to one worker of that type. What was not measured is None; what is believed all the same has
    a confidence below 1.
    """

    gpu_type: str
    workers: int
    measured: float | None
    fitted: float
    measured_speedup: float | None
    speedup: float
    confidence: float
    seconds: float | None


class CurveCost(TypedDict):
    """Seconds without progress at a start, resize or stop, and how often that was seen."""

    change: str
    seconds: float
    times: int


class Curve(TypedDict):
    """What was learned of the speed of a job's workload; `now` is what the job has."""

    job: str
    workload: str
    now: dict[str, Any] | None
    points: list[CurvePoint]
    costs: list[CurveCost]


class Event(TypedDict):
    """Something that happened; more fields may follow, by type."""

    id: int
    time: str
    type: str
    job: str | None
    text: str


class LogLine(TypedDict):
    """One line of a worker's output."""

    worker: str
    time: str | None
    text: str


class Amount(TypedDict):
    """GPUs of one type."""

    total: int
    used: int


class Node(TypedDict, total=False):
    """A machine; its phase is Ready, Cordoned or Lost."""

    name: str
    phase: str
    gpus: dict[str, Amount]
    cpu: float | None
    memory_mib: int | None
    labels: dict[str, str]
    jobs: list[str]
    #: While it is drained: jobs that stay for now (`job`) and the reason (`why`); else None.
    draining: list[dict[str, str]] | None


class Queue(TypedDict, total=False):
    """A queue."""

    name: str
    parent: str | None
    weight: float
    guaranteed: dict[str, int]
    limit: dict[str, int]
    borrow: bool
    used: dict[str, float]
    running: int
    waiting: int


class Token(TypedDict, total=False):
    """A token; its secret is in `token`, once, when it is made."""

    id: str
    token: str
    user: str
    role: str
    created: str
    expires: str | None
    last_used: str | None
