"""Read access to an engine, for shells, simulations and commands.

All results are read-only. Structs are copies; arrays are views that are valid until the next event.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from levada.core.assignment import NODE
from levada.core.cluster import Foreign
from levada.core.decision import Reservation
from levada.core.grant import Grant
from levada.core.layout import NOT_ALLOWED
from levada.core.queue import Queue
from levada.core.reasons import Reason
from levada.core.types import Ints
from levada.engine import cluster_queries, job_queries
from levada.engine.admission import most_workers
from levada.engine.cluster_queries import ClusterView, NameList, NodeState, PlaneView, QueueState
from levada.engine.infeasible import why_never
from levada.engine.job_queries import JobState, JobsView, job_state
from levada.engine.options import Options
from levada.engine.reason_text import ReasonText
from levada.engine.state import State
from levada.perf import Beliefs
from levada.policies.protocol import RoundStats
from levada.policies.queued import Queued
from levada.tables.invariants import check_state
from levada.tables.violations import Violation

__all__ = ["ClusterView", "JobState", "JobsView", "NameList", "NodeState", "PlaneView", "Queries", "QueueState"]


class Queries:
    """The read side of an engine."""

    def __init__(self, state: State) -> None:
        # The state, not the engine: a reference cycle would keep the tables of a dropped fork, several MB, until the
        # next full garbage collection.
        self._state = state
        self._jobs: JobsView | None = None
        #: Cached texts of reasons, with their revision.
        self._texts: tuple[int, ReasonText] | None = None
        self.cluster = ClusterView(state)
        #: Held and target devices of jobs.
        self.held, self.target = PlaneView(state, held=True), PlaneView(state, held=False)

    # --- jobs -------------------------------------------------------------------------------------------------------

    @property
    def jobs(self) -> JobsView:
        """All active jobs as columns by slot."""
        table, view = self._state.world.table, self._jobs
        if view is None or not view.is_of(table):
            view = self._jobs = JobsView(table)
        return view

    def job(self, job_id: str) -> JobState | None:
        """An active job; None for ended and unknown jobs."""
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
        return self._state.world.next_number

    def count_granted(self) -> int:
        """The number of jobs with a target."""
        table = self._state.world.table
        return int(np.count_nonzero(table.count.take(table.order)))

    def holders(self) -> list[str]:
        """Ids of the jobs that hold devices, by (submitted, number)."""
        table, ids = self._state.world.table, self._state.world.ids
        return [ids[number] for number in table.number[table.order[table.held[table.order] > 0]].tolist()]

    def positions(self) -> dict[int, int]:
        """The position of each pending job in the policy's order, from 1, by number."""
        return job_queries.positions(self._state)

    def position(self, number: int) -> int | None:
        """The position of one job; None if it is not waiting for devices."""
        return job_queries.position(self._state, self._slot(number))

    def held_grant(self, number: int) -> Grant:
        """The devices that an active job holds."""
        return self.held.grant(self._slot(number))

    def nodes_of(self, number: int) -> set[str]:
        """Nodes on which an active job holds devices."""
        world = self._state.world
        return {world.inventory.nodes[node] for node in world.places(world.held, self._slot(number))[NODE].tolist()}

    def allowed_types(self, number: int) -> frozenset[int]:
        """GPU types that an active job may use."""
        preference = self._state.world.table.preference[:, self._slot(number)]
        return frozenset((preference != NOT_ALLOWED).nonzero()[0].tolist())

    def loses_work(self, number: int) -> bool:
        """Whether any change of an active job is a restart that loses the work of this run."""
        return bool(self._state.restart_loses_work()[self._slot(number)])

    def is_protected(self, number: int) -> bool:
        """Whether a decision must not stop, shrink or move an active job."""
        return bool(self._state.protected()[self._slot(number)])

    def protected(self) -> Ints:
        """Slots of the jobs that a decision must not stop, shrink or move."""
        return self._state.where(self._state.protected())

    def most_workers(self, number: int) -> int:
        """The most workers of an active job on an empty cluster within all limits."""
        return most_workers(self._state, self._slot(number))

    def why_never(self, number: int) -> str:
        """Why the cluster can never hold the minimum of an active job; empty if it can."""
        return why_never(self._state, self._slot(number))

    def reason(self, job_id: str) -> Reason:
        """Why an active job waits or has its size, as one sentence; raises KeyError for other jobs."""
        slot = self._state.world.slot(job_id)
        if slot < 0:
            raise KeyError(job_id)
        if self._texts is None or self._texts[0] != self._state.revision:
            self._texts = self._state.revision, ReasonText(self._state)
        return self._texts[1].of(slot)

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
        return self._state.world.prices

    @property
    def foreign(self) -> Mapping[str, Foreign]:
        """Foreign use, by id."""
        return MappingProxyType(self._state.world.foreign)

    @property
    def reservations(self) -> Mapping[str, Reservation]:
        """Reservations for serving pods, by id."""
        return MappingProxyType(self._state.reservations)

    def is_vacant(self, reservation: Reservation) -> bool:
        """Whether no job holds the devices, CPU or memory of a reservation."""
        return cluster_queries.is_vacant(self._state.world, reservation)

    def free_devices(self, node: str | None, gpu_type: str | None) -> list[tuple[str, str]]:
        """(node, device) of every completely free GPU, optionally of one node and of one type."""
        return cluster_queries.free_devices(self._state.world, node, gpu_type)

    def nodes(self) -> list[NodeState]:
        """All nodes that have not been removed."""
        return cluster_queries.nodes(self._state)

    def queues(self) -> list[QueueState]:
        """All queues, with the GPUs that their jobs hold."""
        return cluster_queries.queues(self._state)

    @property
    def queue_values(self) -> tuple[Queue, ...]:
        """The settings of all queues."""
        return tuple(self._state.world.queues.values)

    # --- decisions and settings -------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The time of the last event."""
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
        """The current policy, which is stateless."""
        return self._state.policy

    @property
    def policy_options(self) -> Mapping[str, Any]:
        """The options of the current policy."""
        return MappingProxyType(dict(self._state.policy_options))

    def round_stats(self) -> RoundStats | None:
        """Statistics of the policy's rounds; None for policies without rounds."""
        return self._state.policy.round_stats(self._state.policy_state)

    @property
    def is_settled(self) -> bool:
        """Whether nothing has changed since the last decision that needs a new one."""
        return self._state.deciding is None and not self._state.dirty

    @property
    def asked_about(self) -> Ints:
        """Numbers of the jobs in the last snapshot for the policy."""
        numbers: Ints = job_queries.read_only(self._state.in_view)
        return numbers

    @property
    def rejections(self) -> int:
        """The number of consecutive rejected decisions."""
        return self._state.rejections

    @property
    def last_rejection(self) -> str:
        """Why the last rejected decision or event was rejected."""
        return self._state.last_rejection

    @property
    def refused(self) -> int:
        """The number of invalid events."""
        return self._state.refused

    # --- beliefs ----------------------------------------------------------------------------------------------------

    @property
    def workloads(self) -> NameList:
        """Workloads by number."""
        return self._state.world.workloads

    def beliefs(self) -> Beliefs:
        """The throughput model after all observations; does not change the state."""
        return self._state.beliefs()

    @property
    def learns(self) -> bool:
        """Whether the throughput model learns from progress."""
        return self._state.perf.learns

    def believes_in(self, model: object) -> bool:
        """Whether *model* is the throughput model itself."""
        return self._state.perf is model

    # --- checks -----------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """The number of job slots and devices, to which the cost of `violations` is proportional."""
        return self._state.world.table.capacity + len(self._state.world.held.owner)

    def violations(self) -> list[Violation]:
        """Violated invariants of the state; empty unless the engine has a bug."""
        state = self._state
        return check_state(state.world, submitted=state.submitted, ended=state.ended)
