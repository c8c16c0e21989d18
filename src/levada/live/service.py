"""What a user can do, as plain calls; HTTP and the command line come through here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from levada.backends.protocol import AgentHost, Report, Socket
from levada.core import events as ev
from levada.core.job import Job
from levada.engine.queries import JobState
from levada.errors import BadInput, Refused
from levada.live import views
from levada.live.curve import curve
from levada.live.forecast import forecast
from levada.live.intake import prepare
from levada.live.jobs import Jobs
from levada.live.live import Live
from levada.live.machines import Machines
from levada.live.past import Past
from levada.live.records import Record
from levada.live.store import Deed, StoreTrouble
from levada.live.submit_warnings import SubmitWarnings
from levada.plugins import find_policy

#: Jobs whose fate can be asked for at once: a forecast runs the whole cluster ahead.
_MOST_IN_FORECAST = 1000
#: Views that are made in one piece: some milliseconds.
_AT_ONCE = 200
#: Phases of workers that are none any more.
_GONE = ("Exited", "Lost")


class OneWorker(Protocol):
    """A worker, as its token names it."""

    @property
    def job(self) -> str:
        """The id of its job."""

    @property
    def number(self) -> int:
        """The number of its job."""

    @property
    def name(self) -> str:
        """Its own name."""


class Service(Jobs, Machines, Past):
    """One live server, for whoever may ask."""

    def __init__(self, live: Live) -> None:
        super().__init__()
        self.live = live
        self.loop = live.loop
        self.free_name = live.free_name
        self._submit_warnings = SubmitWarnings(live.loop, self._forecast)

    def ready(self) -> str:
        """Empty when it can act, else why not."""
        if why := self.loop.trouble or self.live.unrenewed:
            return why
        try:
            self.live.store.check_room()
        except StoreTrouble as full:
            return str(full)
        return ""

    def size(self) -> int:
        """How large the state is that a decision is about, in jobs and devices."""
        return self.loop.engine.query.size

    async def living(self) -> AsyncIterator[list[dict[str, Any]]]:
        """All jobs that are not over, some at a time: others get their turn in between. No job has its position."""
        records = [record for record in self.loop.records.by_number.values() if record.result is None]
        for begin in range(0, len(records), _AT_ONCE):
            now = self.loop.clock.now()
            views_now = [self.loop.view(record, now, {}) for record in records[begin : begin + _AT_ONCE]]
            yield [view for view in views_now if view["finished"] is None]
            await asyncio.sleep(0)

    async def submit(
        self, documents: list[dict[str, Any]], *, user: str, key: str | None, deed: Deed | None = None
    ) -> list[dict[str, Any]]:
        """As `Submissions.submit`; jobs that cannot start or will be late as things are have `warnings`."""
        return await self._submit_warnings.added(await super().submit(documents, user=user, key=key, deed=deed))

    async def explain(self, job_id: str) -> dict[str, Any]:
        """Why it waits or has this size, and when it should start and end."""
        record = self.loop.records.find(job_id)
        if record.result is not None:
            result = record.result
            return {
                "job": record.id,
                "phase": result["phase"],
                "reason": result["reason"],
                "would_help": [],
                "before": [],
            }
        told = msgspec.to_builtins(self.loop.engine.explain(record.id))
        soon = await self._forecast([record.number])
        return {**told, **soon.get(record.number, {})}

    async def _forecast(
        self, numbers: Sequence[int] | None, jobs: Sequence[Job] = (), policy: str | None = None
    ) -> dict[int, dict[str, Any]]:
        """Looks ahead beside the loop, on a copy of the engine."""
        twin, now = self.loop.engine.fork(), self.loop.clock.now()
        return await asyncio.to_thread(forecast, twin, now, numbers, jobs=jobs, policy=policy)

    def curve(self, job_id: str) -> dict[str, Any]:
        """How fast its workload is by GPU type and size, measured and believed, and what changes of its size cost."""
        return curve(self.loop.records.find(job_id), self.loop.engine.query)

    async def whatif(self, documents: list[dict[str, Any]], *, user: str, policy: str | None) -> dict[str, Any]:
        """What would become of these jobs, and of those that are there, by forward simulation; nothing is created."""
        now, in_place = self.loop.clock.now(), self.loop.backend.capabilities.in_place

        def read() -> list[Job]:
            found: list[Job] = []
            for number, document in enumerate(documents):
                suffix = f"{number:04d}"[-4:]
                found += [each.job for each in prepare(document, user=user, now=now, suffix=suffix, in_place=in_place)]
                if len(found) > _MOST_IN_FORECAST:
                    raise BadInput.one(f"a forecast takes {_MOST_IN_FORECAST:,} jobs at most")
            return found

        jobs = await asyncio.to_thread(read)  # an array may be thousands
        if not jobs:
            raise BadInput.one("no job is given")
        if policy is not None:
            find_policy(policy)
        engine = self.loop.engine
        first = engine.query.next_number
        before = await self._forecast(None)
        after = await self._forecast(None, jobs, policy)
        names = {number: record.id for number, record in self.loop.records.by_number.items()}
        names |= {first + at: job.id for at, job in enumerate(jobs)}
        fresh = {first + at for at in range(len(jobs))}
        others = []
        for number, told in after.items():
            if number in fresh or told == before.get(number):
                continue
            others.append({"job": names.get(number, str(number)), "before": before.get(number), "after": told})
        return {
            "policy": policy or engine.query.policy.name,
            "now": views.moment(now),
            "jobs": [{"job": names[number], **after.get(number, {})} for number in sorted(fresh)],
            "others": others,
        }

    def snapshot(self) -> dict[str, Any]:
        """The whole state as one document."""
        now = self.loop.clock.now()
        places = self.loop.engine.query.positions()
        return {
            "time": views.moment(now),
            "revision": self.loop.engine.query.revision,
            "policy": self.policy(),
            "nodes": self.nodes(),
            "queues": self.queues(),
            "jobs": [
                {**self.loop.view(record, now, places), "document": record.about.document}
                for record in self.loop.records.by_id.values()
                if record.result is None
            ],
        }

    async def worker_report(self, worker: OneWorker, report: dict[str, Any]) -> dict[str, Any]:
        """What a worker tells of itself; Refused where it is none of its job's any more."""
        record, job = self._member_of(worker)
        number, generations = np.array([record.number]), np.array([job.generation])
        events: list[ev.Event] = []
        steps = report.get("step")
        if isinstance(steps, int | float) and not isinstance(steps, bool) and 0 <= steps < float("inf"):
            events.append(ev.Progress(at=0.0, number=number, steps=np.array([float(steps)])))
        saves = report.get("saves")
        if isinstance(saves, int) and saves > 0 and not job.saved:
            events.append(ev.CheckpointSaved(at=0.0, number=number, generation=generations))
        flags, launch = report.get("flags"), record.about.launch
        able = launch is not None and launch.framework in self.loop.backend.capabilities.in_place_with_runtime
        if able and isinstance(flags, int) and flags & 2 and job.resizes_in_place == 0:
            events.append(ev.ResizesInPlace(at=0.0, number=number, generation=generations))
        self.loop.hear(Report(events=tuple(events)))
        steps = None if record.about.launch is None else record.about.launch.granted_steps
        return {} if steps is None else {"lease": {"total_steps": steps}}

    def worker_job(self, worker: OneWorker) -> dict[str, Any]:
        """The job of a worker; Refused as above."""
        return self.job(self._member_of(worker)[0].id)

    def _member_of(self, worker: OneWorker) -> tuple[Record, JobState]:
        """The very job of a worker that is a member of it now; survivors of a resize are, whenever they began.

        One whose machine is silent is still a member, until it counts as lost. It is none from then on, though its
        machine should come back before anybody has told it to stop: its job has nothing on that machine any more.
        """
        query = self.loop.engine.query
        record, job = self.loop.records.by_id.get(worker.job), query.job(worker.job)
        if record is None or record.number != worker.number or job is None:
            raise Refused(f"{worker.job} is over for this worker; leave")
        has = query.nodes_of(job.number)
        seen = [each for each in self.loop.backend.workers(record.id) if each.name == worker.name]
        if not any(each.phase not in _GONE and each.node in has for each in seen):
            raise Refused(f"{worker.name} is no worker of {record.id} any more; leave")
        return record, job

    async def serve_agent(self, socket: Socket) -> None:
        """Speaks with the supervisor of another machine until one of both goes."""
        backend = self.loop.backend
        if not isinstance(backend, AgentHost):
            raise Refused("this server's backend takes no agents")
        await backend.serve_agent(socket)
