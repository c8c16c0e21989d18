"""Shim: parent process of one worker that outlives the server.

`python -S -E shim.py FOLDER` starts the worker described by FOLDER/spec.json, writes its output to rotated files, and
passes SIGTERM on and kills after the grace period. When the worker has ended, it kills the worker's remaining
descendants and writes FOLDER/exit.json. The lock on FOLDER/lock admits one shim per folder: starting two starts one
worker. The shim's parent is a reaper, which only waits: when the shim is killed, all descendants of the worker become
children of the reaper, which kills them.

It is run by its path and uses only the standard library, so that it starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import struct
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING or __name__ != "__main__":
    from levada.backends.local import procfs
else:
    # Run by its path: its folder is first in sys.path, and the package is not importable.
    import procfs

#: Exit codes of the shim itself.
DONE, NO_RECORD, FINISHED_BEFORE, ALREADY_RUNS = 0, 96, 98, 99
#: Exit code of a worker that could not be executed, as in shells.
CANNOT_EXECUTE = 127
#: Files of a shim in its folder.
SPEC, LOCK, RUN, EXIT, LOG = "spec.json", "lock", "run.json", "exit.json", "log"
#: Suffix of the file with the times at which parts of a log were written.
TIMES = ".times"

_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: Time between SIGTERM and SIGKILL for descendants that a worker left.
_LEFTOVER_GRACE_S = 2.0
#: A process that survives SIGKILL for this time hangs in the kernel and is given up.
REAP_S = 10.0
#: Most time spent on remaining output when all processes are gone.
_DRAIN_S = 1.0
#: Space for exit.json, allocated before the worker starts: a full disk must not lose an exit code.
_RESERVED = b" " * 4096
_CHUNK = 1 << 16
#: A record of log.times: inode of a log file, offset in it, and the time at which the data there was written.
MARK = struct.Struct("<QQd")
_DENSE_MARKS = 20_000


class Log:
    """Rotated log of a worker: FOLDER/log, older parts log.1, log.2, ...; times in FOLDER/log.times."""

    def __init__(self, path: str, most_bytes: int, parts: int) -> None:
        self.path, self._most, self._parts = path, most_bytes, parts
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size
        self._inode = os.fstat(self._file).st_ino
        self._times = os.open(path + TIMES, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._marks, self._marked = 0, 0.0
        #: Bytes that could not be written. A full disk never blocks a worker.
        self.lost = 0

    def write(self, data: bytes) -> None:
        """Append *data*, in a new part if this one is full."""
        if self._size and self._size + len(data) > self._most:
            self._rotate()
        self._mark()
        while data:
            try:
                written = os.write(self._file, data)
            except OSError:
                self.lost += len(data)
                return
            self._size += written
            data = data[written:]

    def _mark(self) -> None:
        """Record the time of the next byte: once per second, or per minute after 20,000 records."""
        now = time.time()
        if now - self._marked >= (1.0 if self._marks < _DENSE_MARKS else 60.0):
            self._marked = now
            with contextlib.suppress(OSError):
                os.write(self._times, MARK.pack(self._inode, self._size, now))
                self._marks += 1

    def _prune_marks(self) -> None:
        """Drop the time records of deleted parts, whose inodes are reused."""
        left = set()
        for part in range(1, self._parts):
            with contextlib.suppress(OSError):
                left.add(os.stat(f"{self.path}.{part}").st_ino)
        with contextlib.suppress(OSError):
            known = os.pread(self._times, os.fstat(self._times).st_size, 0)
            whole = len(known) // MARK.size * MARK.size
            kept = [mark for mark in MARK.iter_unpack(known[:whole]) if mark[0] in left]
            os.ftruncate(self._times, 0)
            os.write(self._times, b"".join(MARK.pack(*mark) for mark in kept))
            self._marks, self._marked = len(kept), 0.0

    def _rotate(self) -> None:
        try:
            for part in range(self._parts - 1, 0, -1):
                older = self.path if part == 1 else f"{self.path}.{part - 1}"
                with contextlib.suppress(FileNotFoundError):
                    os.replace(older, f"{self.path}.{part}")
            if self._parts <= 1:
                os.unlink(self.path)
            self._prune_marks()
            fresh = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return  # continue in the old part
        os.close(self._file)
        self._file, self._size = fresh, 0
        self._inode = os.fstat(fresh).st_ino


class Shim:
    """Runs one worker and records its exit."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.spec: dict[str, Any] = {}
        self.worker = -1
        self.code: int | None = None
        #: The worker's umask unless its spec has one; files of the shim are private to their owner.
        self._umask = os.umask(0o077)
        #: The worker was asked to leave, and when it is killed.
        self.asked = False
        self.deadline = float("inf")

    # --- start ------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run the worker from start to exit; returns the exit code of the shim."""
        # A POSIX lock: the worker does not inherit it, and the kernel names its holder.
        lock = os.open(self._path(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return ALREADY_RUNS
        if os.path.exists(self._path(EXIT)):
            return FINISHED_BEFORE
        with open(self._path(SPEC)) as file:
            self.spec = json.load(file)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        wakeup, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in _HANDLED:
            signal.signal(number, self._on_signal)
        try:
            self._reserve()
            log = Log(self._path(LOG), int(self.spec.get("log_bytes", 64 << 20)), int(self.spec.get("log_parts", 4)))
            output, gate = self._fork()
            self._write(RUN, self._run_record())
        except OSError as error:
            # Nothing was executed: the worker waits at the gate, which closes with this process.
            sys.stderr.write(f"cannot write to {self.folder}: {error}\n")
            return NO_RECORD
        os.write(gate, b"!")
        os.close(gate)
        self._watch(wakeup, output, log)
        self._end_leftovers(wakeup, output, log)
        self._write_exit(log)
        return DONE

    def _fork(self) -> tuple[int, int]:
        """Fork the worker, which waits at a gate; returns the pipe of its output and the gate."""
        go, gate = os.pipe2(os.O_CLOEXEC)
        output, into = os.pipe2(os.O_CLOEXEC)
        shim = os.getpid()
        # Block signals: a child that still has the shim's handlers would swallow them.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        self.worker = os.fork()
        if self.worker == 0:
            try:
                os.close(gate)
                self._exec_worker(shim, go, into)
            finally:
                os._exit(CANNOT_EXECUTE)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        if self.asked:
            self._signal(signal.SIGTERM)  # it arrived before the fork
        os.close(go)
        os.close(into)
        os.set_blocking(output, False)
        return output, gate

    def _exec_worker(self, shim: int, go: int, into: int) -> NoReturn:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The shim may have died before PDEATHSIG was set.
        if os.getppid() != shim or os.read(go, 1) != b"!":
            os._exit(CANNOT_EXECUTE)
        signal.set_wakeup_fd(-1)
        for number in _HANDLED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, place in ((nothing, 0), (into, 1), (into, 2)):
            os.dup2(source, place)
        try:
            for name, most in self.spec.get("limits", {}).items():
                which = getattr(resource, f"RLIMIT_{name.upper()}")
                resource.setrlimit(which, (most, most))
            os.umask(int(self.spec.get("umask", self._umask)))
            os.chdir(self.spec.get("cwd") or self.folder)
            argv = self.spec["argv"]
            os.execvpe(argv[0], argv, self.spec["env"])
        except (OSError, ValueError) as error:
            program = self.spec["argv"][0]
            # The error itself names a missing working directory.
            is_folder = getattr(error, "filename", None) == self.spec.get("cwd")
            not_in_path = isinstance(error, FileNotFoundError) and "/" not in program and not is_folder
            why = f"not found in PATH ({self.spec['env'].get('PATH', '')})" if not_in_path else error
            os.write(2, f"cannot start {program!r}: {why}\n".encode())
            os._exit(CANNOT_EXECUTE)

    # --- watch ------------------------------------------------------------------------------------------------------

    def _watch(self, wakeup: int, output: int, log: Log) -> None:
        """Forward output and signals until the worker has ended."""
        while self.code is None:
            left = self.deadline - time.monotonic()
            if left <= 0:
                self._signal(signal.SIGKILL)
                self.deadline = float("inf")
                continue
            self._pump(wakeup, output, log, None if left == float("inf") else left)
            self._reap()

    def _pump(self, wakeup: int, output: int, log: Log, most_s: float | None) -> bool:
        """Wait for output or a signal and log the output; False once all writers have closed the pipe."""
        readable, _, _ = select.select([wakeup, output], [], [], most_s)
        if wakeup in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wakeup, _CHUNK)
        if output in readable:
            with contextlib.suppress(BlockingIOError):
                data = os.read(output, _CHUNK)
                log.write(data)
                if not data:
                    # A pipe at its end is always readable: replace it, so that `select` blocks.
                    os.dup2(wakeup, output)
                    return False
        return True

    def _on_signal(self, number: int, _frame: object) -> None:
        # A signal after the worker's own end (the shim may have been stopped meanwhile) did not cause that end.
        if number == signal.SIGCHLD or self._has_ended():
            return
        # Once: a Python worker that is exiting has no handler any more, and a second signal would kill it.
        if not self.asked:
            self.asked = True
            self.deadline = time.monotonic() + float(self.spec.get("grace_s", 30.0))
            self._signal(signal.SIGTERM)

    def _has_ended(self) -> bool:
        """Whether the worker has ended, reaped or not."""
        if self.worker < 0:
            return False
        try:
            return os.waitid(os.P_PID, self.worker, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _signal(self, number: int) -> None:
        if self.worker > 0 and self.code is None:
            try:
                os.killpg(self.worker, number)
            except ProcessLookupError:
                # The worker has not created its process group yet.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.worker, number)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.worker:
                    self.code = os.waitstatus_to_exitcode(status)

    # --- exit -------------------------------------------------------------------------------------------------------

    def _end_leftovers(self, wakeup: int, output: int, log: Log) -> None:
        """End all descendants that the worker left, in whatever session, and log the last output."""
        until = time.monotonic() + _LEFTOVER_GRACE_S
        asked: set[int] = set()
        while left := procfs.descendants(os.getpid()):
            late = time.monotonic() >= until
            for process in left:
                if late or process.pid not in asked:
                    asked.add(process.pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL if late else signal.SIGTERM)
            self._pump(wakeup, output, log, 0.05)
            self._reap()
        until = time.monotonic() + _DRAIN_S
        while time.monotonic() < until and self._pump(wakeup, output, log, 0.0):
            if not select.select([output], [], [], 0.0)[0]:
                return

    # --- records ----------------------------------------------------------------------------------------------------

    def _run_record(self) -> dict[str, Any]:
        worker, reaper = procfs.look(self.worker), procfs.look(os.getppid())
        return {
            "boot": procfs.boot_id(),
            "shim": os.getpid(),
            "worker": self.worker,
            "worker_started": worker.started if worker is not None else 0,
            "keeper": os.getppid(),
            "keeper_started": reaper.started if reaper is not None else 0,
            "at": time.time(),
        }

    def _reserve(self) -> None:
        with open(self._path(EXIT + ".new"), "wb") as file:
            file.write(_RESERVED)
            file.flush()
            os.fsync(file.fileno())

    def _write_exit(self, log: Log) -> None:
        record = json.dumps({"code": self.code, "asked": self.asked, "at": time.time(), "lost_output": log.lost})
        with open(self._path(EXIT + ".new"), "r+b") as file:
            file.write(record.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(self._path(EXIT + ".new"), self._path(EXIT))
        self._sync_folder()

    def _write(self, name: str, what: dict[str, Any]) -> None:
        with open(self._path(name + ".new"), "w") as file:
            json.dump(what, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(self._path(name + ".new"), self._path(name))
        self._sync_folder()

    def _sync_folder(self) -> None:
        """Make renames in the folder durable."""
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)


def _prctl(what: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(what, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {what}")


def run_reaper(folder: str) -> int:
    """Run the shim of *folder* in a child and kill what it leaves behind; returns the shim's exit code."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    shim = os.fork()
    if shim == 0:
        return Shim(folder).run()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the shim handles them
    status = os.waitpid(shim, 0)[1]
    until = time.monotonic() + REAP_S
    while (left := procfs.descendants(os.getpid())) and time.monotonic() < until:
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


if __name__ == "__main__":
    sys.exit(run_reaper(sys.argv[1]))
