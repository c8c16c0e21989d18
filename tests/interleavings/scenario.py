"""One seed: clients, jobs and faults around the real server, and the checks afterwards.

Service, loop, engine, store (SQLite in memory), backend, job controllers, supervisor and records on disk are real.
Processes (`processes.py`), the order of all callbacks and the time (`scheduler.py`) are simulated.
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
from tests.engine.engine_state import state_of
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
#: Virtual seconds after which an unfinished job counts as hanging, and the work of a job that only a cancel ends.
_LONG_S, _ENDLESS_S = 3600.0, 1e9
#: Time in which delayed messages arrive, and time in which a lost operation is issued later.
_CALM_S, _STEADY_S = 5.0, 120.0
#: The longest wait for the end of a worker.
_SOON_S = 10.0
_OVER = ("Succeeded", "Failed", "Cancelled")


class RepeatingBackend(LocalBackend):
    """A backend that delays and repeats reports, as the protocol allows."""

    async def reports(self) -> Any:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SeededLoop)
        chance, old = loop.chance, []
        async for report in super().reports():
            if chance.random() < 0.2:
                await asyncio.sleep(chance.choice((0.01, 0.3, 2.0)))
            yield report
            # Events may be reported later; notes are not.
            old.append(Report(events=report.events))
            if chance.random() < 0.2:
                yield chance.choice((report, *old[-5:]))


class SimulatedServer:
    """One run of the server: a process of the loop."""

    def __init__(self, scenario: Scenario, number: int) -> None:
        self.process = f"server-{number}"
        self._world = scenario
        self.service: Service | None = None
        self.live: Live | None = None
        self.ending = ""
        self.task = scenario.loop.spawn(self.process, self._main())
        #: Done when the server has ended or was killed.
        self.gone: asyncio.Future[None] = scenario.loop.create_future()
        self.task.add_done_callback(lambda _: self.mark_gone())

    def mark_gone(self) -> None:
        """End all pending requests without a response."""
        if not self.gone.done():
            self.gone.set_result(None)

    async def _main(self) -> None:
        backend = RepeatingBackend(self._world.home, _NODES)
        live = self.live = Live(Store(self._world.database), backend)
        await live.open(wait=True, options=OPTIONS)
        # The time to open the port.
        await asyncio.sleep(self._world.chance.choice((0.0, 0.3, 2.0)))
        self.service = Service(live)
        await live.run()
        if self.ending == "down":
            await live.stop_jobs()
        await live.close()

    def stop(self, how: str) -> None:
        """Stop the server with its jobs (down), or without them (leave)."""
        assert self.live is not None
        self.ending = how
        self._world.loop.spawn(self.process, _call(self.live.stop))

    async def request(self, call: Callable[[Service], Awaitable[Any]]) -> Any:
        """The response of the server; raises NoResponse if it ends before, like a broken connection."""
        if self.service is None:
            raise NoResponse
        response = self._world.loop.spawn(self.process, _respond(call, self.service))
        await asyncio.wait([response, self.gone], return_when=asyncio.FIRST_COMPLETED)
        if not response.done():
            raise NoResponse
        return response.result()


class NoResponse(Exception):
    """The connection broke: the outcome of the request is unknown."""


async def _call(act: Callable[[], None]) -> None:
    act()


async def _respond(call: Callable[[Service], Awaitable[Any]], service: Service) -> Any:
    return await call(service)


class ClientJob:
    """A job as its client knows it."""

    def __init__(self, name: str, work_s: float, code: int, variant: str, workers: dict[str, int]) -> None:
        self.name, self.work_s, self.code, self.variant, self.workers = name, work_s, code, variant, workers
        self.retries = 2 if code else 50
        self.id = ""
        self.cancelled = self.suspended = False
        self.suspensions = 0

    def document(self) -> dict[str, Any]:
        command = ["work", str(self.work_s), str(self.code), self.variant]
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


class Scenario:
    """Everything that outlives servers: database, folder, processes and clients."""

    def __init__(
        self, loop: SeededLoop, home: Path, database: Database, connection: sqlite3.Connection, log: list[str]
    ) -> None:
        self.loop, self.chance, self.home, self.database = loop, loop.chance, home, database
        self._connection = connection
        self.processes = Processes(loop)
        self.plans: list[ClientJob] = []
        self.log = log
        self._server_count = 0
        self.server = self._new_server()
        self.results: dict[str, dict[str, Any]] = {}

    # --- the server -----------------------------------------------------------------------------------------------

    def _new_server(self) -> SimulatedServer:
        self._server_count += 1
        return SimulatedServer(self, self._server_count)

    def log_line(self, text: str) -> None:
        self.log.append(f"{self.loop.time():9.3f} {text}")

    async def restart(self) -> None:
        """Kill or stop the server and start another one, often shortly before a worker ends."""
        if self.chance.random() < 0.5 and self.processes.next_end_s() < _SOON_S:
            await asyncio.sleep(max(0.0, self.processes.next_end_s() - self.chance.choice((0.01, 0.1, 1.0, 3.0))))
        how = self.chance.choice(("kill", "kill", "kill", "leave", "down"))
        before = self.server
        self.log_line(f"{how} {before.process}")
        if how == "kill" or before.service is None:
            self.loop.kill(before.process)
            before.mark_gone()
            # The lease of a killed process would end with its PID; this server has no process of its own.
            self._connection.execute("UPDATE lease SET until = 0")
            self._connection.commit()
        else:
            before.stop(how)
            with contextlib.suppress(LevadaError):
                await before.task
        await asyncio.sleep(self.chance.choice((0.0, 0.0, 0.1, 1.0)))
        self.server = self._new_server()

    async def wait_worker(self) -> None:
        """Wait until a worker runs, at most `_SOON_S`."""
        end = self.loop.time() + _SOON_S
        while not self.processes.alive() and self.loop.time() < end:
            await asyncio.sleep(0.1)

    async def freeze(self) -> None:
        """Freeze the server for a while, like SIGSTOP or a stalled machine."""
        process, pause_s = self.server.process, self.chance.choice((0.2, 1.0, 20.0))
        self.log_line(f"freeze {process} for {pause_s} s")
        self.loop.freeze(process)
        await asyncio.sleep(pause_s)
        self.loop.release(process)

    # --- clients --------------------------------------------------------------------------------------------------

    async def request(self, call: Callable[[Service], Awaitable[Any]]) -> Any:
        """Repeat `SimulatedServer.request` with the current server until there is a response."""
        while True:
            try:
                return await self.server.request(call)
            except (NoResponse, Unavailable):
                await asyncio.sleep(0.1)

    async def submit(self, plan: ClientJob) -> None:
        """Submit a job; retry with the same key until it is acknowledged."""
        self.plans.append(plan)
        documents = [plan.document()]
        (job,) = await self.request(lambda service: service.submissions.submit(documents, user="u", key=plan.name))
        plan.id = job["id"]
        self.log_line(f"{plan.id} is acknowledged")

    async def change(self) -> None:
        """Send a random request for an acknowledged job."""
        known = [plan for plan in self.plans if plan.id and not plan.cancelled]
        if not known:
            return
        plan = self.chance.choice(known)
        what = self.chance.choice(("cancel", "suspend", "suspend", "scale", "scale", "update"))
        size = self.chance.randint(1, 2)
        calls: dict[str, Callable[[Service], Awaitable[Any]]] = {
            "cancel": lambda service: service.jobs.cancel(plan.id),
            "suspend": lambda service: (
                service.jobs.resume(plan.id) if plan.suspended else service.jobs.suspend(plan.id, force=True)
            ),
            "scale": lambda service: service.jobs.scale(plan.id, size, force=True),
            "update": lambda service: service.jobs.update(plan.id, {"priority": size}),
        }
        self.log_line(f"{what} {plan.id}")
        if what == "cancel":
            plan.cancelled = True
        plan.suspensions += what == "suspend"
        try:
            await self.server.request(calls[what])
            if what == "suspend":
                plan.suspended = not plan.suspended
        except (NoResponse, Refused, Unavailable, BadInput, NotFound) as error:
            self.log_line(f"  {what} {plan.id}: {error!r}")

    async def settle(self) -> list[dict[str, Any]]:
        """Wait until all jobs have ended, or run if they are endless; return the job list."""
        end = self.loop.time() + _LONG_S
        endless = {plan.id for plan in self.plans if plan.work_s == _ENDLESS_S and not plan.cancelled}
        while True:
            jobs = await self.request(_jobs)
            unfinished = [job for job in jobs if job["phase"] not in _OVER]
            if all(job["id"] in endless and job["phase"] == "Running" for job in unfinished) or self.loop.time() > end:
                return list(jobs)
            for job in jobs:
                if job["phase"] == "Suspended":
                    with contextlib.suppress(LevadaError, NoResponse):
                        await self.server.request(lambda service, name=job["id"]: service.jobs.resume(name))
            await asyncio.sleep(1.0)


async def _jobs(service: Service) -> list[dict[str, Any]]:
    return service.jobs.page(phases=None, user=None, queue=None, labels={}, after=None, limit=1000)[0]


async def _held(service: Service) -> dict[str, int]:
    """Number of devices that each job holds according to the engine."""
    state = state_of(service.loop.engine)
    slots = [slot for slot in state.living().tolist() if state.world.table.held[slot]]
    return {state.world.ids[int(state.world.table.number[slot])]: int(state.world.table.held[slot]) for slot in slots}


async def _differences(scenario: Scenario) -> list[str]:
    """Lasting differences between engine, job list and processes."""
    end = scenario.loop.time() + _STEADY_S
    while True:
        await asyncio.sleep(_CALM_S)
        alive = {job: len(names) for job, names in scenario.processes.alive().items()}
        held = await scenario.request(_held)
        running = {
            job["id"]: sum(worker["phase"] == "Running" for worker in job["workers"])
            for job in await scenario.request(_jobs)
            if job["phase"] == "Running"
        }
        views = ("engine", held), ("job list", running)
        faults = [f"{name}: {view}, processes: {alive}" for name, view in views if view != alive]
        if not faults or scenario.loop.time() > end:
            return faults


async def _run_scenario(scenario: Scenario) -> list[str]:
    """Run the submissions, requests and faults of the seed; return all contradictions."""
    chance = scenario.chance
    submissions = []
    for number in range(chance.randint(1, 3)):
        variant = chance.choice(("plain", "saves", "stubborn", "elastic", "elastic"))
        work_s = chance.choice((0.0, 0.5, 1.5, 3.0)) * chance.random() + 3.0 * (variant == "elastic")
        least = 1 if variant == "elastic" else chance.randint(1, 2)
        plan = ClientJob(
            f"j{number}",
            work_s=_ENDLESS_S if chance.random() < 0.1 else work_s,
            code=chance.choice((0, 0, 0, 3)) if variant == "plain" else 0,
            variant=variant,
            workers={"min": least, "max": 2 if variant == "elastic" else chance.randint(least, 2)},
        )
        submissions.append(asyncio.create_task(scenario.submit(plan)))
    for _ in range(chance.randint(1, 6)):
        if chance.random() < 0.5:
            await scenario.wait_worker()
        await asyncio.sleep(chance.choice((0.05, 0.5, 2.0)) * chance.random())
        draw = chance.random()
        if draw < 0.5:
            await scenario.restart()
        elif draw < 0.62:
            await scenario.freeze()
        elif draw < 0.72:
            scenario.processes.kill_random_worker()
        else:
            await scenario.change()
    await asyncio.gather(*submissions)
    await scenario.settle()
    faults = await _differences(scenario)
    for plan in scenario.plans:
        if plan.work_s == _ENDLESS_S:
            plan.cancelled = True
            with contextlib.suppress(Refused):  # it was cancelled before
                await scenario.request(lambda service, name=plan.id: service.jobs.cancel(name))
    jobs = await scenario.settle()
    faults += await _differences(scenario)
    faults += faults_of(scenario.processes.ledger, jobs, scenario.plans)
    later = await scenario.request(_jobs)
    faults += [f"{job['id']} was {job['phase']} and has changed" for job in jobs if job not in later]
    return faults + [f"unhandled exception: {error!r}" for error in scenario.loop.unhandled]


class SeedOutcome(NamedTuple):
    """The faults and the log of one seed."""

    faults: list[str]
    log: list[str]


class SeedRunner:
    """Runs seeds one after the other, each with an empty database; all files are in memory."""

    def __init__(self) -> None:
        shared = Path("/dev/shm")
        self._folder = Path(tempfile.mkdtemp(prefix="levada-", dir=shared if shared.is_dir() else None))
        # Own loop: seeds run in loops of their own, outside of the loop of a test.
        asyncio.run(_create_database(self._folder / "empty.db"))
        self._connection = sqlite3.connect(self._folder / "levada.db")
        # Shared by all seeds, so that statements are compiled once.
        self._database = Database(f"sqlite:///{self._folder}/levada.db")

    def close(self) -> None:
        """Remove all files."""
        asyncio.run(self._database.close())
        self._connection.close()
        shutil.rmtree(self._folder)

    def run_seed(self, seed: int, trace: list[str] | None = None) -> SeedOutcome:
        """Run *seed* and remove its files."""
        with contextlib.closing(sqlite3.connect(self._folder / "empty.db")) as empty:
            empty.backup(self._connection)
        log: list[str] = []
        home = self._folder / "home"
        server_log = logging.getLogger("levada")
        level = server_log.level

        async def main(loop: SeededLoop) -> list[str]:
            scenario = Scenario(loop, home, self._database, self._connection, log)
            with (
                mock.patch.object(worker, "processes", scenario.processes),
                mock.patch.object(worker, "procfs", scenario.processes, create=True),
            ):
                return await _run_scenario(scenario)

        try:
            server_log.setLevel(logging.CRITICAL)
            return SeedOutcome(run(seed, main, trace), log)
        except AssertionError as error:
            return SeedOutcome([str(error)], log)
        finally:
            server_log.setLevel(level)
            shutil.rmtree(home, ignore_errors=True)


async def _create_database(path: Path) -> None:
    """Create a database with all tables."""
    await (await Store.open(f"sqlite:///{path}")).close()
