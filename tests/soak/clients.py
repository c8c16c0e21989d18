"""Clients of the soak: they submit with keys by every way there is, again until they have an answer, and change jobs."""

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
from levada.sdk.place import owners
from tests.faults.site import document
from tests.patience import WAIT_S
from tests.soak.ledger import COUNTED, OVER, Plan
from tests.soak.world import World

_SCRIPT = str(Path(__file__).parent / "worker.py")
#: So many jobs are not over at a time.
_MOST_JOBS = 12
_GAVEL = ("lease", "careless")
_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("LEVADA_")}
#: `careless` is not among them as long as nothing but the script itself counts the steps of its lease.
KINDS = ("plain", "stubborn", "saves", "saves", "messy", "elastic", "elastic", "lease")


class Clients:
    """Some threads that act until they are told to stop. *kinds*: of the jobs that they submit."""

    def __init__(self, world: World, plans: list[Plan], log: list[str], seed: int, kinds: tuple[str, ...]) -> None:
        self._world, self.plans, self._log, self._kinds = world, plans, log, kinds
        self._lock = threading.Lock()
        #: Set while clients may act, and when they must end.
        self._go, self._stop = threading.Event(), threading.Event()
        self._living = 0
        self._cordoned: set[str] = set()
        self.broken: list[str] = []
        self._busy = threading.Semaphore(2)
        acts = [threading.Thread(target=self._run, args=(random.Random(seed * 1000 + each),)) for each in range(2)]
        self._threads = [*acts, threading.Thread(target=self._watch)]
        self._go.set()
        for thread in self._threads:
            thread.start()

    def pause(self) -> None:
        """Nobody acts any more when this returns."""
        self._go.clear()
        for _ in range(2):
            self._busy.acquire()
        self._busy.release(2)

    def go_on(self) -> None:
        """Acts again."""
        self._go.set()

    def close(self) -> None:
        """Ends all threads."""
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
                    except Exception as broken:  # of the soak itself, or an answer that must not be
                        self.broken.append(f"a client broke: {broken!r}")
            time.sleep(0.5 * chance.random())

    def _watch(self) -> None:
        """Sees which jobs are over, and when that was said first."""
        while not self._stop.wait(0.25):
            with contextlib.suppress(LevadaError):
                self.look()

    def look(self) -> list[dict[str, Any]]:
        """All jobs as they are shown now."""
        jobs: list[dict[str, Any]] = [dict(job) for job in self._world.client.jobs()]
        now = time.time()
        over = {job["id"] for job in jobs if job["phase"] in OVER}
        for each in list(self.plans):
            if each.id in over:
                each.over_at = min(each.over_at, now)
        self._living = len(jobs) - len(over)
        return jobs

    # --- acts -----------------------------------------------------------------------------------------------------

    def _act(self, chance: random.Random) -> None:
        if self._living < _MOST_JOBS // 2 or (chance.random() < 0.4 and self._living < _MOST_JOBS):
            self._submit(chance)
        else:
            self._change(chance)

    def _change(self, chance: random.Random) -> None:
        known = [each for each in list(self.plans) if each.id and not each.cancelling and each.over_at == float("inf")]
        if not known:
            return
        client, each = self._world.client, chance.choice(known)
        what = chance.choice(("cancel", "suspend", "suspend", "scale", "scale", "update", "cordon"))
        what = "suspend" if each.suspended else what
        self._say(f"{what} {each.id}")
        each.changes += 1
        try:
            if what == "cancel":
                each.cancelling = True
                client.cancel(each.id)
                each.cancelled = True
            elif what == "suspend":
                client.resume(each.id) if each.suspended else client.suspend(each.id, force=True)
                each.suspended = not each.suspended
            elif what == "scale":
                client.scale(each.id, chance.randint(1, 4), force=True)
            elif what == "update":
                client.update(each.id, priority=chance.randint(-5, 5))
            else:
                self._close_or_open(chance.choice(("node-0", "far-0")))
        except LevadaError as refused:
            each.suspended = False  # it is over, or nobody knows
            self._say(f"  {what} {each.id}: {refused}")

    def _close_or_open(self, node: str) -> None:
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
            each = Plan(f"j{len(self.plans)}-{kind}", kind, chance.choice((1, 20, 60, 120)), code, retries)
            self.plans.append(each)
        told = self._document(each, chance)
        key = f"{each.name}-{chance.random()}"
        way = chance.choice((self._by_sdk, self._by_sdk, self._by_http, self._by_cli, self._once))
        end = time.monotonic() + WAIT_S
        while not each.id:
            try:
                way(each, told, key)
                if way == self._once:
                    return
            except (BadInput, NotFound, Refused) as bad:
                raise AssertionError(f"{each.name} was not taken: {bad}") from bad
            except (LevadaError, OSError):
                assert time.monotonic() < end, f"{each.name}: no answer for {WAIT_S} s"
                time.sleep(0.2)
        self._say(f"submitted {each.id}")

    def _document(self, each: Plan, chance: random.Random) -> dict[str, Any]:
        least = 1 if each.kind in _GAVEL else chance.randint(1, 2)
        python = [sys.executable]
        if each.kind in _GAVEL:
            python += ["-m", "levada.runtime.gavel"]
        elif each.kind != "elastic":
            python += ["-S", "-E"]
        told = document(
            each.name,
            [*python, _SCRIPT, str(self._world.ledger), each.kind, str(each.steps), str(each.code)],
            workers={"min": least, "max": 1 if each.kind in _GAVEL else chance.randint(least, 4)},
            retries=each.retries,
            preemptible=chance.choice(("auto", True)) if each.kind != "plain" else "auto",
            priority=chance.randint(-3, 3),
            checkpoint={"gracePeriod": "2s"},
            **chance.choice(({}, {"gpuTypes": ["a100"]}, {"gpuTypes": ["v100", "a100"]})),
        )
        if each.kind in COUNTED:
            told["spec"]["steps"] = each.steps
        told["spec"]["run"]["workdir"] = str(self._world.folder)
        return told

    # --- ways to submit: each returns with the id, or raises where it has no answer yet ---------------------------

    def _by_sdk(self, each: Plan, told: dict[str, Any], key: str) -> None:
        (job,) = self._world.client.submit(told, key=key)
        each.id = job["id"]

    def _by_http(self, each: Plan, told: dict[str, Any], key: str) -> None:
        here = owners(str(self._world.site.home))
        if here is None:
            raise NoServer("not yet")
        headers = {"Authorization": f"Bearer {here.token}", "Content-Type": "application/json", "Idempotency-Key": key}
        request = urllib.request.Request(f"{here.url}/api/v1/jobs", json.dumps([told]).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=30.0) as answer:
                (job,) = json.loads(answer.read())["items"]
        except urllib.error.HTTPError as error:
            with error:
                raise LevadaError(f"{error.code} {error.read()!r}") from None
        except ValueError as cut:
            raise NoServer(str(cut)) from None
        each.id = job["id"]

    def _by_cli(self, each: Plan, told: dict[str, Any], key: str) -> None:
        path = self._world.folder / f"{each.name}.json"
        path.write_text(json.dumps(told))
        words = ["submit", "-f", str(path), "--key", key, "-o", "name", "--state", str(self._world.site.home)]
        done = subprocess.run(
            [sys.executable, "-m", "levada", *words], capture_output=True, text=True, env=_ENVIRONMENT, check=False
        )
        if done.returncode:
            raise LevadaError(done.stderr)
        each.id = done.stdout.strip()

    def _once(self, each: Plan, told: dict[str, Any], key: str) -> None:
        """One try: an answer that says no means that there is no job, and never will be."""
        try:
            with Client(state=str(self._world.site.home), timeout_s=30.0, patience_s=0.0) as client:
                (job,) = client.submit(told, key=key)
                each.id = job["id"]
        except NoServer:
            self._say(f"nobody knows whether {each.name} was taken")
        except LevadaError as refusal:
            each.refused = True
            self._say(f"{each.name} was refused: {refusal}")

    def _say(self, text: str) -> None:
        self._log.append(f"{time.time():.3f} {text}")

    # --- the end --------------------------------------------------------------------------------------------------

    def settle(self) -> list[dict[str, Any]]:
        """Everything that keeps jobs from their end goes; all jobs when they are over, or when that takes too long."""
        client, end = self._world.client, time.monotonic() + 3 * WAIT_S
        for node in list(self._cordoned):
            client.uncordon(node)
        while True:
            jobs = self.look()
            living = [job for job in jobs if job["phase"] not in OVER]
            if not living or time.monotonic() > end:
                break
            for job in living:
                if job["phase"] == "Suspended":
                    with contextlib.suppress(LevadaError):
                        client.resume(job["id"])
            time.sleep(0.2)
        # Of those that nobody knew of, too.
        names = {job["workload"]: job["id"] for job in jobs}
        for each in self.plans:
            each.id = each.id or names.get(each.name, "")
        return jobs
