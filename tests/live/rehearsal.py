"""A backend that does as it is told at once, in memory: what is left of a live server without processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import numpy as np

from levada.backends.protocol import Capabilities, Launch, LogLine, Note, Observation, Report, Seen, WorkerSeen
from levada.core import events as ev
from levada.core.cluster import Cluster, Foreign, Node
from levada.core.plan import Op, OpKind


class Stage:
    """What outlives a server: the machines and what runs on them."""

    def __init__(self, nodes: Mapping[str, Mapping[str, int]] | None = None) -> None:
        given = {"n0": {"v100": 4}, "n1": {"k80": 4}} if nodes is None else nodes
        self.cluster = Cluster(nodes=tuple(Node.of(name, gpus) for name, gpus in given.items()))
        self.runs: dict[str, Seen] = {}
        #: Names of workers, by job: those who stay when it is resized keep theirs.
        self.names: dict[str, list[str]] = {}
        #: Where they are, by job.
        self.places: dict[str, list[str]] = {}
        self.taken: list[Op] = []
        self.epoch = 0
        #: Numbers of jobs that were done while no server watched.
        self.ended: list[int] = []


class Rehearsal:
    """One server's view of a stage."""

    capabilities = Capabilities(in_place_with_runtime=frozenset({"plain"}))

    def __init__(self, stage: Stage, *, answers: bool = True) -> None:
        self.stage, self.answers = stage, answers
        self._reports: asyncio.Queue[Report] = asyncio.Queue()

    async def open(self, epoch: int, foreign: Sequence[Foreign] = ()) -> Observation:
        self.stage.epoch = max(self.stage.epoch, epoch)
        ended, self.stage.ended = tuple(self.stage.ended), []
        report = Report(events=tuple(ev.JobsFinished(at=0.0, number=np.array([number])) for number in ended))
        return Observation(report=report, running=dict(self.stage.runs), cluster=self.stage.cluster)

    async def stop_all(self) -> None:
        self.stage.runs.clear()
        self.stage.names.clear()

    async def close(self) -> None:
        pass

    async def cluster(self) -> Cluster:
        return self.stage.cluster

    async def running(self) -> Mapping[str, Seen]:
        return dict(self.stage.runs)

    async def apply(self, op: Op, launch: Launch | None) -> None:
        stage = self.stage
        before = stage.runs.get(op.job)
        if before is not None and before.generation > op.generation:
            return
        stage.taken.append(op)
        if not self.answers:
            return
        if op.kind == OpKind.STOP:
            stage.runs.pop(op.job, None)
            self.report(ev.Released(at=0.0, **_one(op)))
        else:
            assert launch is not None
            assert op.grant is not None
            stage.runs[op.job] = Seen(number=op.number, generation=op.generation, running=op.grant.workers)
            there = stage.names.get(op.job, []) if op.kind == OpKind.RESIZE else []
            size = op.grant.workers
            fresh = [f"g{op.generation}-{index}" for index in range(len(there), size)]
            stage.names[op.job] = there[:size] + fresh
            stage.places[op.job] = [place.node for place in op.grant.places if place.group == "worker"]
            self.report(ev.Running(at=0.0, **_one(op)))

    def report(self, *events: ev.Event, notes: tuple[Note, ...] = ()) -> None:
        """Something happens."""
        self._reports.put_nowait(Report(events=events, notes=notes))

    def finish(self, job: str) -> None:
        """A job is done."""
        self.report(ev.JobsFinished(at=0.0, number=np.array([self.stage.runs.pop(job).number])))

    async def reports(self) -> AsyncIterator[Report]:
        while True:
            yield await self._reports.get()

    def workers(self, job: str) -> list[WorkerSeen]:
        names = zip(self.stage.names.get(job, []), self.stage.places.get(job, []), strict=False)
        phase = "Running" if job in self.stage.runs else "Exited"
        return [
            WorkerSeen(name=name, index=index, node=node, devices=(), phase=phase)
            for index, (name, node) in enumerate(names)
        ]

    async def logs(self, job: str, **_: Any) -> AsyncIterator[LogLine]:
        yield LogLine(worker="g1-0", at=1.0, text=f"{job} says hello")

    async def forget(self, job: str) -> None:
        self.stage.runs.pop(job, None)


def _one(op: Op) -> dict[str, Any]:
    return {"number": np.array([op.number]), "generation": np.array([op.generation])}
