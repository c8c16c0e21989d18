"""Starts, finds and ends workers through their shims. All that counts is on disk or in the kernel: nothing to lose."""

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

from levada.backends.local import folders, procfs, shim

_log = logging.getLogger(__name__)
#: The kernel's `struct flock`: type, whence, start, length, holder.
_FLOCK = "@hhqqi4x"
T = TypeVar("T")
#: A keeper that has not ended so long after its shim never will by itself.
_KEEPER_S = shim.KEPT_S + 5.0
#: As it was before `keep_private`.
_mask_of_workers: list[int] = []


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What a shim is to run."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    #: Seconds between SIGTERM and SIGKILL.
    grace_s: float = 30.0
    #: By name as `ulimit` has them in `resource`: {"nofile": 4096, "as": 1 << 34}.
    limits: Mapping[str, int] = {}
    log_bytes: int = 64 << 20
    log_parts: int = 4
    #: Of files that the worker makes; none = as its shim was started.
    umask: int | msgspec.UnsetType = msgspec.UNSET


class State(Enum):
    """Where a worker stands."""

    ABSENT = "absent"  #: nothing was ever executed
    RUNS = "runs"
    ENDED = "ended"
    LOST = "lost"  #: its shim is gone without a word, and the worker with it


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A worker at one moment."""

    state: State
    #: Of the shim, while it runs.
    shim: int | None = None
    #: Of the worker, once it was started.
    pid: int | None = None
    #: Below zero: the signal that ended it.
    code: int | None = None
    #: Its shim had been asked to end it.
    asked: bool = False
    #: Bytes of output that could not be kept.
    lost_output: int = 0


def keep_private() -> None:
    """What this process makes from now on is for its owner; workers make files as they would have without this."""
    _mask_of_workers.append(os.umask(0o077))


def start(folder: Path, spec: Spec) -> subprocess.Popen[bytes]:
    """Starts the shim of a worker that lives in *folder*; does nothing more where there is, or was, one already.

    The process that is returned is the shim's; its parent must reap it, or die.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (folder / shim.SPEC).exists():
        if _mask_of_workers and spec.umask is msgspec.UNSET:
            spec = msgspec.structs.replace(spec, umask=_mask_of_workers[0])
        folders.replace_file(folder / shim.SPEC, msgspec.json.encode(spec))
    errors_into = folders.open_file(folder / "shim.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with open(errors_into, "ab") as errors:
        return subprocess.Popen(
            [sys.executable, "-S", "-E", shim.__file__, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
            env={"PATH": os.environ.get("PATH", os.defpath)},
        )


class _Run(msgspec.Struct, frozen=True):
    """What counts of run.json."""

    worker: int
    worker_started: int = 0
    #: The process above the shim, and when it was started; none of older shims.
    keeper: int = 0
    keeper_started: int = 0


class _Exit(msgspec.Struct, frozen=True):
    """What counts of exit.json."""

    code: int | None
    asked: bool
    lost_output: int = 0


def standing(folder: Path) -> Standing:
    """How the worker in *folder* is."""
    run = _read(folder / shim.RUN, _Run)
    pid = None if run is None else run.worker
    holder = _holder(folder)
    if holder is not None:
        return Standing(state=State.RUNS, shim=holder, pid=pid)
    # Only now: a shim writes it before it lets go of the lock.
    ended = _read(folder / shim.EXIT, _Exit)
    if ended is not None:
        lost = ended.lost_output
        return Standing(state=State.ENDED, pid=pid, code=ended.code, asked=ended.asked, lost_output=lost)
    return Standing(state=State.ABSENT if run is None else State.LOST, pid=pid)


def ask_to_leave(folder: Path) -> bool:
    """SIGTERM to the worker, SIGKILL after its grace period; False where there is no shim to ask."""
    is_asked = _signal(folder, signal.SIGTERM)
    if is_asked:
        thaw(folder)
    return is_asked


def thaw(folder: Path) -> bool:
    """SIGCONT to the shim, which changes nothing unless it is frozen; False where there is none."""
    return _signal(folder, signal.SIGCONT)


def kill(folder: Path) -> bool:
    """Ends shim and worker on the spot; False where there is no shim."""
    return _signal(folder, signal.SIGKILL)


def kill_start(child: subprocess.Popen[bytes]) -> None:
    """Ends a child of this process that should have become keeper and shim, with all that came of it."""
    found = procfs.look(child.pid)
    if child.poll() is None and found is not None:
        handle = os.pidfd_open(child.pid)

        def end() -> None:
            try:
                _Keeper(handle, child.pid, found.started).end()
            finally:
                os.close(handle)

        # It may take seconds, for which nobody else should wait.
        threading.Thread(target=end, daemon=True).start()


def keeper_lives(folder: Path) -> bool:
    """Whether the process above the shim of *folder* is there still."""
    run = _read(folder / shim.RUN, _Run)
    return run is not None and run.keeper > 0 and procfs.is_same(run.keeper, run.keeper_started)


class IdleShim(NamedTuple):
    """A shim that is there though its worker has ended."""

    is_stopped: bool
    #: How the worker ended, while the shim has not reaped it.
    code: int | None


def idle_shim(folder: Path) -> IdleShim | None:
    """The shim of *folder* if its worker has ended; None where the worker lives, or there is no shim."""
    run, holder = _read(folder / shim.RUN, _Run), _holder(folder)
    if run is None or holder is None:
        return None
    worker, guard = procfs.look(run.worker), procfs.look(holder)
    is_worker = worker is not None and worker.started == run.worker_started
    if guard is None or (is_worker and worker is not None and not worker.is_zombie):
        return None
    unreaped = is_worker and worker is not None and worker.parent == holder
    return IdleShim(guard.is_stopped, procfs.exit_code(run.worker) if unreaped else None)


def end_idle_shim(folder: Path, idle: IdleShim, *, asked: bool = False) -> None:
    """Kills a shim that does nothing, and keeps the exit code of its worker; raises OSError.

    *asked*: the worker had been asked to leave, so that exit code 0 does not say that it is done.
    """
    _log.warning("killing the guard in %s: its worker has ended, and it does nothing", folder)
    if idle.code is not None:
        # Before the kill: whoever waits for the end of the shim looks here next.
        told = {"code": idle.code, "asked": asked, "at": time.time(), "lost_output": 0}
        folders.replace_file(folder / shim.EXIT, msgspec.json.encode(told))
    kill(folder)


def bar(folder: Path) -> bool:
    """Sees to it that the worker of *folder* never starts; False where it has started."""
    with open(folders.open_file(folder / shim.LOCK, os.O_WRONLY | os.O_CREAT), "wb") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        if (folder / shim.RUN).exists() or (folder / shim.EXIT).exists():
            return False
        never = {"code": None, "asked": True, "at": time.time(), "lost_output": 0}
        # Whoever comes later finds that all is over.
        folders.replace_file(folder / shim.EXIT, msgspec.json.encode(never))
        return True


async def ended(folder: Path, child: subprocess.Popen[bytes] | None = None) -> Standing:
    """How the worker in *folder* is when its shim has ended, which may be at once. *child* is reaped, if given."""
    with _watching(folder) as watched:
        if watched is not None:
            await _gone(watched)
    with _watching_keeper(folder) as keeper:
        if keeper is not None:
            late = not await _gone(keeper.handle, 0.0 if keeper.is_stopped() else _KEEPER_S)
            # Jobs can write where its number stands: what does not prove to be the keeper is left alone.
            if late and procfs.words(keeper.pid)[-1:] == [str(folder)]:
                await asyncio.to_thread(keeper.end)
                await _gone(keeper.handle)
    if child is not None:
        child.wait()
    return standing(folder)


async def reaped(child: subprocess.Popen[bytes]) -> int:
    """The code of a child of this process when it has ended; it is reaped."""
    try:
        handle = os.pidfd_open(child.pid)
    except ProcessLookupError:
        return child.wait()  # somebody has reaped it
    try:
        await _gone(handle)
    finally:
        os.close(handle)
    return child.wait()


async def _gone(handle: int, most_s: float | None = None) -> bool:
    """Returns when the process of a pidfd has ended, or after *most_s*; whether it has."""
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(handle, gone.set)
    try:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(gone.wait(), most_s)
        return gone.is_set()
    finally:
        loop.remove_reader(handle)


def sweep(marks: Mapping[str, str]) -> list[int]:
    """Kills every process that was started with these in its environment: what a lost worker may have left behind."""
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


class _Keeper(NamedTuple):
    """The process above a shim; the handle stays with it whatever becomes of its number."""

    handle: int
    pid: int
    started: int

    def is_stopped(self) -> bool:
        """Whether somebody has frozen it."""
        found = procfs.look(self.pid)
        return found is not None and found.is_stopped

    def end(self) -> None:
        """Does what it should have done: ends all that its shim has left, then itself."""
        _log.warning("process %d, which should have ended what a worker left, does nothing and is ended", self.pid)
        until = time.monotonic() + shim.KEPT_S
        # While it lives, nobody else has its number.
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
def _watching(folder: Path) -> Iterator[int | None]:
    """A handle on the shim of *folder*, which stays with its process whatever its number; None where it has ended."""
    holder = _holder(folder)
    try:
        handle = None if holder is None else os.pidfd_open(holder)
    except ProcessLookupError:
        handle = None
    try:
        # Between the two looks the number might have been given to another.
        yield handle if handle is not None and _holder(folder) == holder else None
    finally:
        if handle is not None:
            os.close(handle)


@contextlib.contextmanager
def _watching_keeper(folder: Path) -> Iterator[_Keeper | None]:
    """The keeper of *folder*, which ends what a killed shim has left; None where it has ended."""
    run = _read(folder / shim.RUN, _Run)
    try:
        handle = None if run is None or not run.keeper else os.pidfd_open(run.keeper)
    except (OSError, OverflowError):  # it has ended, or no process has such a number
        handle = None
    try:
        keeper = None if run is None or handle is None else _Keeper(handle, run.keeper, run.keeper_started)
        yield keeper if keeper is not None and procfs.is_same(keeper.pid, keeper.started) else None
    finally:
        if handle is not None:
            os.close(handle)


def _signal(folder: Path, number: int) -> bool:
    with _watching(folder) as shim_handle:
        if shim_handle is None:
            return False
        try:
            signal.pidfd_send_signal(shim_handle, number)
        except ProcessLookupError:
            return False
        return True


def _holder(folder: Path) -> int | None:
    """Who holds the lock of *folder*: its shim, while it lives."""
    try:
        with open(folders.open_file(folder / shim.LOCK), "rb") as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except FileNotFoundError:
        return None
    return None if kind == fcntl.F_UNLCK else int(pid)


def _read(path: Path, kind: type[T]) -> T | None:
    """What a shim has noted; None where there is nothing, or nothing whole, as after a disk broke."""
    try:
        return msgspec.json.decode(folders.read_file(path), type=kind)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
