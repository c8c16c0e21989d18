"""What the HTTP layer needs of the rest: a `Service` that does what users ask for, and `Keys` that knows who they are.

Plain values go in and out, those of the interface. All of it raises only BadInput, NotFound, Refused and LevadaError;
the last means that the server itself cannot answer now.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from levada.backends.protocol import Socket
from levada.live.store import Deed

Json = dict[str, Any]


class Role(IntEnum):
    """What a token allows; each role may do all that the ones before it may."""

    VIEWER = 1  #: sees everything but tokens
    USER = 2  #: and submits, changes and cancels jobs of their own
    OPERATOR = 3  #: and those of others, nodes, queues and the policy
    ADMIN = 4  #: and gives out tokens

    @property
    def word(self) -> str:
        """The role as people write it."""
        return self.name.lower()

    @classmethod
    def of(cls, word: str) -> Role:
        """The role of a word such as `viewer`; raises KeyError."""
        return cls[word.upper()]


class Principal(NamedTuple):
    """Who asks, by their token."""

    user: str
    role: Role
    token: str  #: id of the token, never its secret


class Worker(NamedTuple):
    """A worker of a job, by the token it was started with."""

    job: str
    number: int  #: of the job: another one may have its id later
    name: str  #: of the worker, for life


class Service(Protocol):
    """What a user can do."""

    # -------------------------------------------------------------------------------------------------------- jobs
    async def submit(
        self, documents: list[Json], *, user: str, key: str | None, deed: Deed | None = None
    ) -> list[Json]:
        """Takes jobs, all or none; the same *key* again gives the same answer, with another body it is Refused.

        A *deed* that it has written down together with the jobs is marked so.
        """
        ...

    def job(self, name: str, *, user: str | None = None) -> Json:
        """The job of this id, unambiguous prefix, last four characters, or *user*'s newest of this workload."""
        ...

    def jobs(
        self,
        *,
        phases: set[str] | None,
        user: str | None,
        queue: str | None,
        labels: dict[str, str],
        after: str | None,
        limit: int,
    ) -> tuple[list[Json], str | None]:
        """A page of jobs, newest last, and where the next page begins; BadInput for an *after* nobody gave out."""
        ...

    def living(self) -> AsyncIterator[list[Json]]:
        """All jobs that are not over, some at a time: others get their turn in between. No job has its position."""
        ...

    def version(self, job_id: str) -> str:
        """Changes whenever the job's view changes in substance, which its progress does not."""
        ...

    async def update(self, job_id: str, changes: Json, *, force: bool = False) -> Json:
        """Changes priority, queue, min, max, weight, preemptible; with *force* a new range restarts an unsaved job."""
        ...

    async def cancel(self, job_id: str) -> Json:
        """Ends a job for good; one that is over already is Refused."""
        ...

    async def suspend(self, job_id: str, *, force: bool = False) -> Json:
        """Stops a job until it is resumed; Refused where that loses unsaved work, unless *force*."""
        ...

    async def resume(self, job_id: str) -> Json:
        """Lets a suspended job wait for GPUs again."""
        ...

    async def scale(self, job_id: str, workers: int, *, force: bool = False) -> Json:
        """Fixes a job at a size, with *force* at once; `message` of the answer says when it has it."""
        ...

    async def explain(self, job_id: str) -> Json:
        """Why it waits or has this size."""
        ...

    def curve(self, job_id: str) -> Json:
        """How fast it is by GPU type and size, measured and believed: `{"points": […], "costs": […], …}`."""
        ...

    async def whatif(self, documents: list[Json], *, user: str, policy: str | None) -> Json:
        """What would become of these jobs, by forward simulation; nothing is created."""
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
    ) -> AsyncIterator[Json]:
        """Lines of output, all or those since a moment (unix time): `{"worker", "time", "text"}`."""
        ...

    # ------------------------------------------------------------------------------------------ machines and queues
    def nodes(self) -> list[Json]:
        """All nodes: `{"name", "phase", "gpus": {type: {"total", "used"}}, "jobs", …}`."""
        ...

    async def cordon(self, node: str, *, cordoned: bool) -> Json:
        """No new work on a node, or again."""
        ...

    async def drain(self, node: str, *, force: bool) -> Json:
        """No new work on a node, and who may be stopped leaves it, now or as soon as it may; with *force* all do."""
        ...

    async def remove_node(self, name: str) -> None:
        """Forgets a node that is lost; NotFound, and Refused while it is there or has jobs."""
        ...

    async def reserve(self, *, node: str | None, gpu_type: str | None, gpus: int, seconds: float, user: str) -> Json:
        """Keeps GPUs free of jobs for a time."""
        ...

    def queues(self) -> list[Json]:
        """All queues."""
        ...

    async def put_queue(self, document: Json) -> Json:
        """Makes or changes a queue."""
        ...

    async def drop_queue(self, name: str) -> None:
        """Removes a queue that nobody uses."""
        ...

    # ------------------------------------------------------------------------------------------------------- policy
    def policy(self) -> Json:
        """Who decides: `{"name", "options", "rate_limit_s"}`."""
        ...

    def policies(self) -> list[Json]:
        """The policies at hand: `{"name", "aliases", "text"}`."""
        ...

    async def set_policy(self, name: str, options: Json, *, dry_run: bool = False) -> Json:
        """Lets another policy decide; `warnings` tell which running jobs it cuts. With *dry_run* nothing changes."""
        ...

    async def set_rate_limit(self, seconds: float) -> Json:
        """The least time between two decisions."""
        ...

    # ------------------------------------------------------------------------------------------------ what happened
    async def history(self, *, job: str | None, after: int, limit: int) -> list[Json]:
        """Events after this id, oldest first: `{"id", "time", "type", "job", "text", …}`."""
        ...

    def watch(self, *, after: int | None, job: str | None) -> AsyncIterator[Json]:
        """The same events as they come, none missing after *after*; None begins now. Closed when the client goes."""
        ...

    def last_event(self) -> int:
        """Id of the newest event; 0 before the first."""
        ...

    def decisions(self, limit: int) -> list[Json]:
        """The last decisions, newest last."""
        ...

    def decision(self, revision: int) -> Json:
        """One of them, with its reasons."""
        ...

    def decision_tally(self) -> list[Json]:
        """What each policy did since the server started: `{"policy", "made", "failed", "seconds"}`."""
        ...

    def faults(self) -> list[Json]:
        """The last faults of the engine, newest last: `{"kind", "error", "traceback", "times", "first", "last", …}`."""
        ...

    def fault_tally(self) -> dict[str, int]:
        """Faults of the engine since the server started, by kind."""
        ...

    def plans(self, limit: int) -> list[Json]:
        """The last plans, newest last."""
        ...

    async def usage(self, by: list[str], since: float) -> list[Json]:
        """GPU seconds since a moment (unix time), by user, queue, workload or gpu_type."""
        ...

    def snapshot(self) -> Json:
        """The whole state as one document, for `levada replay`."""
        ...

    def ready(self) -> str:
        """Empty when it can act, else why not."""
        ...

    # ------------------------------------------------------------------------------------------- workers and agents
    async def worker_report(self, worker: Worker, report: Json) -> Json:
        """What a worker tells of itself (`step`, `saves`, `flags`); Refused where it is none of its job's any more."""
        ...

    def worker_job(self, worker: Worker) -> Json:
        """The job of a worker; Refused as above."""
        ...

    async def serve_agent(self, socket: Socket) -> None:
        """Speaks with the supervisor of another machine until one of both goes."""
        ...


class Keys(Protocol):
    """Tokens, hashed at rest, and the audit log."""

    async def create(self, user: str, role: Role, expires_s: float | None) -> tuple[str, str]:
        """A new token's id and secret; the secret is told only now."""
        ...

    async def find(self, secret: str) -> Principal | None:
        """Who has this secret; None for one that is unknown, over or revoked. Takes the same time for all."""
        ...

    async def ls(self) -> list[Json]:
        """All tokens: `{"id", "user", "role", "created", "expires", "last_used"}`."""
        ...

    async def revoke(self, token_id: str) -> None:
        """Ends a token; NotFound."""
        ...

    async def audit(self, deed: Deed) -> None:
        """Notes a write, also one that was refused."""
        ...

    async def audits(self, limit: int) -> list[Json]:
        """The last notes, newest last: `{"time", "user", "role", "method", "path", "status", "detail"}`."""
        ...
