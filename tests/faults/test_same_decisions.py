"""One script of twenty jobs, in the simulator and live with real processes: the same decisions, the same operations.

The simulator says when what happens. Live, the clock is the script's, jobs are submitted, cancelled, suspended and
resumed through the service, and what becomes of operations is told when the processes of this machine have really
done it, at the simulator's times.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from levada.backends.local.backend import LocalBackend
from levada.backends.local.devices import pretend_nodes
from levada.backends.protocol import Report
from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.cluster import Cluster
from levada.core.commands import Apply, Command, Faulted
from levada.core.plan import Op, OpKind
from levada.engine import Engine, Options
from levada.live.intake import prepare
from levada.live.live import Live
from levada.live.service import Service
from levada.live.store import Store
from levada.perf import TableModel
from levada.sim.simulation import Costs, Simulation
from tests.live.house import document
from tests.patience import WAIT_S

#: A minute and more: no timer of the live loop rings by itself within the test.
_OPTIONS = {"rate_limit_s": 60.0, "min_run_s": 300.0, "cooldown_s": 300.0, "op_timeout_s": 3000.0}
_NODES = pretend_nodes([{"a100": 4}, {"v100": 4}])
_BEGIN, _APART = 10_000.0, 257.0
_ACTS = {6: ev.JobsCancelled, 9: ev.JobsSuspended, 14: ev.JobsResumed}


def documents(folder: Path) -> list[dict[str, Any]]:
    """Twenty jobs; each runs until there is a file of its name."""
    found = []
    for at in range(20):
        name = f"job-{at:02d}"
        least = 1 + at % 3
        found.append(
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
    return found


class Batch(NamedTuple):
    """What happened at one moment, and how much had been said when all of it had been dealt with."""

    at: float
    events: tuple[ev.Event, ...]
    said: int


class Tap:
    """Listens to what an engine hears and says."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self._handle = engine, engine.handle
        #: Decisions and operations, as plain values without anything that differs by chance.
        self.said: list[tuple[Any, ...]] = []
        self.heard: list[tuple[float, tuple[ev.Event, ...]]] = []
        self.names: dict[str, str] = {}
        engine.handle = self.handle  # type: ignore[method-assign]

    def handle(self, *events: ev.Event) -> list[Command]:
        """As the engine does."""
        ids = self.engine.query.ids
        commands = self._handle(*events)
        assert not any(isinstance(command, Faulted) for command in commands)
        now = self.engine.query.now
        if not all(isinstance(event, ev.Decided) for event in events):
            self.heard.append((now, events))
        for event in events:
            if isinstance(event, ev.Decided):
                self.said.append((now, "decision", *self._rows(event, ids)))
        ops = [op for command in commands if isinstance(command, Apply) for op in self.engine.ops(command.plan)]
        self.said += sorted(_operation(now, op) for op in ops)
        return commands

    def _rows(self, event: ev.Decided, ids: Mapping[int, str]) -> list[tuple[Any, ...]]:
        made = event.decision
        rows = zip(made.number.tolist(), made.count.tolist(), made.type.tolist(), made.reason.tolist(), strict=True)
        return sorted((workload(ids[number]), *rest) for number, *rest in rows if number in ids)


def workload(job: str) -> str:
    """The name that a job's id begins with."""
    return "-".join(job.split("-")[:2])


def _operation(now: float, op: Op) -> tuple[Any, ...]:
    places = () if op.grant is None else tuple((place.node, place.devices) for place in op.grant.places)
    return (now, "operation", workload(op.job), OpKind.name(op.kind), op.generation, places)


def simulated(told: list[dict[str, Any]]) -> tuple[list[Batch], list[tuple[Any, ...]]]:
    """The script, and what the engine said to it."""
    engine = Engine(cluster=Cluster(nodes=_NODES), options=Options(**_OPTIONS))
    batches: list[Batch] = []
    tap = Tap(engine)

    def after_each() -> None:
        batches.extend(Batch(at, events, len(tap.said)) for at, events in tap.heard)
        tap.heard.clear()

    world = Simulation(engine, TableModel(()), Costs(start_s=20.0, resize_s=5.0, stop_s=10.0), after_each)
    for at, each in enumerate(told):
        now = _BEGIN + _APART * at
        (made,) = prepare(each, user="ann", now=now, suffix="aaaa")
        world.add(ev.JobsSubmitted(at=now, jobs=JobBatch.of([made.job])))
    for at, kind in _ACTS.items():
        # The one that is suspended is the one that is resumed.
        world.add(kind(at=_BEGIN + _APART * (at + 0.5), number=np.array([6 if at > 6 else 5])))
    world.run()
    return batches, tap.said


class ScriptedClock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


class Quiet(LocalBackend):
    """Runs jobs as ever, and keeps to itself what becomes of them until it is asked."""

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


class Stand:
    """The live side."""

    def __init__(self, live: Live, backend: Quiet, clock: ScriptedClock, tap: Tap, told: list[dict[str, Any]]) -> None:
        self.live, self.backend, self.clock, self.tap, self.told = live, backend, clock, tap, told
        self.service = Service(live)
        self.ids: list[str] = []

    async def until(self, true: Callable[[], object], what: str) -> None:
        async with asyncio.timeout(2 * WAIT_S):
            try:
                while not true():
                    await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                raise AssertionError(f"{what} did not come; said: {self.tap.said[-3:]}") from None

    async def play(self, batch: Batch, folder: Path) -> None:
        """Lets the same happen here."""
        self.clock.time = batch.at
        progress = tuple(event for event in batch.events if isinstance(event, ev.Progress))
        others = tuple(event for event in batch.events if not isinstance(event, ev.Progress))
        for event in others:
            await self._become_true(event, folder)
        self.live.loop.hear(Report(events=progress))
        match others:
            case (ev.JobsSubmitted(),):
                (view,) = await self.service.submit([self.told[len(self.ids)]], user="ann", key=None)
                self.ids.append(view["id"])
            case (ev.JobsCancelled() as event,):
                await self.service.cancel(self._id(event))
            case (ev.JobsSuspended() as event,):
                await self.service.suspend(self._id(event))
            case (ev.JobsResumed() as event,):
                await self.service.resume(self._id(event))
            case _:
                assert not any(isinstance(event, ev.JobsSubmitted) for event in others)
                await self.live.loop.tell(*others)
        await self.until(lambda: len(self.tap.said) >= batch.said, f"what was said at {batch.at}")

    def _id(self, event: Any) -> str:
        return self.live.loop.records.by_number[int(event.number[0])].id

    async def _become_true(self, event: ev.Event, folder: Path) -> None:
        """What is told has really happened: workers run, have left, or are done."""
        if isinstance(event, ev.JobsFinished):
            for number in event.number.tolist():
                (folder / workload(self.live.loop.records.by_number[number].id)).touch()
                await self.until(
                    lambda: any(told[:2] == ("JobsFinished", number) for told in self.backend.done),  # noqa: B023
                    f"the end of {number}",
                )
        elif isinstance(event, ev.Running | ev.Released):
            for number, generation in zip(event.number.tolist(), event.generation.tolist(), strict=True):
                key = (type(event).__name__, number, generation)
                await self.until(lambda: key in self.backend.done, str(key))  # noqa: B023


async def lived(
    home: Path, told: list[dict[str, Any]], batches: list[Batch]
) -> tuple[list[tuple[Any, ...]], list[str]]:
    """What the engine says to the script in a live server, and how its jobs end."""
    clock, backend = ScriptedClock(), Quiet(home)
    live = Live(await Store.open(f"sqlite:///{home}/levada.db"), backend, clock=clock)
    await live.open(options=_OPTIONS)
    tap = Tap(live.loop.engine)
    work = asyncio.create_task(live.loop.run())
    stand = Stand(live, backend, clock, tap, told)
    try:
        # A server that finds new machines decides at once, before there are jobs.
        await stand.until(lambda: len(tap.said) == live.loop.decisions, "the first decision")
        tap.said.clear()
        for batch in batches:
            await stand.play(batch, home)
            if work.done():
                work.result()
        phases = [stand.service.job(job)["phase"] for job in stand.ids]
    finally:
        live.stop()
        await work
        await backend.stop_all()
        await live.close()
    return tap.said, phases


def test_the_same_script_gives_the_same_decisions_and_operations(tmp_path: Path) -> None:
    told = documents(tmp_path)
    batches, expected = simulated(told)
    kinds = {row[3] for row in expected if row[1] == "operation"}
    assert kinds == {"START", "RESIZE", "STOP"}, "the script is worth something"
    said, phases = asyncio.run(lived(tmp_path, told, batches))
    assert msgspec.to_builtins(said) == msgspec.to_builtins(expected)
    assert phases == ["Cancelled" if at == 5 else "Succeeded" for at in range(20)]
