"""Events: the inputs of the engine, as batches of columns.

A live event is a batch of one.

`at` is the time of the event; the engine's clock is the latest of them. Jobs are named by number. Reports about
operations carry a generation, and reports of an old generation change nothing. Reports describe a state (4 workers
run), not a change, so that duplicate or late reports do no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from levada.core.batch import JobBatch
from levada.core.cluster import Foreign, Node
from levada.core.decision import Decision
from levada.core.queue import Queue
from levada.core.types import Floats, Ints


class InvalidEvent(ValueError):
    """The event is invalid and changes nothing; this is not a fault of the engine."""


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    at: float


class JobEvent(_Event, frozen=True, kw_only=True):
    """An event about jobs, with one row for each."""

    number: Ints


class JobsSubmitted(_Event, frozen=True, kw_only=True):
    """New jobs, which get the next numbers in order."""

    jobs: JobBatch


class JobUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """New values for fields of a job; None = unchanged."""

    number: int
    min: int | None = None
    max: int | None = None
    desired: int | None = None
    priority: int | None = None
    weight: float | None = None
    queue: str | None = None
    #: A `Preemptible`.
    preemptible: int | None = None
    #: Fixes the size; the range of the job is extended if necessary. A new `min` or `max` ends that.
    fixed: int | None = None
    #: Resize at once, even if the job must restart without a checkpoint or is not preemptible.
    force: bool = False


class JobsUpdated(_Event, frozen=True, kw_only=True):
    """Users changed their jobs."""

    updates: tuple[JobUpdate, ...]


class JobsCancelled(JobEvent, frozen=True, kw_only=True):
    """Users cancelled their jobs."""


class JobsSuspended(JobEvent, frozen=True, kw_only=True):
    """Users suspended their jobs."""


class JobsResumed(JobEvent, frozen=True, kw_only=True):
    """Users resumed suspended jobs, or jobs set aside."""


class WorkersStarted(JobEvent, frozen=True, kw_only=True):
    """The number of running workers of each job, after some started."""

    generation: Ints
    running: Ints


class WorkersStopped(JobEvent, frozen=True, kw_only=True):
    """The number of running workers of each job, after some were stopped or finished."""

    generation: Ints
    running: Ints


class WorkersFailed(JobEvent, frozen=True, kw_only=True):
    """The number of running workers of each job, after worker *index* was lost or failed."""

    generation: Ints
    running: Ints
    index: Ints


class JobsFinished(JobEvent, frozen=True, kw_only=True):
    """Jobs have finished, and no worker of these generations runs. It counts for reports of any generation.

    A start or resize of a newer generation is withdrawn and stopped before the job counts as succeeded.
    """

    #: None = the current ones (older logs).
    generation: Ints | None = None


class JobsLeft(JobEvent, frozen=True, kw_only=True):
    """Jobs saved a checkpoint and exited voluntarily; none of their workers runs."""

    generation: Ints


class JobsFailed(JobEvent, frozen=True, kw_only=True):
    """Jobs failed; none of their workers runs."""

    generation: Ints


class Progress(JobEvent, frozen=True, kw_only=True):
    """Steps that jobs have done in total."""

    steps: Floats


class CheckpointSaved(JobEvent, frozen=True, kw_only=True):
    """Jobs saved a checkpoint."""

    generation: Ints


class SavesOnStop(JobEvent, frozen=True, kw_only=True):
    """Jobs save a checkpoint when they are asked to stop, so that a stop loses no work."""

    generation: Ints


class ResizesInPlace(JobEvent, frozen=True, kw_only=True):
    """Jobs can resize in place and tolerate the loss of any worker, including worker 0."""

    generation: Ints


class ResizeModes(JobEvent, frozen=True, kw_only=True):
    """Whether the backend resizes these jobs in place (1) or by a restart (0)."""

    in_place: Ints


class JobsRestarted(JobEvent, frozen=True, kw_only=True):
    """All workers of these jobs were restarted, by an operation or by the backend itself."""

    generation: Ints


class NodesAdded(_Event, frozen=True, kw_only=True):
    """Nodes joined or came back."""

    nodes: tuple[Node, ...]


class NodesChanged(_Event, frozen=True, kw_only=True):
    """Nodes changed: devices, health, labels, CPU or memory."""

    nodes: tuple[Node, ...]


class NodesCordoned(_Event, frozen=True, kw_only=True):
    """Nodes were cordoned or (cordoned=False) uncordoned."""

    names: tuple[str, ...]
    cordoned: bool = True


class NodesDrained(_Event, frozen=True, kw_only=True):
    """Nodes are being drained: cordoned, and jobs stop as soon as they may; with *force*, all stop at once."""

    names: tuple[str, ...]
    force: bool = False


class NodesLost(_Event, frozen=True, kw_only=True):
    """Nodes are lost, with all workers on them."""

    names: tuple[str, ...]


class NodesRemoved(_Event, frozen=True, kw_only=True):
    """Lost nodes were removed from the cluster; a node that joins later is new."""

    names: tuple[str, ...]


class ForeignAppeared(_Event, frozen=True, kw_only=True):
    """Foreign pods or processes use resources, or serving pods wait for capacity. Known ids are replaced."""

    foreign: tuple[Foreign, ...]


class ForeignGone(_Event, frozen=True, kw_only=True):
    """Foreign pods or processes are gone."""

    ids: tuple[str, ...]


class Released(JobEvent, frozen=True, kw_only=True):
    """The devices that the operation of that generation drops are free."""

    generation: Ints


class Running(JobEvent, frozen=True, kw_only=True):
    """The operation of that generation is complete; all workers run on their target devices."""

    generation: Ints


class OperationFailed(JobEvent, frozen=True, kw_only=True):
    """The operation of that generation failed and was rolled back."""

    generation: Ints
    why: str = ""


class OperationTimedOut(JobEvent, frozen=True, kw_only=True):
    """The operation of that generation was not acknowledged in time."""

    generation: Ints


class Paused(JobEvent, frozen=True, kw_only=True):
    """How long training paused for the operation of that generation, as measured by the workers."""

    generation: Ints
    seconds: Floats


class ReservationExpired(_Event, frozen=True, kw_only=True):
    """Reservations expired."""

    ids: tuple[str, ...]


class Observed(JobEvent, frozen=True, kw_only=True):
    """All jobs that the backend runs now, to reconcile with, after a restart and from time to time."""

    generation: Ints
    running: Ints


class PolicyChanged(_Event, frozen=True, kw_only=True):
    """The policy was changed."""

    name: str
    options: Mapping[str, Any] = {}


class OptionsChanged(_Event, frozen=True, kw_only=True):
    """Options of the engine were changed; see `engine.options`."""

    options: Mapping[str, Any]


class QueuesChanged(_Event, frozen=True, kw_only=True):
    """The queues were changed; contains all of them."""

    queues: tuple[Queue, ...]


class PricesChanged(_Event, frozen=True, kw_only=True):
    """$ per GPU and hour, by type."""

    prices: Mapping[str, float]


class BeliefsChanged(_Event, frozen=True, kw_only=True):
    """The throughput model was changed outside the engine."""


class Decided(_Event, frozen=True, kw_only=True):
    """The policy's answer to `Decide`."""

    revision: int
    decision: Decision
    #: The new state of the policy, for the next call.
    state: Any = None
    #: For reports only; the shell enforces the time limit.
    took_s: float = 0.0


class DecideFailed(_Event, frozen=True, kw_only=True):
    """The policy failed."""

    revision: int
    why: str


class BackendAway(_Event, frozen=True, kw_only=True):
    """The backend cannot be reached: operations cannot be issued, and none is acknowledged."""


class BackendBack(_Event, frozen=True, kw_only=True):
    """The backend can be reached again."""


class Restarted(_Event, frozen=True, kw_only=True):
    """The shell restarted; a pending decision is requested again."""


class Tick(_Event, frozen=True, kw_only=True):
    """Time passed."""


Event: TypeAlias = (
    JobsSubmitted
    | JobsUpdated
    | JobsCancelled
    | JobsSuspended
    | JobsResumed
    | WorkersStarted
    | WorkersStopped
    | WorkersFailed
    | JobsFinished
    | JobsLeft
    | JobsFailed
    | Progress
    | CheckpointSaved
    | SavesOnStop
    | ResizesInPlace
    | ResizeModes
    | JobsRestarted
    | NodesAdded
    | NodesChanged
    | NodesCordoned
    | NodesDrained
    | NodesLost
    | NodesRemoved
    | ForeignAppeared
    | ForeignGone
    | Released
    | Running
    | OperationFailed
    | OperationTimedOut
    | Paused
    | ReservationExpired
    | Observed
    | PolicyChanged
    | OptionsChanged
    | QueuesChanged
    | PricesChanged
    | BeliefsChanged
    | Decided
    | DecideFailed
    | BackendAway
    | BackendBack
    | Restarted
    | Tick
)
