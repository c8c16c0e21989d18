"""One seed: clients, jobs and faults around the real server, and what must be true afterwards.

Real are the service, the loop, the engine, the store (SQLite in memory), the backend, its gangs and its supervisor, the
records on disk. Simulated are the processes (`processes.py`), the order of everything and the time (`scheduler.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from levada.backends.local import worker
from levada.backends.local.backend import LocalBackend
from levada.backends.protocol import Report
from levada.core.cluster import Node
from levada.errors import BadInput, LevadaError, NotFound, Refused, Unavailable
from levada.live.live import Live
from levada.live.service import Service
from levada.live.store import Store
from levada.live.store.database import Database
from tests.engine.inspect import state_of
from tests.interleavings.checks import faults_of
from tests.interleavings.processes import Processes
from tests.interleavings.scheduler import SeededLoop, run

OPTIONS = {
    "min_run_s": 0.2,
    "cooldown_s": 0.2,
    "rate_limit_s": 0.05,
    "backoff_s": 0.1,
    "backoff_max_s": 0.5,
    "max_failures": 1000,
    "op_timeout_s": 60.0,
}
_NODES = (Node.of("n0", {"v100": 2}), Node.of("n1", {"k80": 2}))
#: Virtual seconds after which a job that is not over hangs, and how long a job works that only a cancel ends.
_LONG_S, _ENDLESS_S = 3600.0, 1e9
#: Whatever is still on its way arrives within so long, and an operation that got lost is noticed within so long.
_CALM_S, _STEADY_S = 5.0, 120.0
#: An end is worth waiting for that is not farther than this.
_SOON_S = 10.0
_OVER = ("Succeeded", "Failed", "Cancelled")


class Repeating(LocalBackend):
    """A backend whose reports come late and more than once, as the protocol allows."""

    async def reports(self) -> Any:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SeededLoop)
        chance, old = loop.chance, []
        async for report in super().reports():
            if chance.random() < 0.2:
                await asyncio.sleep(chance.choice((0.01, 0.3, 2.0)))
            yield report
            # What happened before may be told again; what people are told of it is not.
            old.append(Report(events=report.events))
            if chance.random() < 0.2:
                yield chance.choice((report, *old[-5:]))


class Server:
    """One life of the server: a process of the loop."""

    def __init__(self, world: World, number: int) -> None:
        self.process = f"server-{number}"
        self._world = world
        self.service: Service | None = None
        self.live: Live | None = None
        self.ending = ""
        self.task = world.loop.spawn(self.process, self._main())
        #: It has ended, however.
        self.gone: asyncio.Future[None] = world.loop.create_future()
        self.task.add_done_callback(lambda _: self.is_gone())

    def is_gone(self) -> None:
        """Nobody gets an answer any more."""
        if not self.gone.done():
            self.gone.set_result(None)

    async def _main(self) -> None:
        backend = Repeating(self._world.home, _NODES)
        live = self.live = Live(Store(self._world.database), backend)
        await live.open(wait=True, options=OPTIONS)
        # As a server takes to open its port.
        await asyncio.sleep(self._world.chance.choice((0.0, 0.3, 2.0)))
        self.service = Service(live)
        await live.run()
        if self.ending == "down":
            await live.stop_jobs()
        await live.close()

    def stop(self, how: str) -> None:
        """Ends it as `levada down` does, or (leave) so that the jobs go on."""
        assert self.live is not None
        self.ending = how
        self._world.loop.spawn(self.process, _call(self.live.stop))

    async def ask(self, call: Callable[[Service], Awaitable[Any]]) -> Any:
        """The answer of the server; raises NoAnswer where it ends before, as a broken connection does."""
        if self.service is None:
            raise NoAnswer
        answer = self._world.loop.spawn(self.process, _answer(call, self.service))
        await asyncio.wait([answer, self.gone], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise NoAnswer
        return answer.result()


class NoAnswer(Exception):
    """The connection broke: nobody knows whether it was done."""


async def _call(act: Callable[[], None]) -> None:
    act()


async def _answer(call: Callable[[Service], Awaitable[Any]], service: Service) -> Any:
    return await call(service)


class Plan:
    """A job as its client knows it."""

    def __init__(self, name: str, work_s: float, code: int, manner: str, workers: dict[str, int]) -> None:
        self.name, self.work_s, self.code, self.manner, self.workers = name, work_s, code, manner, workers
        self.retries = 2 if code else 50
        self.id = ""
        self.cancelled = self.suspended = False
        self.suspensions = 0

    def document(self) -> dict[str, Any]:
        command = ["work", str(self.work_s), str(self.code), self.manner]
        return {
            "apiVersion": "levada.dev/v1",
            "kind": "Job",
            "metadata": {"name": self.name},
            "spec": {
                "run": {"command": command},
                "workers": self.workers,
                "retries": self.retries,
                "preemptible": True,
                "checkpoint": {"gracePeriod": "2s"},
            },
        }


class World:
    """What outlives servers: the database, the folder and the processes; and what clients know."""

    def __init__(
        self, loop: SeededLoop, home: Path, database: Database, connection: sqlite3.Connection, log: list[str]
    ) -> None:
        self.loop, self.chance, self.home, self.database = loop, loop.chance, home, database
        self._connection = connection
        self.processes = Processes(loop)
        self.plans: list[Plan] = []
        self.log = log
        self._lives = 0
        self.server = self._new_server()
        self.results: dict[str, dict[str, Any]] = {}

    # --- the server -----------------------------------------------------------------------------------------------

    def _new_server(self) -> Server:
        self._lives += 1
        return Server(self, self._lives)

    def say(self, text: str) -> None:
        self.log.append(f"{self.loop.time():9.3f} {text}")

    async def restart(self) -> None:
        """Kills or stops the server and starts another, often shortly before a worker is done."""
        if self.chance.random() < 0.5 and self.processes.next_end_s() < _SOON_S:
            await asyncio.sleep(max(0.0, self.processes.next_end_s() - self.chance.choice((0.01, 0.1, 1.0, 3.0))))
        how = self.chance.choice(("kill", "kill", "kill", "leave", "down"))
        before = self.server
        self.say(f"{how} {before.process}")
        if how == "kill" or before.service is None:
            self.loop.kill(before.process)
            before.is_gone()
            # A killed process of the machine is known to be gone; this one was a part of the test.
            self._connection.execute("UPDATE lease SET until = 0")
            self._connection.commit()
        else:
            before.stop(how)
            with contextlib.suppress(LevadaError):
                await before.task
        await asyncio.sleep(self.chance.choice((0.0, 0.0, 0.1, 1.0)))
        self.server = self._new_server()

    async def until_something_runs(self) -> None:
        """Returns when a worker runs, or soon."""
        end = self.loop.time() + _SOON_S
        while not self.processes.alive() and self.loop.time() < end:
            await asyncio.sleep(0.1)

    async def freeze(self) -> None:
        """Stops the server for a while, as SIGSTOP or a stalled machine does."""
        process, pause_s = self.server.process, self.chance.choice((0.2, 1.0, 20.0))
        self.say(f"freeze {process} for {pause_s} s")
        self.loop.freeze(process)
        await asyncio.sleep(pause_s)
        self.loop.release(process)

    # --- clients --------------------------------------------------------------------------------------------------

    async def ask(self, call: Callable[[Service], Awaitable[Any]]) -> Any:
        """As `Server.ask`, of whatever server is up, again and again until one answers."""
        while True:
            try:
                return await self.server.ask(call)
            except (NoAnswer, Unavailable):
                await asyncio.sleep(0.1)

    async def submit(self, plan: Plan) -> None:
        """Submits a job; repeats it with the same key until it is acknowledged."""
        self.plans.append(plan)
        documents = [plan.document()]
        (job,) = await self.ask(lambda service: service.submit(documents, user="u", key=plan.name))
        plan.id = job["id"]
        self.say(f"{plan.id} is acknowledged")

    async def change(self) -> None:
        """Does something to a job of which the client has an answer."""
        known = [plan for plan in self.plans if plan.id and not plan.cancelled]
        if not known:
            return
        plan = self.chance.choice(known)
        what = self.chance.choice(("cancel", "suspend", "suspend", "scale", "scale", "update"))
        size = self.chance.randint(1, 2)
        calls: dict[str, Callable[[Service], Awaitable[Any]]] = {
            "cancel": lambda service: service.cancel(plan.id),
            "suspend": lambda service: (
                service.resume(plan.id) if plan.suspended else service.suspend(plan.id, force=True)
            ),
            "scale": lambda service: service.scale(plan.id, size, force=True),
            "update": lambda service: service.update(plan.id, {"priority": size}),
        }
        self.say(f"{what} {plan.id}")
        if what == "cancel":
            plan.cancelled = True
        plan.suspensions += what == "suspend"
        try:
            await self.server.ask(calls[what])
            if what == "suspend":
                plan.suspended = not plan.suspended
        except (NoAnswer, Refused, Unavailable, BadInput, NotFound) as why:
            self.say(f"  {what} {plan.id}: {why!r}")

    async def settle(self) -> list[dict[str, Any]]:
        """Lets all jobs come to their end, those that have none to running; as the server then shows them."""
        end = self.loop.time() + _LONG_S
        endless = {plan.id for plan in self.plans if plan.work_s == _ENDLESS_S and not plan.cancelled}
        while True:
            jobs = await self.ask(_jobs)
            living = [job for job in jobs if job["phase"] not in _OVER]
            if all(job["id"] in endless and job["phase"] == "Running" for job in living) or self.loop.time() > end:
                return list(jobs)
            for job in jobs:
                if job["phase"] == "Suspended":
                    with contextlib.suppress(LevadaError, NoAnswer):
                        await self.server.ask(lambda service, name=job["id"]: service.resume(name))
            await asyncio.sleep(1.0)


async def _jobs(service: Service) -> list[dict[str, Any]]:
    return service.jobs(phases=None, user=None, queue=None, labels={}, after=None, limit=1000)[0]


async def _held(service: Service) -> dict[str, int]:
    """How many devices the engine believes each job to have."""
    state = state_of(service.loop.engine)
    slots = [slot for slot in state.living().tolist() if state.world.table.held[slot]]
    return {state.world.ids[int(state.world.table.number[slot])]: int(state.world.table.held[slot]) for slot in slots}


async def _differences(world: World) -> list[str]:
    """Where the engine, the list of jobs and the processes still tell different things after a while."""
    end = world.loop.time() + _STEADY_S
    while True:
        await asyncio.sleep(_CALM_S)
        alive = {job: len(names) for job, names in world.processes.alive().items()}
        held = await world.ask(_held)
        running = {
            job["id"]: sum(one["phase"] == "Running" for one in job["workers"])
            for job in await world.ask(_jobs)
            if job["phase"] == "Running"
        }
        told = ("engine", held), ("list of jobs", running)
        found = [f"{who}: {what}, processes: {alive}" for who, what in told if what != alive]
        if not found or world.loop.time() > end:
            return found


async def _run_scenario(world: World) -> list[str]:
    """The seed's own order of submissions, changes and faults; what is wrong in the end."""
    chance = world.chance
    submissions = []
    for number in range(chance.randint(1, 3)):
        manner = chance.choice(("plain", "saves", "stubborn", "elastic", "elastic"))
        work_s = chance.choice((0.0, 0.5, 1.5, 3.0)) * chance.random() + 3.0 * (manner == "elastic")
        least = 1 if manner == "elastic" else chance.randint(1, 2)
        plan = Plan(
            f"j{number}",
            work_s=_ENDLESS_S if chance.random() < 0.1 else work_s,
            code=chance.choice((0, 0, 0, 3)) if manner == "plain" else 0,
            manner=manner,
            workers={"min": least, "max": 2 if manner == "elastic" else chance.randint(least, 2)},
        )
        submissions.append(asyncio.create_task(world.submit(plan)))
    for _ in range(chance.randint(1, 6)):
        if chance.random() < 0.5:
            await world.until_something_runs()
        await asyncio.sleep(chance.choice((0.05, 0.5, 2.0)) * chance.random())
        draw = chance.random()
        if draw < 0.5:
            await world.restart()
        elif draw < 0.62:
            await world.freeze()
        elif draw < 0.72:
            world.processes.hurt()
        else:
            await world.change()
    await asyncio.gather(*submissions)
    await world.settle()
    found = await _differences(world)
    for plan in world.plans:
        if plan.work_s == _ENDLESS_S:
            plan.cancelled = True
            with contextlib.suppress(Refused):  # it was cancelled before
                await world.ask(lambda service, name=plan.id: service.cancel(name))
    jobs = await world.settle()
    found += await _differences(world)
    found += faults_of(world.processes.ledger, jobs, world.plans)
    again = await world.ask(_jobs)
    found += [f"{job['id']} was {job['phase']} and is not" for job in jobs if job not in again]
    return found + [f"broken: {broken!r}" for broken in world.loop.broken]


class Outcome(NamedTuple):
    """What was wrong, and what happened."""

    faults: list[str]
    log: list[str]


class SeedRunner:
    """Runs seeds one after the other, with one database that each finds empty; all files are in memory."""

    def __init__(self) -> None:
        shared = Path("/dev/shm")
        self._folder = Path(tempfile.mkdtemp(prefix="levada-", dir=shared if shared.is_dir() else None))
        asyncio.run(_make(self._folder / "empty.db"))
        self._connection = sqlite3.connect(self._folder / "levada.db")
        # One for all seeds, which spares them to compile its statements.
        self._database = Database(f"sqlite:///{self._folder}/levada.db")

    def close(self) -> None:
        """Nothing of it is left."""
        asyncio.run(self._database.close())
        self._connection.close()
        shutil.rmtree(self._folder)

    def run_seed(self, seed: int, trace: list[str] | None = None) -> Outcome:
        """Runs *seed*; nothing of it is left afterwards."""
        with contextlib.closing(sqlite3.connect(self._folder / "empty.db")) as empty:
            empty.backup(self._connection)
        log: list[str] = []
        home = self._folder / "home"
        server_log = logging.getLogger("levada")
        level = server_log.level

        async def main(loop: SeededLoop) -> list[str]:
            world = World(loop, home, self._database, self._connection, log)
            with (
                mock.patch.object(worker, "processes", world.processes),
                mock.patch.object(worker, "procfs", world.processes, create=True),
            ):
                return await _run_scenario(world)

        try:
            server_log.setLevel(logging.CRITICAL)
            return Outcome(run(seed, main, trace), log)
        except AssertionError as broken:
            return Outcome([str(broken)], log)
        finally:
            server_log.setLevel(level)
            shutil.rmtree(home, ignore_errors=True)


async def _make(path: Path) -> None:
    """A database with all tables."""
    await (await Store.open(f"sqlite:///{path}")).close()
