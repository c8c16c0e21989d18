"""Interfaces that the HTTP layer needs: `ServiceInterface` and `Keys`.

They return the types of `levada.api.types` and raise only BadInput, NotFound, Refused
and LevadaError; the last means that the server is unavailable.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from levada.api.types import (
    AuditView,
    CurrentPolicyView,
    CurveView,
    DecisionCountView,
    DecisionView,
    EngineFaultView,
    EventView,
    ExplanationView,
    JobView,
    LogLineView,
    NodeView,
    PlanView,
    PolicyView,
    QueueView,
    ReportAnswerView,
    ReservationView,
    SnapshotView,
    TokenView,
    UsageView,
    WhatIfView,
)
from levada.backends.protocol import Socket
from levada.live.store import AuditEntry

Json = dict[str, Any]


class Role(IntEnum):
    """Permissions of a token; each role includes those before it."""

    VIEWER = 1  #: reads everything except tokens
    USER = 2  #: submits, changes and cancels own jobs
    OPERATOR = 3  #: changes all jobs, nodes, queues and the policy
    ADMIN = 4  #: manages tokens

    @property
    def word(self) -> str:
        """Return the role in lower case, as in JSON."""
        return self.name.lower()

    @classmethod
    def of(cls, word: str) -> Role:
        """Return the role for a word such as `viewer`; raises KeyError."""
        return cls[word.upper()]


class Principal(NamedTuple):
    """The authenticated user of a request."""

    user: str
    role: Role
    token: str  #: id of the token, never its secret


class WorkerIdentity(NamedTuple):
    """A worker of a job, identified by its token."""

    job: str
    number: int  #: of the job; a later job may reuse the id, never the number
    name: str  #: of the worker


class SubmissionInterface(Protocol):
    """Submission of jobs, for real or as a forecast."""

    async def submit(
        self, documents: list[Json], *, user: str, key: str | None, audit_entry: AuditEntry | None = None
    ) -> list[JobView]:
        """Accept all jobs or none; the same *key* returns the same jobs, and is Refused with another body.

        If the audit entry *audit_entry* is stored together with the jobs, it is marked as written.
        """
        ...

    async def whatif(self, documents: list[Json], *, user: str, policy: str | None) -> WhatIfView:
        """Forecast these jobs by forward simulation; creates nothing."""
        ...


class JobInterface(Protocol):
    """Reads and changes submitted jobs."""

    def get(self, name: str, *, user: str | None = None) -> JobView:
        """Return the job with this id, unique prefix or last four characters, or *user*'s newest of this workload."""
        ...

    def page(
        self,
        *,
        phases: set[str] | None,
        user: str | None,
        queue: str | None,
        labels: dict[str, str],
        after: str | None,
        limit: int,
    ) -> tuple[list[JobView], str | None]:
        """Return a page of jobs, newest last, and the cursor of the next page; BadInput for an invalid *after*."""
        ...

    def living(self) -> AsyncIterator[list[JobView]]:
        """Yield all active jobs in slices, without queue positions; other requests run in between."""
        ...

    def version(self, job_id: str) -> str:
        """Return a version that changes with every field of the job except its progress."""
        ...

    async def update(self, job_id: str, changes: Json, *, force: bool = False) -> JobView:
        """Change priority, queue, min, max, weight, preemptible; *force*: restart a job without a checkpoint."""
        ...

    async def cancel(self, job_id: str) -> JobView:
        """Cancel a job; Refused if it has ended."""
        ...

    async def suspend(self, job_id: str, *, force: bool = False) -> JobView:
        """Stop a job until it is resumed; Refused if that loses unsaved work, unless *force*."""
        ...

    async def resume(self, job_id: str) -> JobView:
        """Queue a suspended job again."""
        ...

    async def scale(self, job_id: str, workers: int, *, force: bool = False) -> JobView:
        """Fix a job at a size, with *force* at once; `message` says when it takes effect."""
        ...

    async def explain(self, job_id: str) -> ExplanationView:
        """Explain why a job waits or has its size."""
        ...

    def curve(self, job_id: str) -> CurveView:
        """Return the speed of a job's workload by GPU type and size, measured and fitted."""
        ...

    def logs(
        self,
        job_id: str,
        *,
        worker: str | None,
        tail: int | None,
        since: float | None,
        follow: bool,
        previous: bool,
    ) -> AsyncIterator[LogLineView]:
        """Yield lines of output, optionally from *since* (unix time) on."""
        ...


class ClusterInterface(Protocol):
    """Reads and changes nodes, reservations, queues and the policy."""

    def nodes(self) -> list[NodeView]:
        """Return all nodes."""
        ...

    async def cordon(self, node: str, *, cordoned: bool) -> NodeView:
        """Cordon or uncordon a node."""
        ...

    async def drain(self, node: str, *, force: bool) -> NodeView:
        """Cordon a node and preempt its jobs as soon as they may be stopped; with *force* all of them now."""
        ...

    async def remove_node(self, name: str) -> None:
        """Remove a lost node; NotFound, and Refused while it is connected or has jobs."""
        ...

    async def reserve(
        self, *, node: str | None, gpu_type: str | None, gpus: int, seconds: float, user: str
    ) -> ReservationView:
        """Reserve free GPUs for a time."""
        ...

    def queues(self) -> list[QueueView]:
        """Return all queues."""
        ...

    async def put_queue(self, document: Json) -> QueueView:
        """Create or replace a queue."""
        ...

    async def drop_queue(self, name: str) -> None:
        """Remove a queue without jobs."""
        ...

    def policy(self) -> CurrentPolicyView:
        """Return the active policy."""
        ...

    def policies(self) -> list[PolicyView]:
        """Return the installed policies."""
        ...

    async def set_policy(self, name: str, options: Json, *, dry_run: bool = False) -> CurrentPolicyView:
        """Switch the policy, unless *dry_run*; `warnings` lists running jobs that it stops or shrinks."""
        ...

    async def set_rate_limit(self, seconds: float) -> CurrentPolicyView:
        """Set the minimum time between two decisions."""
        ...


class HistoryInterface(Protocol):
    """Reads events, decisions, plans, engine faults and usage."""

    async def events(self, *, job: str | None, after: int, limit: int) -> list[EventView]:
        """Return events after the id *after*, oldest first."""
        ...

    def watch(self, *, after: int | None, job: str | None) -> AsyncIterator[EventView]:
        """Stream the same events as they happen, complete after *after*; None starts now."""
        ...

    def last_event(self) -> int:
        """Return the id of the newest event; 0 before the first."""
        ...

    def decisions(self, limit: int) -> list[DecisionView]:
        """Return the last decisions, newest last."""
        ...

    def decision(self, revision: int) -> DecisionView:
        """Return one decision; NotFound if it is no longer stored."""
        ...

    def decision_tally(self) -> list[DecisionCountView]:
        """Count decisions per policy since the server started."""
        ...

    def faults(self) -> list[EngineFaultView]:
        """Return the last faults of the engine, newest last."""
        ...

    def fault_tally(self) -> dict[str, int]:
        """Count faults of the engine since the server started, by kind."""
        ...

    def plans(self, limit: int) -> list[PlanView]:
        """Return the last plans, newest last."""
        ...

    async def usage(self, by: list[str], since: float) -> list[UsageView]:
        """Sum GPU seconds since *since* (unix time), by user, queue, workload or gpu_type."""
        ...


class WorkerInterface(Protocol):
    """Requests of workers and agents."""

    async def report(self, worker: WorkerIdentity, report: Mapping[str, Any]) -> ReportAnswerView:
        """Take steps, checkpoints and flags of a worker; Refused if it is no longer a worker of its job."""
        ...

    async def identify(self, token: str) -> tuple[str, int, str] | None:
        """Return job, number and name of the worker to which the cluster issued *token*; None if it did not."""
        ...

    def job(self, worker: WorkerIdentity) -> JobView:
        """Return the job of a worker; Refused like `report`."""
        ...

    async def serve_agent(self, socket: Socket) -> None:
        """Serve the connection of another machine's supervisor until either side closes it."""
        ...


class ServiceInterface(Protocol):
    """Everything that users, operators and workers can request, by area."""

    @property
    def submissions(self) -> SubmissionInterface:
        """Submission of jobs."""
        ...

    @property
    def jobs(self) -> JobInterface:
        """Submitted jobs."""
        ...

    @property
    def cluster(self) -> ClusterInterface:
        """Nodes, reservations, queues and the policy."""
        ...

    @property
    def history(self) -> HistoryInterface:
        """Events, decisions and usage."""
        ...

    @property
    def workers(self) -> WorkerInterface:
        """Requests of workers and agents."""
        ...

    def snapshot(self) -> SnapshotView:
        """Return the whole state as one document, for `levada replay`."""
        ...

    def ready(self) -> str:
        """Return "" when the server is ready, else the reason why it is not."""
        ...


class Keys(Protocol):
    """Tokens, hashed at rest, and the audit log."""

    async def create(self, user: str, role: Role, expires_s: float | None) -> tuple[str, str]:
        """Create a token; return its id and its secret, which is not stored."""
        ...

    async def find(self, secret: str) -> Principal | None:
        """Return the owner of a secret; None if it is unknown, expired or revoked. The timing reveals nothing."""
        ...

    async def ls(self) -> list[TokenView]:
        """Return all tokens that are not revoked."""
        ...

    async def revoke(self, token_id: str) -> None:
        """Revoke a token; NotFound."""
        ...

    async def audit(self, audit_entry: AuditEntry) -> None:
        """Store an audit entry, also for a refused write."""
        ...

    async def audits(self, limit: int) -> list[AuditView]:
        """Return the last audit entries, newest last."""
        ...
