"""Requests of workers and agents: progress reports, lookup of the own job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

import numpy as np

from levada.api.types import JobView, ReportAnswerView, WorldView
from levada.backends.protocol import AgentHost, Identity, Report, Socket
from levada.core import events as ev
from levada.engine.queries import JobState
from levada.errors import Refused
from levada.live.loop import Loop
from levada.live.records import JobRecord

#: Phases of workers that have ended.
_GONE = ("Exited", "Lost")
#: Bit of a report's `flags`: the worker can resize in place.
_CAN_RESIZE = 2
#: Times for which the owner of a token is cached, and for which it is not asked for again if there is none.
_IDENTITY_S, _UNKNOWN_S = 60.0, 5.0
#: The most tokens in the cache.
_MAX_IDENTITIES = 10_000


class OneWorker(Protocol):
    """Identity of a worker, as its token states it."""

    @property
    def job(self) -> str:
        """Id of the worker's job."""

    @property
    def number(self) -> int:
        """Number of the job; a later job may reuse the id, never the number."""

    @property
    def name(self) -> str:
        """Name of the worker within its job."""


class WorkerService:
    """Requests that are authenticated by a worker's token, and connections of agents."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        #: Workers by token, and until when that counts.
        self._identities: dict[str, tuple[Identity | None, float]] = {}

    async def report(self, worker: OneWorker, report: Mapping[str, Any]) -> ReportAnswerView:
        """Take steps, checkpoints and flags of a worker; Refused if it is no longer a worker of its job.

        The answer has `lease.total_steps` if the job was granted a fixed number of steps, and `world` if the backend
        tells workers of resizes this way.
        """
        record, job = self._membership(worker)
        number, generations = np.array([record.number]), np.array([job.generation])
        events: list[ev.Event] = []
        steps = report.get("step")
        if isinstance(steps, int | float) and not isinstance(steps, bool) and 0 <= steps < float("inf"):
            events.append(ev.Progress(at=0.0, number=number, steps=np.array([float(steps)])))
        saves = report.get("saves")
        if isinstance(saves, int) and saves > 0 and not job.saved:
            events.append(ev.CheckpointSaved(at=0.0, number=number, generation=generations))
        flags, launch = report.get("flags"), record.about.launch
        able = launch is not None and launch.framework in self._loop.backend.capabilities.in_place_with_runtime
        if able and isinstance(flags, int) and flags & _CAN_RESIZE and job.resizes_in_place == 0:
            events.append(ev.ResizesInPlace(at=0.0, number=number, generation=generations))
        self._loop.observe(Report(events=tuple(events)))
        answer: ReportAnswerView = {}
        if launch is not None and launch.granted_steps is not None:
            answer["lease"] = {"total_steps": launch.granted_steps}
        if (world := self._loop.backend.world(record.id)) is not None:
            answer["world"] = cast(WorldView, world)
        return answer

    async def identify(self, token: str) -> tuple[str, int, str] | None:
        """Return job, number and name of the worker to which the cluster issued *token*; None if it did not.

        Answers are cached for 60 s, unknown tokens for 5 s: the cluster is asked over the network.
        """
        now = self._loop.clock.now()
        known = self._identities.get(token)
        if known is None or known[1] < now:
            if len(self._identities) >= _MAX_IDENTITIES:
                self._identities.clear()
            identity = await self._loop.backend.who(token)
            known = identity, now + (_UNKNOWN_S if identity is None else _IDENTITY_S)
            self._identities[token] = known
        identity = known[0]
        record = None if identity is None else self._loop.records.by_id.get(identity.job)
        return None if identity is None or record is None else (record.id, record.number, identity.worker)

    def job(self, worker: OneWorker) -> JobView:
        """Return the job of a worker; Refused like `report`."""
        return self._loop.view(self._membership(worker)[0])

    def _membership(self, worker: OneWorker) -> tuple[JobRecord, JobState]:
        """Return the job that a worker belongs to now; survivors of a resize belong to it, too.

        A worker on a silent machine belongs to its job until it counts as lost. From then on it does not, even if its
        machine returns before the worker is stopped: the job holds nothing on that machine any more.
        """
        query = self._loop.engine.query
        record, job = self._loop.records.by_id.get(worker.job), query.job(worker.job)
        if record is None or record.number != worker.number or job is None:
            raise Refused(f"job {worker.job} has ended or was replaced; exit")
        nodes = query.nodes_of(job.number)
        same_name = [status for status in self._loop.backend.workers(record.id) if status.name == worker.name]
        if not any(status.phase not in _GONE and status.node in nodes for status in same_name):
            raise Refused(f"{worker.name} is no longer a worker of {record.id}; leave")
        return record, job

    async def serve_agent(self, socket: Socket) -> None:
        """Serve the connection of another machine's supervisor until either side closes it."""
        backend = self._loop.backend
        if not isinstance(backend, AgentHost):
            raise Refused("the backend of this server does not accept agents")
        await backend.serve_agent(socket)
