"""One soak: clients and faults with quiescent points; at the end all jobs finish and are checked."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.live.postgres import Postgres
from tests.soak import ledger
from tests.soak.clients import _ENVIRONMENT, KINDS, Clients
from tests.soak.faults import Injector, fault_plan
from tests.soak.ledger import OVER, JobPlan
from tests.soak.system import System
from tests.timeouts import WAIT_S

#: Interval of quiescent points, at which the job list is compared with the processes.
_QUIET_EVERY_S = 20.0
_PROGRESS_EVERY_S = 5.0


class Soak:
    """One run by seed in *folder*, which keeps the ledger, the fault log and all logs."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        seconds: float,
        database: Postgres | None = None,
        *,
        kinds: tuple[str, ...] = KINDS,
        show: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.seed, self._seconds, self._show, self._kinds = seed, seconds, show, kinds
        self.world = System(folder, database)
        self.plans: list[JobPlan] = []
        self.log: list[str] = []
        self.injector = Injector(self.world, self.plans, self.log)
        self._quiet_points = 0

    def run(self) -> list[str]:
        """Run the soak and return its faults; all processes are gone afterwards."""
        try:
            return self._run()
        finally:
            self.world.clear()
            (self.world.folder / "faults.log").write_text("\n".join(self.log))

    def summary(self) -> str:
        """Jobs and faults in one line."""
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.injector.done.items()))
        over = sum(plan.over_at < float("inf") for plan in self.plans)
        known = sum(bool(plan.id) for plan in self.plans)
        return f"{known} of {len(self.plans)} jobs acknowledged, {over} over; {self._quiet_points} quiescent points; {faults or 'no faults'}"

    def _run(self) -> list[str]:
        self.world.start()
        clients = Clients(self.world, self.plans, self.log, self.seed, self._kinds)
        try:
            faults = self._act(clients)
            clients.pause()
            jobs = clients.settle()
        finally:
            clients.close()
        faults += self._check_after_restart(jobs)
        faults += ledger.faults_of(ledger.read(self.world.ledger), self.plans, jobs)
        return faults + self.world.unexpected_exits + clients.broken

    def _act(self, clients: Clients) -> list[str]:
        """Inject faults until the time is up; return differences at quiescent points."""
        faults: list[str] = []
        begin = time.monotonic()
        quiet, shown = begin + _QUIET_EVERY_S, begin
        for fault in fault_plan(self.seed, self.world.database is not None):
            until = time.monotonic() + fault.pause_s
            while time.monotonic() < until:
                self.injector.end_due_faults()
                time.sleep(min(0.05, max(0.0, until - time.monotonic())))
            self.injector.inject(fault)
            self.injector.end_due_faults()
            now = time.monotonic()
            if now > shown + _PROGRESS_EVERY_S:
                shown = now
                self._show(f"{now - begin:4.0f} s: {self.summary()}")
            if now > quiet or now > begin + self._seconds:
                self.injector.end_all_faults()  # first: clients may wait for a frozen or killed server
                clients.pause()
                faults += self._compare()
                clients.resume()
                quiet = time.monotonic() + _QUIET_EVERY_S
            if now > begin + self._seconds:
                return faults
        raise AssertionError("a fault plan is endless")

    def _compare(self) -> list[str]:
        """Lasting differences between the job list and the processes."""
        self._quiet_points += 1
        end = time.monotonic() + WAIT_S
        while faults := self.world.differences():
            if time.monotonic() > end:
                return faults
            time.sleep(0.1)
        return []

    def _check_after_restart(self, jobs: list[dict[str, object]]) -> list[str]:
        """Leftover processes and used nodes, and job lists that change with a restart."""
        faults = [f"{job['id']} is not over: {job['phase']}" for job in jobs if job["phase"] not in OVER]
        end = time.monotonic() + WAIT_S
        while (leftovers := self.world.leftover_processes()) and time.monotonic() < end:
            time.sleep(0.1)
        faults += [f"leftover process: {process}" for process in leftovers]
        faults += [
            f"{node['name']} is still used by {node['jobs']}" for node in self.world.client.nodes() if node["jobs"]
        ]
        arguments = ["ls", "--all", "-o", "name", "--state-dir", str(self.world.server.home)]
        listed = subprocess.run(
            [sys.executable, "-m", "levada", *arguments], capture_output=True, text=True, env=_ENVIRONMENT, check=False
        )
        if sorted(listed.stdout.split()) != sorted(str(job["id"]) for job in jobs):
            faults.append(f"`levada ls` lists different jobs: {listed.stdout} {listed.stderr}")
        self.world.kill_server()
        self.world.start_server()
        self.world.wait_until_up()
        after_restart = {job["id"]: dict(job) for job in self.world.client.jobs()}
        faults += [f"{job['id']} differs after a restart" for job in jobs if after_restart.get(str(job["id"])) != job]
        return faults + [f"leftover process: {process}" for process in self.world.leftover_processes()]
