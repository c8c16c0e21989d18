"""Faults of the soak: a plan that depends only on the seed, and its execution."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from tests.soak.ledger import JobPlan
from tests.soak.system import System, Target, resume_all

#: Relative frequency of faults.
_KINDS = {
    "kill server": 4,
    "kill agent": 2,
    "kill shim": 3,
    "kill reaper": 2,
    "kill worker": 3,
    "freeze server": 1,
    "freeze agent": 1,
    "freeze shim": 2,
    "freeze reaper": 2,
    "freeze worker": 2,
    "freeze all": 2,
    "load": 1,
    "restart store": 3,
}
_PROCESSES = ("server", "agent", "shim", "reaper", "worker")
_LONGEST_PAUSE_S, _LONGEST_FREEZE_S, _LONGEST_LOAD_S = 1.5, 4.0, 3.0


class Fault(NamedTuple):
    """One fault. *which* selects among the running processes, *length* is the duration as a fraction of its limit."""

    pause_s: float
    kind: str
    which: float
    length: float
    #: Two faults at once: workers are killed while no server runs, and the starting server is killed again.
    twice: bool

    def __str__(self) -> str:
        return f"{self.pause_s:.2f} s, then {self.kind} ({self.which:.3f}, {self.length:.3f}{', twice' if self.twice else ''})"


def fault_plan(seed: int, store: bool) -> Iterator[Fault]:
    """The endless sequence of faults of *seed*; without *store* no database is restarted."""
    chance = random.Random(seed)
    kinds = [kind for kind in _KINDS if store or kind != "restart store"]
    weights = [_KINDS[kind] for kind in kinds]
    while True:
        (kind,) = chance.choices(kinds, weights)
        pause_s = _LONGEST_PAUSE_S * chance.random() ** 2
        yield Fault(pause_s, kind, chance.random(), chance.random(), chance.random() < 0.25)


class Injector:
    """Executes faults, and records them in the plans of the affected jobs and in *log*."""

    def __init__(self, world: System, plans: list[JobPlan], log: list[str]) -> None:
        self._world, self._plans, self._log = world, plans, log
        self.done: Counter[str] = Counter()
        #: Frozen processes with the time of their resumption.
        self._frozen: list[tuple[float, Target]] = []
        self._store_back: float | None = None
        self._loads: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def inject(self, fault: Fault) -> None:
        """Execute one fault; do nothing if there is no such process."""
        verb, _, what = fault.kind.partition(" ")
        if verb == "load":
            self._load_cores(_LONGEST_LOAD_S * fault.length)
        elif what == "store":
            self._restart_store(2.0 * _LONGEST_FREEZE_S * fault.length**2)
        elif what == "all":
            self._freeze_all(_LONGEST_FREEZE_S * fault.length)
        elif verb == "freeze":
            self._freeze(fault)
        elif what == "server":
            self._kill_server(fault)
        elif what == "agent":
            self._world.kill_agent()
            self._record(fault.kind, "")
        else:
            self._kill(what, fault.which)

    def end_due_faults(self) -> None:
        """Resume due processes, start a due store, and restart servers and agents that ended."""
        now = time.monotonic()
        due = [target for until, target in self._frozen if until <= now]
        self._frozen = [(until, target) for until, target in self._frozen if until > now]
        resume_all(due)
        if self._store_back is not None and self._store_back <= now:
            self._store_back = None
            self._world.start_store()
        self._world.restart_ended()

    def end_all_faults(self) -> None:
        """End all faults; return when the server is ready."""
        resume_all([target for _, target in self._frozen])
        self._frozen.clear()
        for load in self._loads:
            load.kill()
            load.wait()
        self._loads.clear()
        if self._store_back is not None:
            self._store_back = None
            self._world.start_store()
        self._world.wait_until_up()

    # --- kinds of faults ------------------------------------------------------------------------------------------

    def _kill_server(self, fault: Fault) -> None:
        if not self._world.is_ready():
            return  # the server must become ready between kills
        self._world.kill_server()
        self._record(fault.kind, "")
        if fault.twice:
            self._kill("worker" if fault.which < 0.5 else "shim", fault.length)
        time.sleep(fault.length)
        if self._world.store_up:
            self._world.start_server()
            if fault.twice:
                time.sleep(2.0 * fault.which)
                self._world.kill_server()
                self._record(fault.kind, "while it starts")
                self._world.start_server()

    def _kill(self, what: str, which: float) -> None:
        targets = self._world.targets(what)
        if not targets:
            return
        target = targets[int(which * len(targets))]
        self._record_disturbed(target, kill=what != "reaper")
        if target.signal(signal.SIGKILL):
            self._record(f"kill {what}", f"{target.job} {target.worker}")

    def _freeze(self, fault: Fault) -> None:
        what = fault.kind.removeprefix("freeze ")
        targets = self._world.targets(what)
        if not targets:
            return
        target = targets[int(fault.which * len(targets))]
        self._record_disturbed(target, kill=False)
        if target.signal(signal.SIGSTOP):
            length_s = _LONGEST_FREEZE_S * fault.length
            self._frozen.append((time.monotonic() + length_s, target))
            self._record(fault.kind, f"{target.job} {target.worker} for {length_s:.1f} s")

    def _freeze_all(self, length_s: float) -> None:
        """Freeze all processes, like a stalled machine."""
        targets = [target for what in _PROCESSES for target in self._world.targets(what)]
        for target in targets:
            self._record_disturbed(target, kill=False)
            target.signal(signal.SIGSTOP)
        self._record("freeze all", f"{len(targets)} processes for {length_s:.1f} s")
        time.sleep(length_s)
        resume_all(targets)

    def _load_cores(self, length_s: float) -> None:
        """Keep all cores busy."""
        self._loads = [load for load in self._loads if load.poll() is None]
        code = f"import time; end = time.monotonic() + {length_s}\nwhile time.monotonic() < end: pass"
        self._loads += [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(2 * (os.cpu_count() or 1))]
        self._record("load", f"for {length_s:.1f} s")

    def _restart_store(self, length_s: float) -> None:
        if self._world.database is None or not self._world.store_up:
            return
        self._record("restart store", f"away for {length_s:.1f} s")
        self._world.stop_store()
        self._store_back = time.monotonic() + length_s

    def _record_disturbed(self, target: Target, *, kill: bool) -> None:
        """Record a disturbed job, before the signal is sent."""
        for plan in list(self._plans):
            if target.job.startswith(plan.name + "-2"):
                plan.disturbed = True
                if kill:
                    plan.killed.append(target.worker)

    def _record(self, kind: str, more: str) -> None:
        self.done[kind] += 1
        self._log.append(f"{time.time():.3f} {kind.upper()} {more}".rstrip())
