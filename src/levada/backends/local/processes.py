"""Start, inspect and end worker processes through their shims.

All state is on disk or in the kernel, so a crash of this process loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from levada.backends.local import procfs, safe_fs, shim

_log = logging.getLogger(__name__)
#: The kernel's `struct flock`: type, whence, start, length, holder.
_FLOCK = "@hhqqi4x"
T = TypeVar("T")
#: A reaper that still runs this long after its shim is stuck.
_REAPER_S = shim.REAP_S + 5.0
#: The umask before `restrict_umask`.
_worker_umask: list[int] = []


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The command of a worker, its environment and limits, as its shim reads them."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    #: Seconds between SIGTERM and SIGKILL.
    grace_s: float = 30.0
    #: By name of the RLIMIT_ constant in `resource`, e.g. {"nofile": 4096, "as": 1 << 34}.
    limits: Mapping[str, int] = {}
    log_bytes: int = 64 << 20
    log_parts: int = 4
    #: Unset: that of the shim's parent.
    umask: int | msgspec.UnsetType = msgspec.UNSET


class ProcessState(Enum):
    """State of a worker process."""

    ABSENT = "absent"  #: never executed
    RUNS = "runs"
    ENDED = "wait_ended"
    LOST = "lost"  #: its shim died without writing an exit code, and the worker with it


class ProcessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A worker process at one moment."""

    state: ProcessState
    #: Process id of the shim while it runs.
    shim: int | None = None
    #: Process id of the worker once it was started.
    pid: int | None = None
    #: Exit code; negative: the signal that ended the worker.
    code: int | None = None
    #: The shim had been asked to end the worker.
    asked: bool = False
    #: Bytes of output that could not be written.
    lost_output: int = 0


def restrict_umask() -> None:
    """Make files of this process private to its owner; workers keep the umask from before."""
    _worker_umask.append(os.umask(0o077))


def start(folder: Path, spec: WorkerSpec) -> subprocess.Popen[bytes]:
    """Start the shim of the worker in *folder*; idempotent: a second shim ends at once.

    Returns the process of the shim's reaper, which the caller must reap.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (folder / shim.SPEC).exists():
        if _worker_umask and spec.umask is msgspec.UNSET:
            spec = msgspec.structs.replace(spec, umask=_worker_umask[0])
        safe_fs.replace_file(folder / shim.SPEC, msgspec.json.encode(spec))
    error_file = safe_fs.open_file(folder / "shim.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with open(error_file, "ab") as errors:
        return subprocess.Popen(
            [sys.executable, "-S", "-E", shim.__file__, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
            env={"PATH": os.environ.get("PATH", os.defpath)},
        )


class _Run(msgspec.Struct, frozen=True):
    """The fields of run.json that are used here."""

    worker: int
    worker_started: int = 0
    #: The parent of the shim, and when it was started; 0 for shims of older versions.
    reaper: int = msgspec.field(default=0, name="keeper")
    reaper_started: int = msgspec.field(default=0, name="keeper_started")


class _Exit(msgspec.Struct, frozen=True):
    """The fields of exit.json that are used here."""

    code: int | None
    asked: bool
    lost_output: int = 0


def inspect(folder: Path) -> ProcessStatus:
    """The state of the worker in *folder*."""
    run = _read(folder / shim.RUN, _Run)
    pid = None if run is None else run.worker
    holder = _lock_holder(folder)
    if holder is not None:
        return ProcessStatus(state=ProcessState.RUNS, shim=holder, pid=pid)
    # Read after the lock: a shim writes the file before it releases the lock.
    ended = _read(folder / shim.EXIT, _Exit)
    if ended is not None:
        lost = ended.lost_output
        return ProcessStatus(state=ProcessState.ENDED, pid=pid, code=ended.code, asked=ended.asked, lost_output=lost)
    return ProcessStatus(state=ProcessState.ABSENT if run is None else ProcessState.LOST, pid=pid)


def ask_to_leave(folder: Path) -> bool:
    """Make the shim send SIGTERM, and SIGKILL after the grace period; False if there is no shim."""
    is_asked = _signal_shim(folder, signal.SIGTERM)
    if is_asked:
        resume(folder)
    return is_asked


def resume(folder: Path) -> bool:
    """Send SIGCONT to the shim, in case it is stopped; False if there is none."""
    return _signal_shim(folder, signal.SIGCONT)


def kill(folder: Path) -> bool:
    """Kill shim and worker; False if there is no shim."""
    return _signal_shim(folder, signal.SIGKILL)


def kill_start(child: subprocess.Popen[bytes]) -> None:
    """Kill a child of this process that is becoming reaper and shim, with all its descendants."""
    process = procfs.look(child.pid)
    if child.poll() is None and process is not None:
        handle = os.pidfd_open(child.pid)

        def end() -> None:
            try:
                _Reaper(handle, child.pid, process.started).end()
            finally:
                os.close(handle)

        # In a thread, since it may take seconds.
        threading.Thread(target=end, daemon=True).start()


def reaper_lives(folder: Path) -> bool:
    """Whether the parent of the shim of *folder* still runs."""
    run = _read(folder / shim.RUN, _Run)
    return run is not None and run.reaper > 0 and procfs.is_same(run.reaper, run.reaper_started)


class IdleShim(NamedTuple):
    """A shim that still runs although its worker has ended."""

    is_stopped: bool
    #: The exit code of the worker while the shim has not reaped it.
    code: int | None


def idle_shim(folder: Path) -> IdleShim | None:
    """The shim of *folder* if its worker has ended; None if the worker lives or there is no shim."""
    run, holder = _read(folder / shim.RUN, _Run), _lock_holder(folder)
    if run is None or holder is None:
        return None
    worker, process = procfs.look(run.worker), procfs.look(holder)
    is_worker = worker is not None and worker.started == run.worker_started
    if process is None or (is_worker and worker is not None and not worker.is_zombie):
        return None
    unreaped = is_worker and worker is not None and worker.parent == holder
    return IdleShim(process.is_stopped, procfs.exit_code(run.worker) if unreaped else None)


def end_idle_shim(folder: Path, idle: IdleShim, *, asked: bool = False) -> None:
    """Kill an idle shim and write the exit code of its worker in its place; raises OSError.

    *asked*: the worker had been asked to leave, so exit code 0 does not mean that it is done.
    """
    _log.warning("killing shim in %s: its worker has ended, and it is idle", folder)
    if idle.code is not None:
        # Before the kill: the task that waits for the end of the shim reads it next.
        record = {"code": idle.code, "asked": asked, "at": time.time(), "lost_output": 0}
        safe_fs.replace_file(folder / shim.EXIT, msgspec.json.encode(record))
    kill(folder)


def prevent_start(folder: Path) -> bool:
    """Make sure that the worker of *folder* never starts; False if it has started."""
    with open(safe_fs.open_file(folder / shim.LOCK, os.O_WRONLY | os.O_CREAT), "wb") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        if (folder / shim.RUN).exists() or (folder / shim.EXIT).exists():
            return False
        never = {"code": None, "asked": True, "at": time.time(), "lost_output": 0}
        # A shim that starts later reads this and ends.
        safe_fs.replace_file(folder / shim.EXIT, msgspec.json.encode(never))
        return True


async def wait_ended(folder: Path, child: subprocess.Popen[bytes] | None = None) -> ProcessStatus:
    """Wait until the shim and the reaper of *folder* have ended, and reap *child*; returns the final status."""
    with _shim_of(folder) as handle:
        if handle is not None:
            await _wait_gone(handle)
    with _reaper_of(folder) as reaper:
        if reaper is not None:
            late = not await _wait_gone(reaper.handle, 0.0 if reaper.is_stopped() else _REAPER_S)
            # Jobs can write the file with its process id: only a process with the arguments of a reaper is killed.
            if late and procfs.words(reaper.pid)[-1:] == [str(folder)]:
                await asyncio.to_thread(reaper.end)
                await _wait_gone(reaper.handle)
    if child is not None:
        child.wait()
    return inspect(folder)


async def wait_reaped(child: subprocess.Popen[bytes]) -> int:
    """Wait for and reap a child of this process; returns its exit code."""
    try:
        handle = os.pidfd_open(child.pid)
    except ProcessLookupError:
        return child.wait()  # already reaped
    try:
        await _wait_gone(handle)
    finally:
        os.close(handle)
    return child.wait()


async def _wait_gone(handle: int, most_s: float | None = None) -> bool:
    """Wait until the process of a pidfd has ended, at most *most_s*; returns whether it has."""
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(handle, gone.set)
    try:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(gone.wait(), most_s)
        return gone.is_set()
    finally:
        loop.remove_reader(handle)


def kill_marked(marks: Mapping[str, str]) -> list[int]:
    """Kill every process whose environment has these variables: leftovers of a lost worker. Returns their ids."""
    killed = []
    for process in list(procfs.all_processes()):
        if process.is_zombie or process.pid == os.getpid():
            continue
        env = procfs.environment(process.pid)
        if all(env.get(name) == value for name, value in marks.items()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)
                killed.append(process.pid)
    return killed


class _Reaper(NamedTuple):
    """The parent of a shim; the pidfd keeps identifying it when its process id is reused."""

    handle: int
    pid: int
    started: int

    def is_stopped(self) -> bool:
        """Whether the reaper was stopped by a signal."""
        process = procfs.look(self.pid)
        return process is not None and process.is_stopped

    def end(self) -> None:
        """Do the work of a stuck reaper: kill its descendants, then the reaper."""
        _log.warning("killing reaper %d: it does not end the processes that a worker left", self.pid)
        until = time.monotonic() + shim.REAP_S
        # Its process id cannot be reused while it lives.
        while procfs.is_same(self.pid, self.started) and time.monotonic() < until:
            left = procfs.descendants(self.pid)
            for process in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)


@contextlib.contextmanager
def _shim_of(folder: Path) -> Iterator[int | None]:
    """A pidfd of the shim of *folder*; None if it has ended."""
    holder = _lock_holder(folder)
    try:
        handle = None if holder is None else os.pidfd_open(holder)
    except ProcessLookupError:
        handle = None
    try:
        # The process id may have been reused before the pidfd was opened.
        yield handle if handle is not None and _lock_holder(folder) == holder else None
    finally:
        if handle is not None:
            os.close(handle)


@contextlib.contextmanager
def _reaper_of(folder: Path) -> Iterator[_Reaper | None]:
    """The reaper of *folder*; None if it has ended."""
    run = _read(folder / shim.RUN, _Run)
    try:
        handle = None if run is None or not run.reaper else os.pidfd_open(run.reaper)
    except (OSError, OverflowError):  # it has ended, or the file has an impossible process id
        handle = None
    try:
        reaper = None if run is None or handle is None else _Reaper(handle, run.reaper, run.reaper_started)
        yield reaper if reaper is not None and procfs.is_same(reaper.pid, reaper.started) else None
    finally:
        if handle is not None:
            os.close(handle)


def _signal_shim(folder: Path, number: int) -> bool:
    with _shim_of(folder) as shim_handle:
        if shim_handle is None:
            return False
        try:
            signal.pidfd_send_signal(shim_handle, number)
        except ProcessLookupError:
            return False
        return True


def _lock_holder(folder: Path) -> int | None:
    """The process that holds the lock of *folder*: its shim while that lives."""
    try:
        with open(safe_fs.open_file(folder / shim.LOCK), "rb") as file:
            query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, query))
    except FileNotFoundError:
        return None
    return None if kind == fcntl.F_UNLCK else int(pid)


def _read(path: Path, kind: type[T]) -> T | None:
    """Read a file of a shim; None if it is missing or damaged."""
    try:
        return msgspec.json.decode(safe_fs.read_file(path), type=kind)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
