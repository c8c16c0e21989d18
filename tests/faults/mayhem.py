"""Random plans on a real server while it, its shims and its workers are killed; afterwards everything must add up."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from levada.backends.local import procfs
from levada.errors import LevadaError, NoServer
from tests.faults import worker_path
from tests.faults.site import Site, document
from tests.patience import WAIT_S

#: So many jobs are not over at a time.
_MOST_JOBS = 12
#: Whoever looks for a worker waits so long for one.
_RUNS_S = 2.0
_OVER = ("Succeeded", "Failed", "Cancelled")


class Plan:
    """What was asked for one job, and what may become of it."""

    def __init__(self, name: str, code: int, retries: int, manner: str) -> None:
        self.name, self.code, self.retries, self.manner = name, code, retries, manner
        self.id = ""
        #: A cancel was sent; it was answered.
        self.cancelling = self.cancelled = False
        self.suspended = False
        #: A worker or shim of it was killed.
        self.hurt = 0

    def faults(self, job: dict[str, Any]) -> list[str]:
        """What is wrong with how it ended."""
        phase, code = job["phase"], job["exit_code"]
        # One that does its last step before it hears of it has succeeded all the same.
        if self.cancelled and phase not in ("Cancelled", "Succeeded"):
            return [f"{self.name} was cancelled and is {phase}"]
        if phase == "Cancelled":
            return [] if self.cancelling else [f"{self.name} is Cancelled, and nobody asked"]
        if phase == "Succeeded":
            return [] if (self.code, code) == (0, 0) else [f"{self.name} Succeeded with {code}, meant {self.code}"]
        if phase != "Failed":
            return [f"{self.name} never ended: {phase}, {job['reason']}"]
        if self.code and code == self.code:
            return [] if job["retried"] == self.retries else [f"{self.name} failed after {job['retried']} retries"]
        if self.hurt > self.retries or (self.hurt and self.code):
            return [] if code in (None, 128 + signal.SIGKILL) else [f"{self.name} was killed and left with {code}"]
        return [f"{self.name} Failed with {code} after {self.hurt} kills, meant {self.code}: {job['reason']}"]


class Mayhem:
    """One run, by seed."""

    def __init__(self, site: Site, notes: Path, seed: int) -> None:
        self.site, self.notes = site, notes
        self.chance = random.Random(seed)
        self.plans: list[Plan] = []
        self.kills: Counter[str] = Counter()
        self.story: list[str] = []
        self._pool = ThreadPoolExecutor(2)
        self._cordoned: set[str] = set()
        notes.mkdir()

    def run(self, kills: int) -> None:
        """Acts and kills until so many were killed, then lets everything come to its end."""
        with self._pool:
            self.site.up()
            end = time.monotonic() + kills * WAIT_S
            while self.kills.total() < kills:
                acts = [self._pool.submit(self._act, self.chance.random()) for _ in range(self.chance.randint(1, 2))]
                time.sleep(self.chance.choice((0.0, 0.02, 0.1, 0.4)) * self.chance.random())
                self._kill()
                for act in acts:
                    act.result()
                assert time.monotonic() < end, f"{self.kills} in all that time"
            self._settle()

    # --- acts -------------------------------------------------------------------------------------------------------

    def _act(self, seed: float) -> None:
        """Something that a user does; answers may get lost, and then nobody knows."""
        chance = random.Random(seed)
        alive = [plan for plan in list(self.plans) if plan.id and not plan.cancelling]
        client = self.site.client
        if len(self._living()) < _MOST_JOBS // 2 or (chance.random() < 0.4 and len(self._living()) < _MOST_JOBS):
            self._submit(chance)
            return
        if not alive:
            return
        suspended = [plan for plan in alive if plan.suspended]
        # Jobs that are suspended cannot be hurt: there are never many.
        plan = suspended[0] if len(suspended) > 1 else chance.choice(alive[-_MOST_JOBS:])
        what = chance.choice(("cancel", "suspend", "suspend", "scale", "scale", "update", "cordon", "drain"))
        if plan.suspended:
            what = "suspend"
        self.story.append(f"{what} {plan.name}")
        try:
            if what == "cancel":
                plan.cancelling = True
                client.cancel(plan.id)
                plan.cancelled = True
            elif what == "suspend":
                client.resume(plan.id) if plan.suspended else client.suspend(plan.id, force=True)
                plan.suspended = not plan.suspended
            elif what == "scale":
                client.scale(plan.id, chance.randint(1, 4))
            elif what == "update":
                client.update(plan.id, priority=chance.randint(-5, 5), max=4)
            else:
                self._close_or_open(what, chance)
        except LevadaError as refused:
            plan.suspended = False  # it is over, or nobody knows
            self.story.append(f"  {what} {plan.name}: {refused}")

    def _close_or_open(self, what: str, chance: random.Random) -> None:
        node = chance.choice(("node-0", "node-1"))
        if node in self._cordoned:
            self.site.client.uncordon(node)
            self._cordoned.discard(node)
        elif not self._cordoned:
            self._cordoned.add(node)
            (self.site.client.cordon if what == "cordon" else self.site.client.drain)(node)

    def _submit(self, chance: random.Random) -> None:
        manner = chance.choice(("kind", "kind", "stubborn", "messy", "elastic"))
        code = chance.choice((0, 0, 0, 3)) if manner != "elastic" else 0
        retries = chance.choice((0, 2)) if code else chance.choice((0, 50, 50))
        plan = Plan(f"j{len(self.plans)}-{manner}", code, retries, manner)
        self.plans.append(plan)
        least = chance.randint(1, 2)
        python = [sys.executable] if manner == "elastic" else [sys.executable, "-S", "-E"]
        command = [*python, worker_path(), str(self.notes), str(chance.choice((1, 20, 100, 200))), str(code), manner]
        told = document(
            plan.name,
            command,
            workers={"min": least, "max": chance.randint(least, 4)},
            retries=retries,
            preemptible=chance.choice(("auto", True)),
            priority=chance.randint(-3, 3),
            checkpoint={"gracePeriod": "1s"},
            **chance.choice(({}, {"gpuTypes": ["a100"]}, {"gpuTypes": ["v100", "a100"]})),
        )
        key = f"{plan.name}-{chance.random()}"
        end = time.monotonic() + WAIT_S
        while not plan.id:
            try:
                (job,) = self.site.client.submit(told, key=key)
                plan.id = job["id"]
                self.story.append(f"submitted {plan.id}")
            except NoServer:
                assert time.monotonic() < end

    def _living(self) -> list[Plan]:
        """Those that run or may do so soon, as far as one can tell without asking."""
        over = {line["job"] for line in self._lines() if line["type"] == "end"}
        return [
            plan
            for plan in self.plans
            if plan.id not in over and not (plan.cancelling or plan.suspended) and plan.hurt <= plan.retries
        ]

    # --- kills ------------------------------------------------------------------------------------------------------

    def _kill(self) -> None:
        what = self.chance.choice(("server", "shim", "shim", "worker", "worker"))
        if what == "server":
            self.kills[what] += 1
            self.story.append("KILL server")
            self.site.kill()
            self._hurt_one()
            self.site.start()
            if self.chance.random() < 0.2:
                time.sleep(2.0 * self.chance.random())
                self.kills[what] += 1
                self.story.append("KILL server that starts")
                self.site.kill()
                self.site.start()
            self.site.until(self.site.ready)
        else:
            self._kill_one(what)

    def _hurt_one(self) -> None:
        """While no server watches."""
        if self.chance.random() < 0.3:
            self._kill_one(self.chance.choice(("shim", "worker")))

    def _kill_one(self, what: str) -> None:
        end = time.monotonic() + _RUNS_S
        while not (runs := sorted(self.site.runs(), key=lambda run: str(run["folder"]))):
            if time.monotonic() > end:
                return  # it does not count
            time.sleep(0.02)
        run = self.chance.choice(runs)
        if not procfs.is_same(run["worker"], run["worker_started"]):
            return
        found = procfs.look(run["worker"])
        if what == "shim" and (found is None or found.parent != run["shim"]):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(run[what], signal.SIGKILL)
            self.kills[what] += 1
            self.story.append(f"KILL {what} of {run['job']} {run['folder'].name}")
            for plan in self.plans:
                if run["job"].startswith(plan.name + "-2"):
                    plan.hurt += 1

    # --- the end ----------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Everything that keeps jobs from their end goes; then all end."""
        client = self.site.client
        for node in ("node-0", "node-1"):
            client.uncordon(node)
        end = time.monotonic() + 3 * WAIT_S
        while True:
            jobs = client.jobs()
            living = [job for job in jobs if job["phase"] not in _OVER]
            if not living:
                return
            assert time.monotonic() < end, [(job["id"], job["phase"], job["reason"]) for job in living]
            for job in living:
                if job["phase"] == "Suspended":
                    with contextlib.suppress(LevadaError):
                        client.resume(job["id"])
            time.sleep(0.1)

    def _lines(self) -> list[dict[str, Any]]:
        found = []
        for path in sorted(self.notes.glob("*.jsonl")):
            for text in path.read_text().splitlines():
                with contextlib.suppress(ValueError):
                    found.append({"job": path.stem, **json.loads(text)})
        return found

    def faults(self) -> list[str]:
        """All that does not add up."""
        found: list[str] = []
        jobs = {job["id"]: dict(job) for job in self.site.client.jobs()}
        names = Counter(job["workload"] for job in jobs.values())
        for plan in self.plans:
            if names.pop(plan.name, 0) != 1:
                found.append(f"{plan.name} was submitted once and is there {names[plan.name]} times")
            elif plan.id not in jobs:
                found.append(f"{plan.id} is lost")
            else:
                found += plan.faults(jobs[plan.id])
        found += [f"nobody submitted {name}" for name in names]
        found += [f"two at once: {line}" for line in self._lines() if line["type"] == "clash"]
        found += [f"device is still used: {node}" for node in self.site.client.nodes() if node["jobs"]]
        return found
