"""One soak: clients, faults and quiescent points for a while, then everything ends and must add up."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.live.postgres import Postgres
from tests.patience import WAIT_S
from tests.soak import ledger
from tests.soak.clients import _ENVIRONMENT, KINDS, Clients
from tests.soak.faults import Injector, plan
from tests.soak.ledger import OVER, Plan
from tests.soak.world import World

#: How often all faults end, so that the list of jobs can be compared with the processes.
_QUIET_EVERY_S = 20.0
_PROGRESS_EVERY_S = 5.0


class Soak:
    """One run by seed below *folder*, which is left with the ledger, the fault log and all logs."""

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
        self.world = World(folder, database)
        self.plans: list[Plan] = []
        self.log: list[str] = []
        self.injector = Injector(self.world, self.plans, self.log)
        self._quiet_points = 0

    def run(self) -> list[str]:
        """Runs it; what is wrong. Nothing runs when it returns."""
        try:
            return self._run()
        finally:
            self.world.clear()
            (self.world.folder / "faults.log").write_text("\n".join(self.log))

    def summary(self) -> str:
        """What was done, in one line."""
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.injector.done.items()))
        over = sum(each.over_at < float("inf") for each in self.plans)
        known = sum(bool(each.id) for each in self.plans)
        return f"{known} of {len(self.plans)} jobs acknowledged, {over} over; {self._quiet_points} quiescent points; {faults or 'no faults'}"

    def _run(self) -> list[str]:
        self.world.start()
        clients = Clients(self.world, self.plans, self.log, self.seed, self._kinds)
        try:
            found = self._act(clients)
            clients.pause()
            jobs = clients.settle()
        finally:
            clients.close()
        found += self._look_again(jobs)
        found += ledger.faults_of(ledger.read(self.world.ledger), self.plans, jobs)
        return found + self.world.unexpected_exits + clients.broken

    def _act(self, clients: Clients) -> list[str]:
        """Faults until the time is up; what was different at quiescent points."""
        found: list[str] = []
        begin = time.monotonic()
        quiet, shown = begin + _QUIET_EVERY_S, begin
        for fault in plan(self.seed, self.world.database is not None):
            until = time.monotonic() + fault.pause_s
            while time.monotonic() < until:
                self.injector.tend()
                time.sleep(min(0.05, max(0.0, until - time.monotonic())))
            self.injector.do(fault)
            self.injector.tend()
            now = time.monotonic()
            if now > shown + _PROGRESS_EVERY_S:
                shown = now
                self._show(f"{now - begin:4.0f} s: {self.summary()}")
            if now > quiet or now > begin + self._seconds:
                self.injector.calm()  # first: clients may wait for a server that is frozen, or gone
                clients.pause()
                found += self._compare()
                clients.go_on()
                quiet = time.monotonic() + _QUIET_EVERY_S
            if now > begin + self._seconds:
                return found
        raise AssertionError("a plan has no end")

    def _compare(self) -> list[str]:
        """Where the list of jobs and the processes differ for good."""
        self._quiet_points += 1
        end = time.monotonic() + WAIT_S
        while found := self.world.differences():
            if time.monotonic() > end:
                return found
            time.sleep(0.1)
        return []

    def _look_again(self, jobs: list[dict[str, object]]) -> list[str]:
        """What is left when all jobs are over, and what another server makes of it."""
        found = [f"{job['id']} is not over: {job['phase']}" for job in jobs if job["phase"] not in OVER]
        end = time.monotonic() + WAIT_S
        while (left := self.world.left()) and time.monotonic() < end:
            time.sleep(0.1)
        found += [f"left: {process}" for process in left]
        found += [
            f"{node['name']} is still used by {node['jobs']}" for node in self.world.client.nodes() if node["jobs"]
        ]
        words = ["ls", "--all", "-o", "name", "--state-dir", str(self.world.site.home)]
        listed = subprocess.run(
            [sys.executable, "-m", "levada", *words], capture_output=True, text=True, env=_ENVIRONMENT, check=False
        )
        if sorted(listed.stdout.split()) != sorted(str(job["id"]) for job in jobs):
            found.append(f"`levada ls` lists other jobs: {listed.stdout} {listed.stderr}")
        self.world.kill_server()
        self.world.start_server()
        self.world.wait_until_up()
        again = {job["id"]: dict(job) for job in self.world.client.jobs()}
        found += [f"{job['id']} is another after a restart" for job in jobs if again.get(str(job["id"])) != job]
        return found + [f"left: {process}" for process in self.world.left()]
