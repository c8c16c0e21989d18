"""Clients of the soak: submit jobs over every interface, retry with the same key, and change jobs."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from levada.errors import BadInput, LevadaError, NoServer, NotFound, Refused
from levada.sdk.client import Client
from levada.sdk.discovery import owners
from tests.faults.real_server import document
from tests.soak.ledger import COUNTED, OVER, JobPlan
from tests.soak.system import System
from tests.timeouts import WAIT_S

_SCRIPT = str(Path(__file__).parent / "worker.py")
#: Limit of unfinished jobs.
_MOST_JOBS = 12
_GAVEL = ("lease", "careless")
_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("LEVADA_")}
#: Without `careless`: only the script itself counts the steps of its lease.
KINDS = ("plain", "stubborn", "saves", "saves", "messy", "elastic", "elastic", "lease")


class Clients:
    """Threads that submit and change jobs until `close`. *kinds* are the kinds of submitted jobs."""

    def __init__(self, world: System, plans: list[JobPlan], log: list[str], seed: int, kinds: tuple[str, ...]) -> None:
        self._world, self.plans, self._log, self._kinds = world, plans, log, kinds
        self._lock = threading.Lock()
        #: Set while clients may act; set when they must end.
        self._go, self._stop = threading.Event(), threading.Event()
        self._unfinished = 0
        self._cordoned: set[str] = set()
        self.broken: list[str] = []
        self._busy = threading.Semaphore(2)
        actors = [threading.Thread(target=self._run, args=(random.Random(seed * 1000 + index),)) for index in range(2)]
        self._threads = [*actors, threading.Thread(target=self._watch)]
        self._go.set()
        for thread in self._threads:
            thread.start()

    def pause(self) -> None:
        """Stop all client actions; return when none is under way."""
        self._go.clear()
        for _ in range(2):
            self._busy.acquire()
        self._busy.release(2)

    def resume(self) -> None:
        """Allow client actions again."""
        self._go.set()

    def close(self) -> None:
        """End all threads."""
        self._stop.set()
        self._go.set()
        for thread in self._threads:
            thread.join()

    # --- threads --------------------------------------------------------------------------------------------------

    def _run(self, chance: random.Random) -> None:
        while not self._stop.is_set():
            self._go.wait()
            with self._busy:
                if self._go.is_set() and not self._stop.is_set():
                    try:
                        self._act(chance)
                    except Exception as error:  # a bug of the soak, or an invalid response
                        self.broken.append(f"client error: {error!r}")
            time.sleep(0.5 * chance.random())

    def _watch(self) -> None:
        """Record when the server first shows the end of plan job."""
        while not self._stop.wait(0.25):
            with contextlib.suppress(LevadaError):
                self.refresh()

    def refresh(self) -> list[dict[str, Any]]:
        """All jobs as the server shows them now."""
        jobs: list[dict[str, Any]] = [dict(job) for job in self._world.client.jobs()]
        now = time.time()
        over = {job["id"] for job in jobs if job["phase"] in OVER}
        for plan in list(self.plans):
            if plan.id in over:
                plan.over_at = min(plan.over_at, now)
        self._unfinished = len(jobs) - len(over)
        return jobs

    # --- actions --------------------------------------------------------------------------------------------------

    def _act(self, chance: random.Random) -> None:
        if self._unfinished < _MOST_JOBS // 2 or (chance.random() < 0.4 and self._unfinished < _MOST_JOBS):
            self._submit(chance)
        else:
            self._change(chance)

    def _change(self, chance: random.Random) -> None:
        known = [plan for plan in list(self.plans) if plan.id and not plan.cancelling and plan.over_at == float("inf")]
        if not known:
            return
        client, plan = self._world.client, chance.choice(known)
        what = chance.choice(("cancel", "suspend", "suspend", "scale", "scale", "update", "cordon"))
        what = "suspend" if plan.suspended else what
        self._log_line(f"{what} {plan.id}")
        plan.changes += 1
        try:
            if what == "cancel":
                plan.cancelling = True
                client.cancel(plan.id)
                plan.cancelled = True
            elif what == "suspend":
                client.resume(plan.id) if plan.suspended else client.suspend(plan.id, force=True)
                plan.suspended = not plan.suspended
            elif what == "scale":
                client.scale(plan.id, chance.randint(1, 4), force=True)
            elif what == "update":
                client.update(plan.id, priority=chance.randint(-5, 5))
            else:
                self._toggle_cordon(chance.choice(("node-0", "far-0")))
        except LevadaError as error:
            plan.suspended = False  # it ended, or the outcome is unknown
            self._log_line(f"  {what} {plan.id}: {error}")

    def _toggle_cordon(self, node: str) -> None:
        with self._lock:
            if node in self._cordoned:
                self._world.client.uncordon(node)
                self._cordoned.discard(node)
            elif not self._cordoned:
                self._cordoned.add(node)
                self._world.client.cordon(node)

    def _submit(self, chance: random.Random) -> None:
        kind = chance.choice(self._kinds)
        code = chance.choice((0, 0, 0, 3)) if kind not in COUNTED else 0
        retries = chance.choice((0, 2)) if code else chance.choice((0, 50, 50)) if kind == "plain" else 50
        with self._lock:
            plan = JobPlan(f"j{len(self.plans)}-{kind}", kind, chance.choice((1, 20, 60, 120)), code, retries)
            self.plans.append(plan)
        manifest = self._document(plan, chance)
        key = f"{plan.name}-{chance.random()}"
        way = chance.choice((self._by_sdk, self._by_sdk, self._by_http, self._by_cli, self._without_retries))
        end = time.monotonic() + WAIT_S
        while not plan.id:
            try:
                way(plan, manifest, key)
                if way == self._without_retries:
                    return
            except (BadInput, NotFound, Refused) as error:
                raise AssertionError(f"{plan.name} was rejected: {error}") from error
            except (LevadaError, OSError):
                assert time.monotonic() < end, f"{plan.name}: no response for {WAIT_S} s"
                time.sleep(0.2)
        self._log_line(f"submitted {plan.id}")

    def _document(self, plan: JobPlan, chance: random.Random) -> dict[str, Any]:
        least = 1 if plan.kind in _GAVEL else chance.randint(1, 2)
        python = [sys.executable]
        if plan.kind in _GAVEL:
            python += ["-m", "levada.runtime.gavel"]
        elif plan.kind != "elastic":
            python += ["-S", "-E"]
        manifest = document(
            plan.name,
            [*python, _SCRIPT, str(self._world.ledger), plan.kind, str(plan.steps), str(plan.code)],
            workers={"min": least, "max": 1 if plan.kind in _GAVEL else chance.randint(least, 4)},
            retries=plan.retries,
            preemptible=chance.choice(("auto", True)) if plan.kind != "plain" else "auto",
            priority=chance.randint(-3, 3),
            checkpoint={"gracePeriod": "2s"},
            **chance.choice(({}, {"gpuTypes": ["a100"]}, {"gpuTypes": ["v100", "a100"]})),
        )
        if plan.kind in COUNTED:
            manifest["spec"]["steps"] = plan.steps
        manifest["spec"]["run"]["workdir"] = str(self._world.folder)
        return manifest

    # --- interfaces to submit with: each sets the id, or raises if there is no response yet ------------------------

    def _by_sdk(self, plan: JobPlan, manifest: dict[str, Any], key: str) -> None:
        (job,) = self._world.client.submit(manifest, key=key)
        plan.id = job["id"]

    def _by_http(self, plan: JobPlan, manifest: dict[str, Any], key: str) -> None:
        owner = owners(str(self._world.server.home))
        if owner is None:
            raise NoServer("not yet")
        headers = {"Authorization": f"Bearer {owner.token}", "Content-Type": "application/json", "Idempotency-Key": key}
        request = urllib.request.Request(f"{owner.url}/api/v1/jobs", json.dumps([manifest]).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=30.0) as response:
                (job,) = json.loads(response.read())["items"]
        except urllib.error.HTTPError as error:
            with error:
                raise LevadaError(f"{error.code} {error.read()!r}") from None
        except ValueError as error:
            raise NoServer(str(error)) from None
        plan.id = job["id"]

    def _by_cli(self, plan: JobPlan, manifest: dict[str, Any], key: str) -> None:
        path = self._world.folder / f"{plan.name}.json"
        path.write_text(json.dumps(manifest))
        arguments = ["submit", "-f", str(path), "--key", key, "-o", "name", "--state-dir", str(self._world.server.home)]
        result = subprocess.run(
            [sys.executable, "-m", "levada", *arguments], capture_output=True, text=True, env=_ENVIRONMENT, check=False
        )
        if result.returncode:
            raise LevadaError(result.stderr)
        plan.id = result.stdout.strip()

    def _without_retries(self, plan: JobPlan, manifest: dict[str, Any], key: str) -> None:
        """One attempt without retries: after a rejection the job must never exist."""
        try:
            with Client(state=str(self._world.server.home), timeout_s=30.0, patience_s=0.0) as client:
                (job,) = client.submit(manifest, key=key)
                plan.id = job["id"]
        except NoServer:
            self._log_line(f"outcome unknown: submission of {plan.name}")
        except LevadaError as error:
            plan.rejected = True
            self._log_line(f"{plan.name} was rejected: {error}")

    def _log_line(self, text: str) -> None:
        self._log.append(f"{time.time():.3f} {text}")

    # --- end of the run -------------------------------------------------------------------------------------------

    def settle(self) -> list[dict[str, Any]]:
        """Uncordon nodes and resume jobs; return all jobs when they ended, or after the time limit."""
        client, end = self._world.client, time.monotonic() + 3 * WAIT_S
        for node in list(self._cordoned):
            client.uncordon(node)
        while True:
            jobs = self.refresh()
            unfinished = [job for job in jobs if job["phase"] not in OVER]
            if not unfinished or time.monotonic() > end:
                break
            for job in unfinished:
                if job["phase"] == "Suspended":
                    with contextlib.suppress(LevadaError):
                        client.resume(job["id"])
            time.sleep(0.2)
        # Including submissions with an unknown outcome.
        names = {job["workload"]: job["id"] for job in jobs}
        for plan in self.plans:
            plan.id = plan.id or names.get(plan.name, "")
        return jobs
