"""Simulated processes below the real supervisor: shims, workers, signals and ends, in virtual time.

`Processes` has the functions of `levada.backends.local.processes` that `worker.py` calls, with the same promises: of
several shims of one folder one runs its worker, and a folder whose worker has ended never runs another. Starts and ends
go to a ledger, which is all that the checks look at.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from levada.backends.local import files, shim
from levada.backends.local.processes import Spec, Standing, State
from levada.backends.local.procfs import Process
from levada.runtime.report import COMPLETE, IN_PROCESS, READY, Report, Writer
from tests.interleavings.scheduler import SeededLoop

#: The process that simulated processes belong to: it is never killed.
KERNEL = "kernel"
_KILLED = -9


class Fact(NamedTuple):
    """One line of the ledger."""

    at: float
    what: str
    job: str
    worker: str
    code: int | None = None
    asked: bool = False
    #: Workers of its generation.
    size: int = 1


class Child:
    """What `start` returns: a shim that becomes one, or finds that it is too late."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.code = 0

    def poll(self) -> int | None:
        return self.code if self.over.is_set() else None

    def end(self, code: int) -> None:
        self.code = code
        self.over.set()


class _Worker:
    """The worker of one folder and its shim."""

    def __init__(self, job: str, name: str, spec: Spec, pid: int, child: Child, began: float) -> None:
        self.job, self.name, self.spec, self.pid, self.child, self.began = job, name, spec, pid, child, began
        self.state, self.code, self.asked = State.RUNS, None, False
        self.over = asyncio.Event()
        #: When it is done, if nothing happens to it.
        self.ends_at = float("inf")
        #: Of one that uses the runtime: what it reports, and the world that it is in.
        self.report: Writer | None = None
        self.world, self.looked_at = 0, began


class Processes:
    """All processes of one machine."""

    State, Spec = State, Spec

    def __init__(self, loop: SeededLoop) -> None:
        self._loop, self._chance = loop, loop.chance
        self._workers: dict[str, _Worker] = {}
        self._barred: set[str] = set()
        self._pids = 1000
        #: Seconds of work that are saved, by job.
        self._saved: dict[str, float] = {}
        self.ledger: list[Fact] = []

    # --- what the supervisor calls --------------------------------------------------------------------------------

    def start(self, folder: Path, spec: Spec) -> Child:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / shim.SPEC).exists():
            (folder / shim.SPEC).write_bytes(msgspec.json.encode(spec))
        child = Child()
        self._loop.after(KERNEL, self._moment(), lambda: self._run_shim(folder, spec, child))
        return child

    def standing(self, folder: Path) -> Standing:
        worker = self._workers.get(str(folder))
        if worker is None:
            return (
                Standing(state=State.ENDED, asked=True) if str(folder) in self._barred else Standing(state=State.ABSENT)
            )
        return Standing(state=worker.state, pid=worker.pid, code=worker.code, asked=worker.asked)

    def ask_to_leave(self, folder: Path) -> bool:
        worker = self._living(folder)
        if worker is None:
            return False
        if not worker.asked:
            worker.asked = True
            self._loop.after(KERNEL, self._moment(), lambda: self._leave(worker))
        return True

    def kill(self, folder: Path) -> bool:
        worker = self._living(folder)
        if worker is not None:
            self._loop.after(KERNEL, self._moment(), lambda: self._end(worker, None, State.LOST))
        return worker is not None

    def look(self, pid: int) -> Process | None:
        """As `procfs.look`, of the workers."""
        found = [worker for worker in self._workers.values() if worker.pid == pid and worker.state is State.RUNS]
        return Process(pid, 1, 0, is_zombie=False) if found else None

    def idle_shim(self, _folder: Path) -> None:
        """A shim ends with its worker here."""

    def kill_start(self, child: Child) -> None:
        child.end(_KILLED)

    def keeper_lives(self, _folder: Path) -> bool:
        return False

    def bar(self, folder: Path) -> bool:
        if str(folder) in self._workers:
            return False
        self._barred.add(str(folder))
        return True

    async def reaped(self, child: Child) -> int:
        await child.over.wait()
        return child.code

    async def ended(self, folder: Path, child: Child | None = None) -> Standing:
        worker = self._living(folder)
        if worker is not None:
            await worker.over.wait()
        if child is not None:
            await child.over.wait()
        return self.standing(folder)

    def sweep(self, _marks: Any) -> list[int]:
        return []

    # --- what tests see and do ------------------------------------------------------------------------------------

    def alive(self) -> dict[str, set[str]]:
        """Names of the workers that run, by job."""
        found: dict[str, set[str]] = {}
        for worker in self._workers.values():
            if worker.state is State.RUNS:
                found.setdefault(worker.job, set()).add(worker.name)
        return found

    def next_end_s(self) -> float:
        """Seconds until a worker is done; infinity where none will be."""
        ends = [worker.ends_at for worker in self._workers.values() if worker.state is State.RUNS]
        return min(ends, default=float("inf")) - self._loop.time()

    def hurt(self) -> None:
        """Kills a worker, or its shim."""
        living = self._running()
        if living:
            worker = self._chance.choice(living)
            if self._chance.random() < 0.5:
                self._end(worker, _KILLED, State.ENDED)
            else:
                self._end(worker, None, State.LOST)

    def end_job(self, job: str, code: int) -> None:
        """All workers of *job* end with this code."""
        for worker in self._running():
            if worker.job == job:
                self._end(worker, code, State.ENDED)

    def lose_node(self, node: str) -> set[str]:
        """All workers on *node* are gone, and how they ended is not known; the jobs that had some there."""
        lost = [worker for worker in self._running() if worker.spec.env["LEVADA_NODE"] == node]
        for worker in lost:
            self._end(worker, None, State.LOST)
        return {worker.job for worker in lost}

    def _running(self) -> list[_Worker]:
        return [worker for worker in self._workers.values() if worker.state is State.RUNS]

    # --- the life of a worker -------------------------------------------------------------------------------------

    def _moment(self) -> float:
        return self._chance.choice((0.0, 0.01, 0.1, 1.0)) * self._chance.random()

    def _living(self, folder: Path) -> _Worker | None:
        worker = self._workers.get(str(folder))
        return worker if worker is not None and worker.state is State.RUNS else None

    def _run_shim(self, folder: Path, spec: Spec, child: Child) -> None:
        if child.over.is_set():
            return None
        if str(folder) in self._barred:
            return child.end(shim.FINISHED_BEFORE)
        if str(folder) in self._workers:
            living = self._workers[str(folder)].state is State.RUNS
            return child.end(shim.ALREADY_RUNS if living else shim.FINISHED_BEFORE)
        job, name = spec.env["LEVADA_JOB"], folder.name
        self._pids += 1
        worker = self._workers[str(folder)] = _Worker(job, name, spec, self._pids, child, self._loop.time())
        self.ledger.append(Fact(self._loop.time(), "start", job, name, size=int(spec.env["LEVADA_WORLD_SIZE"])))
        _, work_s, code, manner = spec.argv
        if manner == "elastic":
            worker.report = Writer(folder)
            self._train(worker, folder)
            return None
        saved = self._saved.get(job, 0.0) if manner == "saves" else 0.0
        left_s = max(0.0, float(work_s) - saved) + self._moment()
        worker.ends_at = self._loop.time() + left_s
        self._loop.after(KERNEL, left_s, lambda: self._end(worker, int(code), State.ENDED))
        return None

    def _train(self, worker: _Worker, folder: Path) -> None:
        """What the runtime of an elastic worker does from time to time: reports, enters worlds, ends when all is done."""
        if worker.state is not State.RUNS or worker.report is None:
            return None
        now, job = self._loop.time(), worker.job
        world = _read_world(folder.parent.parent)
        if world is not None and world.generation > worker.world:
            if worker.name not in world.members:
                if worker.world:
                    return self._end(worker, files.LEFT, State.ENDED)
            elif {*world.members} <= self.alive().get(job, set()):
                worker.world, worker.began = world.generation, now
        elif world is not None and worker.world and not {*world.members} <= self.alive().get(job, set()):
            # A step needs all members: until there is another world it stands still.
            worker.began += now - worker.looked_at
        worker.looked_at = now
        # All members share what is done; it is lost where nobody of them is left.
        done_s = self._saved.get(job, 0.0) + (now - worker.began if worker.world else 0.0)
        complete = bool(worker.world) and done_s >= float(worker.spec.argv[1])
        flags = READY | IN_PROCESS | (COMPLETE if complete else 0)
        worker.report.write(Report(flags=flags, generation=worker.world, step=done_s))
        if complete:
            return self._end(worker, 0, State.ENDED)
        self._loop.after(KERNEL, 0.1 + 0.2 * self._chance.random(), lambda: self._train(worker, folder))
        return None

    def _leave(self, worker: _Worker) -> None:
        if worker.spec.argv[3] == "stubborn":
            self._loop.after(KERNEL, worker.spec.grace_s, lambda: self._end(worker, _KILLED, State.ENDED))
        else:
            self._end(worker, files.LEFT, State.ENDED)

    def _end(self, worker: _Worker, code: int | None, state: State) -> None:
        if worker.state is not State.RUNS:
            return
        if code == files.LEFT and worker.spec.argv[3] in ("saves", "elastic"):
            done = self._saved.get(worker.job, 0.0) + self._loop.time() - worker.began
            self._saved[worker.job] = max(self._saved.get(worker.job, 0.0), done)
        worker.state, worker.code = state, code
        self.ledger.append(Fact(self._loop.time(), "end", worker.job, worker.name, code, worker.asked))
        worker.over.set()
        worker.child.end(shim.DONE)


def _read_world(folder: Path) -> files.World | None:
    """The world that a job in *folder* was told of."""
    try:
        return msgspec.json.decode((folder / files.WORLD).read_bytes(), type=files.World)
    except FileNotFoundError:
        return None
