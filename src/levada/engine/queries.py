"""What an engine tells of itself: the one way for shells, simulations and commands to read its state.

Nothing that is read here can be changed through it. Structs keep their values; arrays are views without a copy, and
valid until the next event.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from levada.core.cluster import Foreign
from levada.core.decision import Reservation
from levada.core.grant import Grant
from levada.core.layout import NOT_ALLOWED
from levada.core.plane import NODE
from levada.core.queue import Queue
from levada.core.types import Ints
from levada.engine import cluster_queries, job_queries
from levada.engine.admit import most_workers
from levada.engine.cluster_queries import ClusterView, NameList, NodeState, PlaneView, QueueState
from levada.engine.impossible import why_never
from levada.engine.job_queries import JobState, JobsView, job_state
from levada.engine.options import Options
from levada.engine.state import State
from levada.perf import Beliefs
from levada.policies.protocol import RoundStats
from levada.policies.queued import Queued
from levada.tables.invariants import Violation, check_state

if TYPE_CHECKING:
    from levada.engine.engine import Engine

__all__ = ["ClusterView", "JobState", "JobsView", "NameList", "NodeState", "PlaneView", "Queries", "QueueState"]


class Queries:
    """The read side of one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._jobs: JobsView | None = None
        self.cluster = ClusterView(engine)
        #: What jobs use, or have been told to use; and what they should have.
        self.held, self.target = PlaneView(engine, held=True), PlaneView(engine, held=False)

    @property
    def _state(self) -> State:
        return self.engine._state

    # --- jobs -------------------------------------------------------------------------------------------------------

    @property
    def jobs(self) -> JobsView:
        """All active jobs as columns by slot."""
        table, view = self.engine._state.world.table, self._jobs
        if view is None or not view.is_of(table):
            view = self._jobs = JobsView(table)
        return view

    def job(self, job_id: str) -> JobState | None:
        """One active job; None where it is over or was never known."""
        slot = self._state.world.slot(job_id)
        return None if slot < 0 else job_state(self._state.world.table, slot)

    def job_id(self, number: int) -> str:
        """The id of an active job; raises KeyError."""
        return self._state.world.ids[number]

    @property
    def ids(self) -> Mapping[int, str]:
        """Ids of the active jobs by number."""
        return MappingProxyType(self._state.world.ids)

    def number_of(self, job_id: str) -> int | None:
        """The number of an active job."""
        return self._state.world.numbers.get(job_id)

    @property
    def next_number(self) -> int:
        """The number that the next job gets."""
        return self.engine._state.world.next_number

    def holders(self) -> list[str]:
        """Ids of the jobs that hold something, or were told to take it, by (submitted, number)."""
        table, ids = self._state.world.table, self._state.world.ids
        return [ids[number] for number in table.number[table.order[table.held[table.order] > 0]].tolist()]

    def positions(self) -> dict[int, int]:
        """The place of each waiting job in the policy's order, from 1, by number."""
        return job_queries.positions(self._state)

    def position(self, number: int) -> int | None:
        """The same of one job; None where it does not wait in line."""
        return job_queries.position(self._state, self._slot(number))

    def held_grant(self, number: int) -> Grant:
        """What an active job holds."""
        return self.held.grant(self._slot(number))

    def nodes_of(self, number: int) -> set[str]:
        """Nodes on which an active job holds something."""
        world = self._state.world
        return {world.inventory.nodes[node] for node in world.places(world.held, self._slot(number))[NODE].tolist()}

    def allowed_types(self, number: int) -> frozenset[int]:
        """GPU types that an active job may have."""
        preference = self._state.world.table.preference[:, self._slot(number)]
        return frozenset((preference != NOT_ALLOWED).nonzero()[0].tolist())

    def loses_work(self, number: int) -> bool:
        """Whether any change of an active job is a restart from nothing that this run has done."""
        return bool(self._state.restart_loses_work()[self._slot(number)])

    def is_protected(self, number: int) -> bool:
        """Whether a decision may not stop, shrink or move an active job."""
        return bool(self._state.protected()[self._slot(number)])

    def protected(self) -> Ints:
        """Slots of the jobs that a decision may not stop, shrink or move."""
        return self._state.where(self._state.protected())

    def most_workers(self, number: int) -> int:
        """How many workers of an active job its types, its queue and its user's limit could hold at most."""
        return most_workers(self._state, self._slot(number))

    def why_never(self, number: int) -> str:
        """Why no state of the cluster could hold an active job's minimum; empty where one could."""
        return why_never(self._state, self._slot(number))

    def _slot(self, number: int) -> int:
        slot = self._state.world.table.slot_of(number)
        if slot < 0:
            raise KeyError(f"job {number} is not active")
        return slot

    def queue_of(self, job: JobState) -> str:
        """The queue that the job's user named."""
        return self._state.world.queue_names[job.queue_name]

    # --- cluster ----------------------------------------------------------------------------------------------------

    @property
    def prices(self) -> Mapping[str, float]:
        """$ per GPU and hour, by type; another object after each change."""
        return self.engine._state.world.prices

    @property
    def foreign(self) -> Mapping[str, Foreign]:
        """What others use, by id."""
        return MappingProxyType(self._state.world.foreign)

    @property
    def reservations(self) -> Mapping[str, Reservation]:
        """Room that is kept for serving pods, by id."""
        return MappingProxyType(self._state.reservations)

    def is_vacant(self, kept: Reservation) -> bool:
        """Whether none of our jobs is seen in the room that is kept."""
        return cluster_queries.is_vacant(self._state.world, kept)

    def free_devices(self, node: str | None, gpu_type: str | None) -> list[tuple[str, str]]:
        """(node, device) of every GPU that is wholly free, on this node and of this type where given."""
        return cluster_queries.free_devices(self._state.world, node, gpu_type)

    def nodes(self) -> list[NodeState]:
        """All nodes that have not been removed."""
        return cluster_queries.nodes(self._state)

    def queues(self) -> list[QueueState]:
        """All queues, with what their jobs hold."""
        return cluster_queries.queues(self._state)

    @property
    def queue_values(self) -> tuple[Queue, ...]:
        """All queues as they were set."""
        return tuple(self._state.world.queues.values)

    # --- decisions and settings -------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """When the last event was."""
        return self._state.now

    @property
    def revision(self) -> int:
        """The number of events so far."""
        return self._state.revision

    @property
    def options(self) -> Options:
        """The settings."""
        return self._state.options

    @property
    def policy(self) -> Queued[Any]:
        """The policy that decides; it has no state of its own."""
        return self.engine._state.policy

    @property
    def policy_options(self) -> Mapping[str, Any]:
        """What it was made with."""
        return MappingProxyType(dict(self._state.policy_options))

    def round_stats(self) -> RoundStats | None:
        """What the policy tells of its rounds; None where it has none."""
        return self._state.policy.round_stats(self._state.policy_state)

    @property
    def is_settled(self) -> bool:
        """Whether nothing has happened since the last decision that the next one should hear of."""
        return self._state.deciding is None and not self._state.dirty

    @property
    def asked_about(self) -> Ints:
        """Numbers of the jobs that the policy was last asked about."""
        numbers: Ints = job_queries.read_only(self._state.in_view)
        return numbers

    @property
    def rejections(self) -> int:
        """Decisions in a row that were rejected."""
        return self._state.rejections

    @property
    def last_rejection(self) -> str:
        """Why a decision or an event was last rejected."""
        return self._state.last_rejection

    @property
    def refused(self) -> int:
        """Events that made no sense and changed nothing, or not all they should."""
        return self.engine._state.refused

    # --- beliefs ----------------------------------------------------------------------------------------------------

    @property
    def workloads(self) -> NameList:
        """Workloads by number."""
        return self._state.world.workloads

    def beliefs(self) -> Beliefs:
        """The throughput model after all that was seen; asking changes nothing."""
        return self._state.beliefs()

    @property
    def learns(self) -> bool:
        """Whether the throughput model wants to know how far jobs are."""
        return self._state.perf.learns

    def believes_in(self, model: object) -> bool:
        """Whether *model* is the throughput model itself."""
        return self._state.perf is model

    # --- checks -----------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Slots of jobs and devices: what a check of the whole state takes time for."""
        return self._state.world.table.capacity + len(self._state.world.held.owner)

    def violations(self) -> list[Violation]:
        """Broken rules of the state, conservation of jobs among them; empty unless the engine has a fault."""
        state = self._state
        return check_state(state.world, submitted=state.submitted, ended=state.ended)
