"""The supervisor of one machine: starts, watches and ends workers as it is told, and tells what it sees.

It knows workers, not what an operation is; all it knows is in the folders of the jobs and in the kernel, so another one
can take over at any time.
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

from levada.backends.local import environment, files, folders, logs, shim
from levada.backends.local.command import Commander
from levada.backends.local.messages import (
    STARTING,
    Command,
    Forget,
    Hurry,
    Kept,
    Kill,
    News,
    Publish,
    Sighting,
    StartWorker,
    Stood,
)
from levada.backends.local.waste import Waste
from levada.backends.local.worker import Worker, sighting
from levada.errors import LevadaError, Refused

_log = logging.getLogger(__name__)
#: How often reports are read, and how often while somebody waits for them.
_POLL_S, _HURRY_S = 1.0, 0.05
#: How often the folders of jobs without the runtime are looked through.
_LOOK_S = 3.0
#: Where folders go that nobody needs any more: in the home, and beside checkpoints that machines share.
_GONE, _SHARED_GONE = "gone", ".gone"
#: How often a worker that is watched is looked at all the same, in rounds: a watch may have been lost.
_DOUBT_EVERY = 30
#: How often, in rounds, it is checked that no guard is frozen whose worker has ended.
_GUARD_EVERY = 5
#: Folders of workers that have ended are kept so often for each index: `logs --previous`.
_KEEP = 3

#: Shims that this process started and nobody here watches any more; whoever is their parent reaps them.
_LEFT_ALONE: list[subprocess.Popen[bytes]] = []


class _Job:
    """One job's part on this machine."""

    def __init__(self, job: str, folder: Path) -> None:
        self.id, self.folder = job, folder
        self.workers: dict[str, Worker] = {}
        self.stood: Stood | None = None
        self.kept = Kept(job=job)
        self.hurry = False

    def alive(self) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.seen.alive]


class Supervisor:
    """Keeps the workers below *home*."""

    def __init__(self, home: Path, tell: Callable[[News], None], checkpoints: str = "") -> None:
        self.home, self.checkpoints = home, checkpoints
        self._commander = Commander(home)
        self.jobs: dict[str, _Job] = {}
        self._tell_news = tell
        self._changed: dict[tuple[str, str], Sighting] = {}
        self._kept: dict[str, Kept] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._waste = Waste(home / _GONE)
        self._shared_waste = Waste(Path(checkpoints) / _SHARED_GONE) if checkpoints else None
        self._woken = asyncio.Event()
        self._rounds = 0

    # --- life -------------------------------------------------------------------------------------------------------

    def take_epoch(self, epoch: int) -> None:
        """Takes commands of *epoch* or later from now on; raises Refused where somebody newer commands."""
        self._commander.take(epoch, self._last_told)

    def _last_told(self) -> int:
        told = [_read_stood(folder / files.JOB) for folder in _folders(self.home / "jobs")]
        return max((stood.epoch for stood in told if stood is not None), default=0)

    async def open(self) -> None:
        """Finds what runs and begins to watch."""
        _allow_many_files()
        _LEFT_ALONE[:] = [child for child in _LEFT_ALONE if child.poll() is None]
        await asyncio.to_thread(self._find_jobs)
        for job in self.jobs.values():
            for worker in job.workers.values():
                worker.take_over()
        self._tasks += [asyncio.create_task(self._poll()), asyncio.create_task(self._look_around())]
        for waste in filter(None, (self._waste, self._shared_waste)):
            waste.open()

    async def close(self) -> None:
        """Stops watching. Workers go on."""
        tasks = [
            worker.task for job in self.jobs.values() for worker in job.workers.values() if worker.task is not None
        ]
        tasks += self._tasks
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for waste in filter(None, (self._waste, self._shared_waste)):
            await waste.close()
        children = (worker.child for job in self.jobs.values() for worker in job.workers.values())
        _LEFT_ALONE.extend(child for child in children if child is not None)

    async def watches(self) -> None:
        """Returns never; raises LevadaError once it cannot watch any more."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        trouble = next((task.exception() for task in done if not task.cancelled()), None)
        raise LevadaError(f"workers cannot be watched any more ({trouble!r})")

    def everything(self) -> News:
        """How all things are now."""
        jobs = self.jobs.values()
        return News(
            sightings=tuple(worker.seen for job in jobs for worker in job.workers.values()),
            kept=tuple(job.kept for job in jobs),
            stood=tuple(job.stood for job in jobs if job.stood is not None),
        )

    def _find_jobs(self) -> None:
        for folder in _folders(self.home / "jobs"):
            job = self.jobs[folder.name] = _Job(folder.name, folder)
            try:
                self._find_workers(job)
            except OSError as trouble:  # of one job, which must not keep the others from being found
                _log.warning("%s could not be looked at: %s", job.id, trouble)

    def _find_workers(self, job: _Job) -> None:
        job.stood = _read_stood(job.folder / files.JOB)
        job.kept = Kept(job=job.id, saved_at=folders.newest_change(self._saves(job)))
        for place in _folders(job.folder / files.WORKERS):
            if (place / shim.SPEC).exists():
                job.workers[place.name] = Worker(place, sighting(job.id, place), self._note)

    # --- commands ---------------------------------------------------------------------------------------------------

    def do(self, command: Command) -> None:
        """Takes a command; raises Refused where somebody newer commands."""
        self.check(command.epoch)
        if isinstance(command, Forget):
            self._forget(command)
            return
        job = self._job(command.job)
        if isinstance(command, StartWorker | Publish):
            self._note_command(job, command)
            self._saves(job).mkdir(parents=True, exist_ok=True, mode=0o700)
        if isinstance(command, StartWorker):
            self._start(job, command)
        elif isinstance(command, Publish):
            self._publish(job, command)
        elif isinstance(command, Hurry):
            job.hurry = command.on
        else:
            for worker in [job.workers[name] for name in command.names if name in job.workers]:
                worker.end(at_once=isinstance(command, Kill))
        self._woken.set()

    def check(self, epoch: int) -> None:
        """Raises Refused where somebody newer commands."""
        self._commander.check(epoch)

    def _job(self, name: str) -> _Job:
        job = self.jobs.get(name)
        if job is None:
            job = self.jobs[name] = _Job(name, self._folder(name))
            job.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return job

    def _folder(self, name: str) -> Path:
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise Refused(f"{name!r} cannot be a folder's name")
        return self.home / "jobs" / name

    def _saves(self, job: _Job) -> Path:
        number = 0 if job.stood is None else job.stood.number
        return Path(files.checkpoint_folder(str(job.folder), self.checkpoints, job.id, number))

    def _note_command(self, job: _Job, command: StartWorker | Publish) -> None:
        stood = Stood(job=job.id, number=command.number, generation=command.generation, epoch=command.epoch)
        if stood != job.stood:
            job.stood = stood
            files.write_json(job.folder / files.JOB, stood)

    def _publish(self, job: _Job, command: Publish) -> None:
        if command.hosts:
            hosts = "".join(f"{line}\n" for line in command.hosts)
            folders.replace_file(job.folder / files.HOSTS, hosts.encode())
            script = b'#!/bin/sh\nexec cat "$(dirname "$0")/hosts"\n'
            folders.replace_file(job.folder / files.DISCOVER_HOSTS, script, mode=0o700)
        files.write_json(job.folder / files.WORLD, command.world)

    def _start(self, job: _Job, command: StartWorker) -> None:
        if command.name in job.workers:
            return
        folder = job.folder / files.WORKERS / command.name
        worker = Worker(folder, Sighting(job=job.id, name=command.name, state=STARTING), self._note)
        self._prune(job, command.name)
        job.workers[command.name] = worker
        worker.start(msgspec.structs.replace(command.spec, env=environment.complete(command.spec.env, os.environ)))

    def _prune(self, job: _Job, name: str) -> None:
        """Old folders of the same place make room."""
        index = name.partition("-")[2]
        old = [other for other in job.workers if other.partition("-")[2] == index and not job.workers[other].seen.alive]
        old.sort(key=lambda other: int(other[1:].partition("-")[0]))
        for other in old[: max(0, len(old) - _KEEP + 1)]:
            with contextlib.suppress(OSError):
                self._waste.take(job.workers.pop(other).folder)

    def _forget(self, command: Forget) -> None:
        """The folder of a job goes, and what it saved; what another job of its name has stays."""
        job = self.jobs.get(command.job) or _Job(command.job, self._folder(command.job))
        other = command.number and job.stood is not None and job.stood.number != command.number
        if other or job.alive():
            return
        number = command.number or (0 if job.stood is None else job.stood.number)
        self.jobs.pop(command.job, None)
        self._waste.take(job.folder)
        if self._shared_waste is not None:
            saves = files.checkpoint_folder(str(job.folder), self.checkpoints, job.id, number)
            self._shared_waste.take(Path(saves))

    # --- watching ---------------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        """Reads reports, for ever: one that cannot be read must not blind it for all others."""
        next_round = time.monotonic()
        while True:
            is_due = time.monotonic() >= next_round
            if is_due:
                next_round = time.monotonic() + _POLL_S
            try:
                self._read_all(hurried=not is_due)
                self._tell()
            except Exception:
                _log.exception("workers could not be looked at")
            hurry = any(job.hurry for job in self.jobs.values())
            self._woken.clear()
            if hurry:
                await asyncio.sleep(_HURRY_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(next_round - time.monotonic()):
                    await self._woken.wait()

    def _read_all(self, *, hurried: bool) -> None:
        """Looks at all jobs, or at those that somebody waits for."""
        if hurried:
            for job in [job for job in self.jobs.values() if job.hurry]:
                self._read(job)
            return
        self._rounds += 1
        for at, job in enumerate(list(self.jobs.values())):
            self._read(job)
            if (at + self._rounds) % _GUARD_EVERY == 0:
                self._check_guards(job)
            if (at + self._rounds) % _DOUBT_EVERY == 0:
                for worker in job.alive():
                    worker.doubt()

    def _read(self, job: _Job) -> None:
        """Looks at the workers of a job that live."""
        for worker in job.alive():
            try:
                worker.look()
            except OSError as trouble:
                _log.warning("%s of %s could not be looked at: %s", worker.seen.name, job.id, trouble)

    def _check_guards(self, job: _Job) -> None:
        for worker in job.alive():
            try:
                worker.check_guard()
            except OSError as trouble:
                _log.warning("guard of %s of %s could not be checked: %s", worker.seen.name, job.id, trouble)

    async def _look_around(self) -> None:
        """Scripts without the runtime tell by what they write: one folder after the other, beside the loop."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for job in list(self.jobs.values()):
                alive = job.alive()
                if not alive or any(worker.seen.reading is not None for worker in alive):
                    continue
                try:
                    kept = await asyncio.to_thread(_look, job.id, self._saves(job))
                except Exception:
                    _log.exception("what %s saves could not be looked at", job.id)
                    continue
                if kept != job.kept and self.jobs.get(job.id) is job:
                    job.kept = self._kept[job.id] = kept

    # --- telling ----------------------------------------------------------------------------------------------------

    def _note(self, seen: Sighting, at_once: bool) -> None:
        self._changed[seen.job, seen.name] = seen
        if at_once:
            self._tell()

    def _tell(self) -> None:
        if self._changed or self._kept:
            news = News(sightings=tuple(self._changed.values()), kept=tuple(self._kept.values()))
            self._changed, self._kept = {}, {}
            self._tell_news(news)

    def saved_by(self, job: str) -> int:
        """The newest generation of workers that has saved something of a job here; 0 where none has."""
        known = self.jobs.get(job)
        try:
            return 0 if known is None else int(folders.read_file(self._saves(known) / files.FENCE, 64))
        except (OSError, ValueError):
            return 0

    # --- logs -------------------------------------------------------------------------------------------------------

    def folder_of(self, job: str, name: str) -> Path | None:
        """Where a worker lives; None where it is not known."""
        known = self.jobs.get(job)
        worker = None if known is None else known.workers.get(name)
        return None if worker is None else worker.folder

    async def log_end(self, job: str, name: str, lines: int) -> logs.Cursor:
        """Where the last so many lines of a worker begin."""
        folder = self.folder_of(job, name)
        return logs.Cursor() if folder is None else await asyncio.to_thread(logs.end_of, folder, lines)

    async def read_log(self, job: str, name: str, cursor: logs.Cursor, *, rest: bool) -> logs.Chunk:
        """Lines of a worker after *cursor*."""
        folder = self.folder_of(job, name)
        if folder is None:
            return logs.Chunk((), cursor)
        return await asyncio.to_thread(logs.read, folder, cursor, rest=rest)


def _folders(parent: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from sorted(path for path in parent.iterdir() if path.is_dir())


def _read_stood(path: Path) -> Stood | None:
    try:
        return msgspec.json.decode(folders.read_file(path), type=Stood)
    except (OSError, msgspec.DecodeError):
        return None


def _look(job: str, saves: Path) -> Kept:
    return Kept(job=job, saved_at=folders.newest_change(saves), epochs=files.epochs_in_csv(saves / f"{job}.csv"))


def _allow_many_files() -> None:
    """Each worker that is watched takes a handle."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
