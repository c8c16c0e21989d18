"""A script of twenty jobs in the simulator and in a live server: the same decisions and operations.

The simulator determines the time of all events. The live server uses these times: jobs are submitted, cancelled,
suspended and resumed through the service, and outcomes of operations are reported after real processes have done them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from levada.backends.local.backend import LocalBackend
from levada.backends.local.gpus import pretend_nodes
from levada.backends.protocol import Report
from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.cluster import Cluster
from levada.core.commands import Apply, Command, Faulted
from levada.core.plan import Op, OpKind
from levada.engine import Engine, Options
from levada.live.live import Live
from levada.live.manifest import prepare
from levada.live.service import Service
from levada.live.store import Store
from levada.perf import TableModel
from levada.sim.simulation import Costs, Simulation
from tests.live.live_server import ManualClock, document
from tests.timeouts import WAIT_S

#: At least 60 s, so that no timer of the live loop expires within the test.
_OPTIONS = {"rate_limit_s": 60.0, "min_run_s": 300.0, "cooldown_s": 300.0, "op_timeout_s": 3000.0}
_NODES = pretend_nodes([{"a100": 4}, {"v100": 4}])
_BEGIN, _APART = 10_000.0, 257.0
_ACTS = {6: ev.JobsCancelled, 9: ev.JobsSuspended, 14: ev.JobsResumed}


def documents(folder: Path) -> list[dict[str, Any]]:
    """Twenty jobs; each runs until a file with its name exists."""
    jobs = []
    for at in range(20):
        name = f"job-{at:02d}"
        least = 1 + at % 3
        jobs.append(
            document(
                name,
                workers={"min": least, "max": least + at % 4},
                steps=1500 + 450 * (at % 7),
                priority=at % 2,
                preemptible=True,
                checkpoint={"gracePeriod": "5s"},
                run={"command": ["sh", "-c", f"until test -e {folder}/{name}; do sleep 0.2; done"]},
                **({"gpuTypes": ["v100"]} if at % 5 == 0 else {}),
            )
        )
    return jobs


class Batch(NamedTuple):
    """The events of one time, and the number of records after they were handled."""

    at: float
    events: tuple[ev.Event, ...]
    records: int


class EngineRecorder:
    """Records events, decisions and operations of an engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self._handle = engine, engine.handle
        #: Decisions and operations as plain values, without random ids.
        self.records: list[tuple[Any, ...]] = []
        self.events_by_time: list[tuple[float, tuple[ev.Event, ...]]] = []
        self.names: dict[str, str] = {}
        engine.handle = self.handle  # type: ignore[method-assign]

    def handle(self, *events: ev.Event) -> list[Command]:
        """Handle events and record them."""
        ids = self.engine.query.ids
        commands = self._handle(*events)
        assert not any(isinstance(command, Faulted) for command in commands)
        now = self.engine.query.now
        if not all(isinstance(event, ev.Decided) for event in events):
            self.events_by_time.append((now, events))
        for event in events:
            if isinstance(event, ev.Decided):
                self.records.append((now, "decision", *self._rows(event, ids)))
        ops = [op for command in commands if isinstance(command, Apply) for op in self.engine.ops(command.plan)]
        self.records += sorted(_operation(now, op) for op in ops)
        return commands

    def _rows(self, event: ev.Decided, ids: Mapping[int, str]) -> list[tuple[Any, ...]]:
        decision = event.decision
        rows = zip(
            decision.number.tolist(),
            decision.count.tolist(),
            decision.type.tolist(),
            decision.reason.tolist(),
            strict=True,
        )
        return sorted((workload(ids[number]), *rest) for number, *rest in rows if number in ids)


def workload(job: str) -> str:
    """The workload name in a job id."""
    return "-".join(job.split("-")[:2])


def _operation(now: float, op: Op) -> tuple[Any, ...]:
    places = () if op.grant is None else tuple((place.node, place.devices) for place in op.grant.places)
    return (now, "operation", workload(op.job), OpKind.name(op.kind), op.generation, places)


def simulated(documents: list[dict[str, Any]]) -> tuple[list[Batch], list[tuple[Any, ...]]]:
    """Simulate the jobs; return the script and the records of the engine."""
    engine = Engine(cluster=Cluster(nodes=_NODES), options=Options(**_OPTIONS))
    batches: list[Batch] = []
    recorder = EngineRecorder(engine)

    def after_each() -> None:
        batches.extend(Batch(at, events, len(recorder.records)) for at, events in recorder.events_by_time)
        recorder.events_by_time.clear()

    world = Simulation(engine, TableModel(()), Costs(start_s=20.0, resize_s=5.0, stop_s=10.0), after_each)
    for at, job in enumerate(documents):
        now = _BEGIN + _APART * at
        (submission,) = prepare(job, user="ann", now=now, suffix="aaaa")
        world.add(ev.JobsSubmitted(at=now, jobs=JobBatch.of([submission.job])))
    for at, kind in _ACTS.items():
        # The suspended job is the resumed one.
        world.add(kind(at=_BEGIN + _APART * (at + 0.5), number=np.array([6 if at > 6 else 5])))
    world.run()
    return batches, recorder.records


class UnreportingBackend(LocalBackend):
    """Runs jobs, but records their events instead of reporting them."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, _NODES)
        self.done: set[tuple[str, int, int]] = set()

    async def reports(self) -> AsyncIterator[Report]:
        async for report in super().reports():
            for event in report.events:
                generations = getattr(event, "generation", None)
                for row, number in enumerate(getattr(event, "number", np.array([], np.int64)).tolist()):
                    generation = 0 if generations is None else int(generations[row])
                    self.done.add((type(event).__name__, number, generation))
            if False:
                yield report


class LiveDriver:
    """Applies the script to a live server."""

    def __init__(
        self,
        live: Live,
        backend: UnreportingBackend,
        clock: ManualClock,
        recorder: EngineRecorder,
        documents: list[dict[str, Any]],
    ) -> None:
        self.live, self.backend, self.clock, self.recorder, self.documents = live, backend, clock, recorder, documents
        self.service = Service(live)
        self.ids: list[str] = []

    async def until(self, condition: Callable[[], object], what: str) -> None:
        async with asyncio.timeout(2 * WAIT_S):
            try:
                while not condition():
                    await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                raise AssertionError(f"timeout: {what}; last records: {self.recorder.records[-3:]}") from None

    async def play(self, batch: Batch, folder: Path) -> None:
        """Apply a batch to the live server."""
        self.clock.time = batch.at
        progress = tuple(event for event in batch.events if isinstance(event, ev.Progress))
        others = tuple(event for event in batch.events if not isinstance(event, ev.Progress))
        for event in others:
            await self._execute(event, folder)
        self.live.loop.observe(Report(events=progress))
        match others:
            case (ev.JobsSubmitted(),):
                (view,) = await self.service.submissions.submit([self.documents[len(self.ids)]], user="ann", key=None)
                self.ids.append(view["id"])
            case (ev.JobsCancelled() as event,):
                await self.service.jobs.cancel(self._id(event))
            case (ev.JobsSuspended() as event,):
                await self.service.jobs.suspend(self._id(event))
            case (ev.JobsResumed() as event,):
                await self.service.jobs.resume(self._id(event))
            case _:
                assert not any(isinstance(event, ev.JobsSubmitted) for event in others)
                await self.live.loop.apply(*others)
        await self.until(lambda: len(self.recorder.records) >= batch.records, f"records of {batch.at}")

    def _id(self, event: Any) -> str:
        return self.live.loop.records.by_number[int(event.number[0])].id

    async def _execute(self, event: ev.Event, folder: Path) -> None:
        """Wait until real workers have done what *event* reports."""
        if isinstance(event, ev.JobsFinished):
            for number in event.number.tolist():
                (folder / workload(self.live.loop.records.by_number[number].id)).touch()
                await self.until(
                    lambda: any(key[:2] == ("JobsFinished", number) for key in self.backend.done),  # noqa: B023
                    f"the end of {number}",
                )
        elif isinstance(event, ev.Running | ev.Released):
            for number, generation in zip(event.number.tolist(), event.generation.tolist(), strict=True):
                key = (type(event).__name__, number, generation)
                await self.until(lambda: key in self.backend.done, str(key))  # noqa: B023


async def run_live(
    home: Path, documents: list[dict[str, Any]], batches: list[Batch]
) -> tuple[list[tuple[Any, ...]], list[str]]:
    """Run the script in a live server; return its records and the final phases."""
    clock, backend = ManualClock(), UnreportingBackend(home)
    live = Live(await Store.open(f"sqlite:///{home}/levada.db"), backend, clock=clock)
    await live.open(options=_OPTIONS)
    recorder = EngineRecorder(live.loop.engine)
    work = asyncio.create_task(live.loop.run())
    driver = LiveDriver(live, backend, clock, recorder, documents)
    try:
        # A server with new nodes decides at once, before there are jobs.
        await driver.until(lambda: len(recorder.records) == live.loop.decisions, "the first decision")
        recorder.records.clear()
        for batch in batches:
            await driver.play(batch, home)
            if work.done():
                work.result()
        phases = [driver.service.jobs.get(job)["phase"] for job in driver.ids]
    finally:
        live.stop()
        await work
        await backend.stop_all()
        await live.close()
    return recorder.records, phases


async def test_the_same_script_gives_the_same_decisions_and_operations(tmp_path: Path) -> None:
    jobs = documents(tmp_path)
    batches, expected = simulated(jobs)
    kinds = {row[3] for row in expected if row[1] == "operation"}
    assert kinds == {"START", "RESIZE", "STOP"}, "the script has all kinds of operations"
    records, phases = await run_live(tmp_path, jobs, batches)
    assert msgspec.to_builtins(records) == msgspec.to_builtins(expected)
    assert phases == ["Cancelled" if at == 5 else "Succeeded" for at in range(20)]
