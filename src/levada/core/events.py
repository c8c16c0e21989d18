"""What can happen, in batches of columns; one live event is a batch of one.

`at` is when it happened; the engine's clock is the latest of them. Jobs are named by number. Reports about operations
carry the generation they speak of, and those of an old one change nothing. Reports say how things *are* (so many
workers run), not what changed, so that a doubled or late one does no harm.
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
    """An event that makes no sense: it is refused before it changes anything, which is no fault of the engine."""


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    at: float


class JobEvent(_Event, frozen=True, kw_only=True):
    """Something that happened to jobs, one row for each."""

    number: Ints


class JobsSubmitted(_Event, frozen=True, kw_only=True):
    """New jobs; they get the next numbers, in order."""

    jobs: JobBatch


class JobUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """New values for some fields of a job; None leaves a field as it is."""

    number: int
    min: int | None = None
    max: int | None = None
    desired: int | None = None
    priority: int | None = None
    weight: float | None = None
    queue: str | None = None
    #: A `Preemptible`.
    preemptible: int | None = None
    #: Fixes the size inside the job's own range, which grows to include it; a new `min` or `max` ends that.
    fixed: int | None = None
    #: A size that takes a restart is taken at once, though the job has saved nothing or is not preemptible.
    force: bool = False


class JobsUpdated(_Event, frozen=True, kw_only=True):
    """Users changed their jobs."""

    updates: tuple[JobUpdate, ...]


class JobsCancelled(JobEvent, frozen=True, kw_only=True):
    """Users gave up their jobs."""


class JobsSuspended(JobEvent, frozen=True, kw_only=True):
    """Users paused their jobs."""


class JobsResumed(JobEvent, frozen=True, kw_only=True):
    """Users want suspended jobs, or jobs set aside, to go on."""


class WorkersStarted(JobEvent, frozen=True, kw_only=True):
    """So many workers of each job run now, after some came up."""

    generation: Ints
    running: Ints


class WorkersStopped(JobEvent, frozen=True, kw_only=True):
    """So many workers of each job run now, after some left as they were told or had finished."""

    generation: Ints
    running: Ints


class WorkersFailed(JobEvent, frozen=True, kw_only=True):
    """So many workers of each job run now, after the one with *index* was lost or left with an error."""

    generation: Ints
    running: Ints
    index: Ints


class JobsFinished(JobEvent, frozen=True, kw_only=True):
    """Jobs are done, and nothing of these generations runs any more. True whatever generation says so.

    A start or resize of a newer generation is withdrawn: it is stopped before the job counts as succeeded.
    """

    #: None: the current ones, as in logs that do not have it.
    generation: Ints | None = None


class JobsLeft(JobEvent, frozen=True, kw_only=True):
    """Jobs saved and left though nobody had asked; nothing of them runs any more."""

    generation: Ints


class JobsFailed(JobEvent, frozen=True, kw_only=True):
    """Jobs broke; nothing of them runs any more."""

    generation: Ints


class Progress(JobEvent, frozen=True, kw_only=True):
    """How far jobs are, in steps from their start."""

    steps: Floats


class CheckpointSaved(JobEvent, frozen=True, kw_only=True):
    """Jobs could go on from here."""

    generation: Ints


class SavesOnStop(JobEvent, frozen=True, kw_only=True):
    """Jobs save when they are asked to stop: stopping them loses nothing, though they have no checkpoint yet."""

    generation: Ints


class ResizesInPlace(JobEvent, frozen=True, kw_only=True):
    """Jobs turned out to change their size without a restart, and to survive the loss of any worker, the first too."""

    generation: Ints


class ResizeModes(JobEvent, frozen=True, kw_only=True):
    """Whether the backend resizes these jobs in place (1) or restarts them (0), by their framework."""

    in_place: Ints


class JobsRestarted(JobEvent, frozen=True, kw_only=True):
    """All workers of these jobs were stopped and started again, as part of an operation or by the backend itself."""

    generation: Ints


class NodesAdded(_Event, frozen=True, kw_only=True):
    """Machines joined, or came back."""

    nodes: tuple[Node, ...]


class NodesChanged(_Event, frozen=True, kw_only=True):
    """Machines have other devices, health, labels or size than before."""

    nodes: tuple[Node, ...]


class NodesCordoned(_Event, frozen=True, kw_only=True):
    """No new work on these machines, or (cordoned=False) again."""

    names: tuple[str, ...]
    cordoned: bool = True


class NodesDrained(_Event, frozen=True, kw_only=True):
    """No new work on these machines, and who may be stopped leaves them now or as soon as it may; with *force* all."""

    names: tuple[str, ...]
    force: bool = False


class NodesLost(_Event, frozen=True, kw_only=True):
    """Machines are gone, with what ran on them."""

    names: tuple[str, ...]


class NodesRemoved(_Event, frozen=True, kw_only=True):
    """Machines that were lost shall not be spoken of any more; one that joins later is new."""

    names: tuple[str, ...]


class ForeignAppeared(_Event, frozen=True, kw_only=True):
    """Others use something, or a serving pod wants room. Known ids are replaced."""

    foreign: tuple[Foreign, ...]


class ForeignGone(_Event, frozen=True, kw_only=True):
    """They do not any more."""

    ids: tuple[str, ...]


class Released(JobEvent, frozen=True, kw_only=True):
    """What the operation of that generation gives up is free again."""

    generation: Ints


class Running(JobEvent, frozen=True, kw_only=True):
    """The operation of that generation is complete; all workers run where they should."""

    generation: Ints


class OperationFailed(JobEvent, frozen=True, kw_only=True):
    """The operation of that generation was not done."""

    generation: Ints
    why: str = ""


class OperationTimedOut(JobEvent, frozen=True, kw_only=True):
    """No word came of the operation of that generation."""

    generation: Ints


class Paused(JobEvent, frozen=True, kw_only=True):
    """For the operation of that generation training stood still so long, as the workers who went through it say."""

    generation: Ints
    seconds: Floats


class ReservationExpired(_Event, frozen=True, kw_only=True):
    """Room is no longer kept."""

    ids: tuple[str, ...]


class Observed(JobEvent, frozen=True, kw_only=True):
    """All that the backend runs now: after a restart, and from time to time, belief is compared with fact."""

    generation: Ints
    running: Ints


class PolicyChanged(_Event, frozen=True, kw_only=True):
    """Another policy decides from now on."""

    name: str
    options: Mapping[str, Any] = {}


class OptionsChanged(_Event, frozen=True, kw_only=True):
    """The engine's own options; see `engine.options`."""

    options: Mapping[str, Any]


class QueuesChanged(_Event, frozen=True, kw_only=True):
    """All queues, new and old."""

    queues: tuple[Queue, ...]


class PricesChanged(_Event, frozen=True, kw_only=True):
    """$ per GPU and hour, by type."""

    prices: Mapping[str, float]


class BeliefsChanged(_Event, frozen=True, kw_only=True):
    """What is believed of the jobs' speed changed outside the engine."""


class Decided(_Event, frozen=True, kw_only=True):
    """A policy's answer to `Decide`."""

    revision: int
    decision: Decision
    #: The policy's state after it, to be given to the next call.
    state: Any = None
    #: To be told to people; whether that was too long, whoever asked has judged.
    took_s: float = 0.0


class DecideFailed(_Event, frozen=True, kw_only=True):
    """The policy broke."""

    revision: int
    why: str


class Restarted(_Event, frozen=True, kw_only=True):
    """The shell came back after it had ended in the middle of something: what was being decided is asked again."""


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
    | Restarted
    | Tick
)
