"""A fake backend in memory that completes every operation at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import numpy as np

from levada.backends.protocol import (
    Capabilities,
    ClusterBackend,
    Launch,
    LogLine,
    Note,
    Observation,
    Report,
    Seen,
    WorkerSeen,
)
from levada.core import events as ev
from levada.core.cluster import Cluster, Foreign, Node
from levada.core.plan import Op, OpKind


class FakeMachines:
    """The machines and their running jobs, which outlive a server."""

    def __init__(self, nodes: Mapping[str, Mapping[str, int]] | None = None) -> None:
        given = {"n0": {"v100": 4}, "n1": {"k80": 4}} if nodes is None else nodes
        self.cluster = Cluster(nodes=tuple(Node.of(name, gpus) for name, gpus in given.items()))
        self.runs: dict[str, Seen] = {}
        #: Names of workers by job; remaining workers keep their names in a resize.
        self.names: dict[str, list[str]] = {}
        #: Places by job.
        self.places: dict[str, list[str]] = {}
        self.taken: list[Op] = []
        self.epoch = 0
        #: Numbers of jobs that finished while no server ran.
        self.ended: list[int] = []


class FakeBackend(ClusterBackend):
    """The backend of one server on these machines."""

    capabilities = Capabilities(in_place_with_runtime=frozenset({"plain"}))

    def __init__(self, machines: FakeMachines, *, answers: bool = True) -> None:
        self.machines, self.answers = machines, answers
        self._reports: asyncio.Queue[Report] = asyncio.Queue()

    async def open(self, epoch: int, foreign: Sequence[Foreign] = ()) -> Observation:
        self.machines.epoch = max(self.machines.epoch, epoch)
        ended, self.machines.ended = tuple(self.machines.ended), []
        report = Report(events=tuple(ev.JobsFinished(at=0.0, number=np.array([number])) for number in ended))
        return Observation(report=report, running=dict(self.machines.runs), cluster=self.machines.cluster)

    async def stop_all(self) -> None:
        self.machines.runs.clear()
        self.machines.names.clear()

    async def close(self) -> None:
        pass

    async def cluster(self) -> Cluster:
        return self.machines.cluster

    async def running(self) -> Mapping[str, Seen]:
        return dict(self.machines.runs)

    async def apply(self, op: Op, launch: Launch | None) -> None:
        machines = self.machines
        before = machines.runs.get(op.job)
        if before is not None and before.generation > op.generation:
            return
        machines.taken.append(op)
        if not self.answers:
            return
        if op.kind == OpKind.STOP:
            machines.runs.pop(op.job, None)
            self.report(ev.Released(at=0.0, **_one(op)))
        else:
            assert launch is not None
            assert op.grant is not None
            machines.runs[op.job] = Seen(number=op.number, generation=op.generation, running=op.grant.workers)
            there = machines.names.get(op.job, []) if op.kind == OpKind.RESIZE else []
            size = op.grant.workers
            fresh = [f"g{op.generation}-{index}" for index in range(len(there), size)]
            machines.names[op.job] = there[:size] + fresh
            machines.places[op.job] = [place.node for place in op.grant.places if place.group == "worker"]
            self.report(ev.Running(at=0.0, **_one(op)))

    def report(self, *events: ev.Event, notes: tuple[Note, ...] = ()) -> None:
        """Report events."""
        self._reports.put_nowait(Report(events=events, notes=notes))

    def finish(self, job: str) -> None:
        """Finish a job."""
        self.report(ev.JobsFinished(at=0.0, number=np.array([self.machines.runs.pop(job).number])))

    async def reports(self) -> AsyncIterator[Report]:
        while True:
            yield await self._reports.get()

    def workers(self, job: str) -> list[WorkerSeen]:
        names = zip(self.machines.names.get(job, []), self.machines.places.get(job, []), strict=False)
        phase = "Running" if job in self.machines.runs else "Exited"
        return [
            WorkerSeen(name=name, index=index, node=node, devices=(), phase=phase)
            for index, (name, node) in enumerate(names)
        ]

    async def logs(self, job: str, **_: Any) -> AsyncIterator[LogLine]:
        yield LogLine(worker="g1-0", at=1.0, text=f"{job} says hello")

    async def forget(self, job: str) -> None:
        self.machines.runs.pop(job, None)


def _one(op: Op) -> dict[str, Any]:
    return {"number": np.array([op.number]), "generation": np.array([op.generation])}
