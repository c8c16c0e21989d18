"""Simulated processes of the real supervisor: shims, workers and signals, in virtual time.

`Processes` has the functions of `levada.backends.local.processes` that `worker.py` calls, with the same guarantees: of
several shims of one folder one runs its worker, and a folder whose worker has ended never runs another. Starts and ends
are recorded in a ledger, which the checks use.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from levada.backends.local import shim, worker_files
from levada.backends.local.processes import ProcessState, ProcessStatus, WorkerSpec
from levada.backends.local.procfs import Process
from levada.runtime.report import COMPLETE, IN_PROCESS, READY, ProgressReport, Writer
from tests.interleavings.scheduler import SeededLoop

#: The owner of simulated processes, which is never killed.
KERNEL = "kernel"
_KILLED = -9


class ProcessFact(NamedTuple):
    """One line of the ledger."""

    at: float
    what: str
    job: str
    worker: str
    code: int | None = None
    asked: bool = False
    #: Number of workers of its generation.
    size: int = 1


class ShimProcess:
    """The result of `start`: a shim that runs its worker or finds that it may not."""

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

    def __init__(self, job: str, name: str, spec: WorkerSpec, pid: int, child: ShimProcess, began: float) -> None:
        self.job, self.name, self.spec, self.pid, self.child, self.began = job, name, spec, pid, child, began
        self.state, self.code, self.asked = ProcessState.RUNS, None, False
        self.over = asyncio.Event()
        #: When its work is complete.
        self.ends_at = float("inf")
        #: The report and the current generation of a worker with the runtime.
        self.report: Writer | None = None
        self.world, self.looked_at = 0, began


class Processes:
    """All processes of one machine."""

    ProcessState, WorkerSpec = ProcessState, WorkerSpec

    def __init__(self, loop: SeededLoop) -> None:
        self._loop, self._chance = loop, loop.chance
        self._workers: dict[str, _Worker] = {}
        self._barred: set[str] = set()
        self._pids = 1000
        #: Seconds of work that are saved, by job.
        self._saved: dict[str, float] = {}
        self.ledger: list[ProcessFact] = []

    # --- interface of the supervisor ------------------------------------------------------------------------------

    def start(self, folder: Path, spec: WorkerSpec) -> ShimProcess:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / shim.SPEC).exists():
            (folder / shim.SPEC).write_bytes(msgspec.json.encode(spec))
        child = ShimProcess()
        self._loop.after(KERNEL, self._random_delay_s(), lambda: self._run_shim(folder, spec, child))
        return child

    def inspect(self, folder: Path) -> ProcessStatus:
        worker = self._workers.get(str(folder))
        if worker is None:
            return (
                ProcessStatus(state=ProcessState.ENDED, asked=True)
                if str(folder) in self._barred
                else ProcessStatus(state=ProcessState.ABSENT)
            )
        return ProcessStatus(state=worker.state, pid=worker.pid, code=worker.code, asked=worker.asked)

    def ask_to_leave(self, folder: Path) -> bool:
        worker = self._running_in(folder)
        if worker is None:
            return False
        if not worker.asked:
            worker.asked = True
            self._loop.after(KERNEL, self._random_delay_s(), lambda: self._leave(worker))
        return True

    def kill(self, folder: Path) -> bool:
        worker = self._running_in(folder)
        if worker is not None:
            self._loop.after(KERNEL, self._random_delay_s(), lambda: self._end(worker, None, ProcessState.LOST))
        return worker is not None

    def look(self, pid: int) -> Process | None:
        """`procfs.look` for simulated workers."""
        running = [worker for worker in self._running() if worker.pid == pid]
        return Process(pid, 1, 0, is_zombie=False) if running else None

    def idle_shim(self, _folder: Path) -> None:
        """None: simulated shims end with their worker."""

    def kill_start(self, child: ShimProcess) -> None:
        child.end(_KILLED)

    def reaper_lives(self, _folder: Path) -> bool:
        return False

    def prevent_start(self, folder: Path) -> bool:
        if str(folder) in self._workers:
            return False
        self._barred.add(str(folder))
        return True

    async def wait_reaped(self, child: ShimProcess) -> int:
        await child.over.wait()
        return child.code

    async def wait_ended(self, folder: Path, child: ShimProcess | None = None) -> ProcessStatus:
        worker = self._running_in(folder)
        if worker is not None:
            await worker.over.wait()
        if child is not None:
            await child.over.wait()
        return self.inspect(folder)

    def kill_marked(self, _marks: Any) -> list[int]:
        return []

    # --- interface of tests ---------------------------------------------------------------------------------------

    def alive(self) -> dict[str, set[str]]:
        """Names of running workers by job."""
        names: dict[str, set[str]] = {}
        for worker in self._workers.values():
            if worker.state is ProcessState.RUNS:
                names.setdefault(worker.job, set()).add(worker.name)
        return names

    def next_end_s(self) -> float:
        """Seconds until a worker completes its work; infinity if none will."""
        ends = [worker.ends_at for worker in self._workers.values() if worker.state is ProcessState.RUNS]
        return min(ends, default=float("inf")) - self._loop.time()

    def kill_random_worker(self) -> None:
        """Kill a random worker or its shim."""
        running = self._running()
        if running:
            worker = self._chance.choice(running)
            if self._chance.random() < 0.5:
                self._end(worker, _KILLED, ProcessState.ENDED)
            else:
                self._end(worker, None, ProcessState.LOST)

    def end_job(self, job: str, code: int) -> None:
        """End all workers of *job* with this code."""
        for worker in self._running():
            if worker.job == job:
                self._end(worker, code, ProcessState.ENDED)

    def lose_node(self, node: str) -> set[str]:
        """Lose all workers on *node* without an exit code; return their jobs."""
        lost = [worker for worker in self._running() if worker.spec.env["LEVADA_NODE"] == node]
        for worker in lost:
            self._end(worker, None, ProcessState.LOST)
        return {worker.job for worker in lost}

    def _running(self) -> list[_Worker]:
        return [worker for worker in self._workers.values() if worker.state is ProcessState.RUNS]

    # --- simulated workers ----------------------------------------------------------------------------------------

    def _random_delay_s(self) -> float:
        return self._chance.choice((0.0, 0.01, 0.1, 1.0)) * self._chance.random()

    def _running_in(self, folder: Path) -> _Worker | None:
        worker = self._workers.get(str(folder))
        return worker if worker is not None and worker.state is ProcessState.RUNS else None

    def _run_shim(self, folder: Path, spec: WorkerSpec, child: ShimProcess) -> None:
        if child.over.is_set():
            return None
        if str(folder) in self._barred:
            return child.end(shim.FINISHED_BEFORE)
        if str(folder) in self._workers:
            is_running = self._workers[str(folder)].state is ProcessState.RUNS
            return child.end(shim.ALREADY_RUNS if is_running else shim.FINISHED_BEFORE)
        job, name = spec.env["LEVADA_JOB"], folder.name
        self._pids += 1
        worker = self._workers[str(folder)] = _Worker(job, name, spec, self._pids, child, self._loop.time())
        self.ledger.append(ProcessFact(self._loop.time(), "start", job, name, size=int(spec.env["LEVADA_WORLD_SIZE"])))
        _, work_s, code, variant = spec.argv
        if variant == "elastic":
            worker.report = Writer(folder)
            self._train(worker, folder)
            return None
        saved = self._saved.get(job, 0.0) if variant == "saves" else 0.0
        left_s = max(0.0, float(work_s) - saved) + self._random_delay_s()
        worker.ends_at = self._loop.time() + left_s
        self._loop.after(KERNEL, left_s, lambda: self._end(worker, int(code), ProcessState.ENDED))
        return None

    def _train(self, worker: _Worker, folder: Path) -> None:
        """One poll of the runtime of an elastic worker: report, join a generation, or end when complete."""
        if worker.state is not ProcessState.RUNS or worker.report is None:
            return None
        now, job = self._loop.time(), worker.job
        world = _read_world(folder.parent.parent)
        if world is not None and world.generation > worker.world:
            if worker.name not in world.members:
                if worker.world:
                    return self._end(worker, worker_files.LEFT, ProcessState.ENDED)
            elif {*world.members} <= self.alive().get(job, set()):
                worker.world, worker.began = world.generation, now
        elif world is not None and worker.world and not {*world.members} <= self.alive().get(job, set()):
            # A step needs all members: without them there is no progress until the next generation.
            worker.began += now - worker.looked_at
        worker.looked_at = now
        # All members share their progress; it is lost with the last member.
        done_s = self._saved.get(job, 0.0) + (now - worker.began if worker.world else 0.0)
        complete = bool(worker.world) and done_s >= float(worker.spec.argv[1])
        flags = READY | IN_PROCESS | (COMPLETE if complete else 0)
        worker.report.write(ProgressReport(flags=flags, generation=worker.world, step=done_s))
        if complete:
            return self._end(worker, 0, ProcessState.ENDED)
        self._loop.after(KERNEL, 0.1 + 0.2 * self._chance.random(), lambda: self._train(worker, folder))
        return None

    def _leave(self, worker: _Worker) -> None:
        if worker.spec.argv[3] == "stubborn":
            self._loop.after(KERNEL, worker.spec.grace_s, lambda: self._end(worker, _KILLED, ProcessState.ENDED))
        else:
            self._end(worker, worker_files.LEFT, ProcessState.ENDED)

    def _end(self, worker: _Worker, code: int | None, state: ProcessState) -> None:
        if worker.state is not ProcessState.RUNS:
            return
        if code == worker_files.LEFT and worker.spec.argv[3] in ("saves", "elastic"):
            done = self._saved.get(worker.job, 0.0) + self._loop.time() - worker.began
            self._saved[worker.job] = max(self._saved.get(worker.job, 0.0), done)
        worker.state, worker.code = state, code
        self.ledger.append(ProcessFact(self._loop.time(), "end", worker.job, worker.name, code, worker.asked))
        worker.over.set()
        worker.child.end(shim.DONE)


def _read_world(folder: Path) -> worker_files.WorldFile | None:
    """The published generation of the job in *folder*."""
    try:
        return msgspec.json.decode((folder / worker_files.WORLD).read_bytes(), type=worker_files.WorldFile)
    except FileNotFoundError:
        return None
