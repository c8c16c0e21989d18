"""Supervisor of one machine: runs workers on command and reports their status.

It knows workers, not operations. Its state is in the folders of the jobs and in the kernel, so another supervisor can
take over at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from levada.backends.local import environment, logs, safe_fs, shim, worker_files
from levada.backends.local.epoch_fence import EpochFence
from levada.backends.local.members import started_in
from levada.backends.local.supervisor_protocol import (
    STARTING,
    CheckpointStatus,
    Command,
    Forget,
    Kill,
    LastCommand,
    PollFast,
    Publish,
    StartWorker,
    StatusUpdate,
    WorkerStatus,
)
from levada.backends.local.trash import Trash
from levada.backends.local.worker import Worker, find_status
from levada.errors import LevadaError, Refused

_log = logging.getLogger(__name__)
#: Period in which reports are read, normally and while an operation waits for them.
_POLL_S, _FAST_POLL_S = 1.0, 0.05
#: Period in which the checkpoint directorys of jobs without the runtime are scanned.
_LOOK_S = 3.0
#: Trash folders: in the home, and beside checkpoints that machines share.
_GONE, _SHARED_GONE = "gone", ".gone"
#: Every 30th round the watch of a worker is checked, too: it may have been lost.
_RECHECK_EVERY = 30
#: Every 5th round shims are checked: one may be stopped while its worker has ended.
_SHIM_EVERY = 5
#: Folders of ended workers kept per index, for `logs --previous`.
_KEEP = 3

#: Shims started by closed supervisors of this process, which must reap them as their parent.
_UNWATCHED: list[subprocess.Popen[bytes]] = []


class _Job:
    """The workers and the last command of a job on this machine."""

    def __init__(self, job: str, folder: Path) -> None:
        self.id, self.folder = job, folder
        self.workers: dict[str, Worker] = {}
        self.last_command: LastCommand | None = None
        self.checkpoint = CheckpointStatus(job=job)
        self.poll_fast = False

    def alive(self) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.status.alive]


class Supervisor:
    """Runs the workers below *home*; *send* gets their status updates."""

    def __init__(self, home: Path, send: Callable[[StatusUpdate], None], checkpoints: str = "") -> None:
        self.home, self.checkpoints = home, checkpoints
        self._fence = EpochFence(home)
        self.jobs: dict[str, _Job] = {}
        self._send = send
        self._changed: dict[tuple[str, str], WorkerStatus] = {}
        self._changed_checkpoints: dict[str, CheckpointStatus] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._trash = Trash(home / _GONE)
        self._shared_trash = Trash(Path(checkpoints) / _SHARED_GONE) if checkpoints else None
        self._wakeup = asyncio.Event()
        self._rounds = 0

    # --- lifecycle --------------------------------------------------------------------------------------------------

    def take_epoch(self, epoch: int) -> None:
        """Accept only commands of *epoch* or later from now on; raises Refused if a newer epoch is known."""
        self._fence.take(epoch, self._last_commanded)

    def _last_commanded(self) -> int:
        commands = [_read_last_command(folder / worker_files.JOB) for folder in _folders(self.home / "jobs")]
        return max((command.epoch for command in commands if command is not None), default=0)

    async def open(self) -> None:
        """Find running workers and start to watch them."""
        _raise_file_limit()
        _UNWATCHED[:] = [child for child in _UNWATCHED if child.poll() is None]
        await asyncio.to_thread(self._find_jobs)
        for job in self.jobs.values():
            for worker in job.workers.values():
                worker.take_over()
        self._tasks += [asyncio.create_task(self._run()), asyncio.create_task(self._scan_checkpoints())]
        for trash in filter(None, (self._trash, self._shared_trash)):
            trash.open()

    async def close(self) -> None:
        """Stop watching; workers continue."""
        tasks = [
            worker.task for job in self.jobs.values() for worker in job.workers.values() if worker.task is not None
        ]
        tasks += self._tasks
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for trash in filter(None, (self._trash, self._shared_trash)):
            await trash.close()
        children = (worker.child for job in self.jobs.values() for worker in job.workers.values())
        _UNWATCHED.extend(child for child in children if child is not None)

    async def watches(self) -> None:
        """Wait until watching fails; raises LevadaError then and never returns."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        error = next((task.exception() for task in done if not task.cancelled()), None)
        raise LevadaError(f"the supervisor stopped watching workers ({error!r})")

    def full_status(self) -> StatusUpdate:
        """The current status of all workers and checkpoints."""
        jobs = self.jobs.values()
        return StatusUpdate(
            workers=tuple(worker.status for job in jobs for worker in job.workers.values()),
            checkpoints=tuple(job.checkpoint for job in jobs),
            last_commands=tuple(job.last_command for job in jobs if job.last_command is not None),
        )

    def _find_jobs(self) -> None:
        for folder in _folders(self.home / "jobs"):
            job = self.jobs[folder.name] = _Job(folder.name, folder)
            try:
                self._find_workers(job)
            except OSError as error:  # must not hide the other jobs
                _log.warning("skipping job %s: its folder cannot be read: %s", job.id, error)

    def _find_workers(self, job: _Job) -> None:
        job.last_command = _read_last_command(job.folder / worker_files.JOB)
        job.checkpoint = CheckpointStatus(job=job.id, saved_at=safe_fs.newest_change(self._checkpoints_of(job)))
        for folder in _folders(job.folder / worker_files.WORKERS):
            if (folder / shim.SPEC).exists():
                job.workers[folder.name] = Worker(folder, find_status(job.id, folder), self._on_change)

    # --- commands ---------------------------------------------------------------------------------------------------

    def do(self, command: Command) -> None:
        """Execute a command; raises Refused if a newer epoch is known."""
        self.check(command.epoch)
        if isinstance(command, Forget):
            self._forget(command)
            return
        job = self._job(command.job)
        if isinstance(command, StartWorker | Publish):
            self._record_command(job, command)
            self._checkpoints_of(job).mkdir(parents=True, exist_ok=True, mode=0o700)
        if isinstance(command, StartWorker):
            self._start(job, command)
        elif isinstance(command, Publish):
            self._publish(job, command)
        elif isinstance(command, PollFast):
            job.poll_fast = command.on
        else:
            for worker in [job.workers[name] for name in command.names if name in job.workers]:
                worker.end(at_once=isinstance(command, Kill))
        self._wakeup.set()

    def check(self, epoch: int) -> None:
        """Raise Refused if an epoch newer than *epoch* is known."""
        self._fence.check(epoch)

    def _job(self, name: str) -> _Job:
        job = self.jobs.get(name)
        if job is None:
            job = self.jobs[name] = _Job(name, self._folder(name))
            job.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return job

    def _folder(self, name: str) -> Path:
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise Refused(f"{name!r} is not a valid folder name")
        return self.home / "jobs" / name

    def _checkpoints_of(self, job: _Job) -> Path:
        number = 0 if job.last_command is None else job.last_command.number
        return Path(worker_files.checkpoint_folder(str(job.folder), self.checkpoints, job.id, number))

    def _record_command(self, job: _Job, command: StartWorker | Publish) -> None:
        last = LastCommand(job=job.id, number=command.number, generation=command.generation, epoch=command.epoch)
        if last != job.last_command:
            job.last_command = last
            worker_files.write_json(job.folder / worker_files.JOB, last)

    def _publish(self, job: _Job, command: Publish) -> None:
        if command.hosts:
            hosts = "".join(f"{line}\n" for line in command.hosts)
            safe_fs.replace_file(job.folder / worker_files.HOSTS, hosts.encode())
            script = b'#!/bin/sh\nexec cat "$(dirname "$0")/hosts"\n'
            safe_fs.replace_file(job.folder / worker_files.DISCOVER_HOSTS, script, mode=0o700)
        worker_files.write_json(job.folder / worker_files.WORLD, command.world)

    def _start(self, job: _Job, command: StartWorker) -> None:
        if command.name in job.workers:
            return
        folder = job.folder / worker_files.WORKERS / command.name
        worker = Worker(folder, WorkerStatus(job=job.id, name=command.name, state=STARTING), self._on_change)
        self._prune(job, command.name)
        job.workers[command.name] = worker
        worker.start(msgspec.structs.replace(command.spec, env=environment.complete(command.spec.env, os.environ)))

    def _prune(self, job: _Job, name: str) -> None:
        """Delete the oldest folders of ended workers with the same index."""
        index = name.partition("-")[2]
        workers = [worker for other, worker in job.workers.items() if other.partition("-")[2] == index]
        old = sorted((worker.status.name for worker in workers if not worker.status.alive), key=started_in)
        for other in old[: max(0, len(old) - _KEEP + 1)]:
            with contextlib.suppress(OSError):
                self._trash.take(job.workers.pop(other).folder)

    def _forget(self, command: Forget) -> None:
        """Delete the folder and the checkpoints of a job, but not those of another job of the same name."""
        job = self.jobs.get(command.job) or _Job(command.job, self._folder(command.job))
        other = command.number and job.last_command is not None and job.last_command.number != command.number
        if other or job.alive():
            return
        number = command.number or (0 if job.last_command is None else job.last_command.number)
        self.jobs.pop(command.job, None)
        self._trash.take(job.folder)
        if self._shared_trash is not None:
            shared = worker_files.checkpoint_folder(str(job.folder), self.checkpoints, job.id, number)
            self._shared_trash.take(Path(shared))

    # --- watching ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Read and send reports until cancelled; an error is logged and does not affect other jobs."""
        next_round = time.monotonic()
        while True:
            is_due = time.monotonic() >= next_round
            if is_due:
                next_round = time.monotonic() + _POLL_S
            try:
                self._poll_jobs(fast_only=not is_due)
                self._flush()
            except Exception:
                _log.exception("polling workers failed")
            self._wakeup.clear()
            if any(job.poll_fast for job in self.jobs.values()):
                await asyncio.sleep(_FAST_POLL_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(next_round - time.monotonic()):
                    await self._wakeup.wait()

    def _poll_jobs(self, *, fast_only: bool) -> None:
        """Poll all jobs, or with *fast_only* those that an operation waits for."""
        if fast_only:
            for job in [job for job in self.jobs.values() if job.poll_fast]:
                self._poll_job(job)
            return
        self._rounds += 1
        for at, job in enumerate(list(self.jobs.values())):
            self._poll_job(job)
            if (at + self._rounds) % _SHIM_EVERY == 0:
                self._check_shims(job)
            if (at + self._rounds) % _RECHECK_EVERY == 0:
                for worker in job.alive():
                    worker.recheck()

    def _poll_job(self, job: _Job) -> None:
        """Poll the live workers of a job."""
        for worker in job.alive():
            try:
                worker.poll()
            except OSError as error:
                _log.warning("polling worker %s of %s failed: %s", worker.status.name, job.id, error)

    def _check_shims(self, job: _Job) -> None:
        for worker in job.alive():
            try:
                worker.check_shim()
            except OSError as error:
                _log.warning("checking shim of worker %s of %s failed: %s", worker.status.name, job.id, error)

    async def _scan_checkpoints(self) -> None:
        """Scan the checkpoint directorys of jobs without the runtime for progress, one after the other in a thread."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for job in list(self.jobs.values()):
                alive = job.alive()
                if not alive or any(worker.status.reading is not None for worker in alive):
                    continue
                try:
                    status = await asyncio.to_thread(_scan, job.id, self._checkpoints_of(job))
                except Exception:
                    _log.exception("scanning checkpoints of %s failed", job.id)
                    continue
                if status != job.checkpoint and self.jobs.get(job.id) is job:
                    job.checkpoint = self._changed_checkpoints[job.id] = status

    # --- status updates ---------------------------------------------------------------------------------------------

    def _on_change(self, status: WorkerStatus, urgent: bool) -> None:
        self._changed[status.job, status.name] = status
        if urgent:
            self._flush()

    def _flush(self) -> None:
        if self._changed or self._changed_checkpoints:
            workers, checkpoints = tuple(self._changed.values()), tuple(self._changed_checkpoints.values())
            self._changed, self._changed_checkpoints = {}, {}
            self._send(StatusUpdate(workers=workers, checkpoints=checkpoints))

    def saved_by(self, job: str) -> int:
        """The newest generation of workers that has saved a checkpoint of a job here; 0 if none has."""
        known = self.jobs.get(job)
        try:
            return 0 if known is None else int(safe_fs.read_file(self._checkpoints_of(known) / worker_files.FENCE, 64))
        except (OSError, ValueError):
            return 0

    # --- logs -------------------------------------------------------------------------------------------------------

    def folder_of(self, job: str, name: str) -> Path | None:
        """The folder of a worker; None if it is unknown."""
        known = self.jobs.get(job)
        worker = None if known is None else known.workers.get(name)
        return None if worker is None else worker.folder

    async def log_end(self, job: str, name: str, lines: int) -> logs.Cursor:
        """The position of the last *lines* lines of a worker's log."""
        folder = self.folder_of(job, name)
        return logs.Cursor() if folder is None else await asyncio.to_thread(logs.end_of, folder, lines)

    async def read_log(self, job: str, name: str, cursor: logs.Cursor, *, rest: bool) -> logs.Chunk:
        """Log lines of a worker after *cursor*."""
        folder = self.folder_of(job, name)
        if folder is None:
            return logs.Chunk((), cursor)
        return await asyncio.to_thread(logs.read, folder, cursor, rest=rest)


def _folders(parent: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from sorted(path for path in parent.iterdir() if path.is_dir())


def _read_last_command(path: Path) -> LastCommand | None:
    try:
        return msgspec.json.decode(safe_fs.read_file(path), type=LastCommand)
    except (OSError, msgspec.DecodeError):
        return None


def _scan(job: str, folder: Path) -> CheckpointStatus:
    return CheckpointStatus(
        job=job, saved_at=safe_fs.newest_change(folder), epochs=worker_files.epochs_in_csv(folder / f"{job}.csv")
    )


def _raise_file_limit() -> None:
    """Raise the limit of open files to its maximum: each watched worker takes a handle."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
