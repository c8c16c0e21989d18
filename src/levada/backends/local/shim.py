"""Guards one worker: `python -S -E shim.py FOLDER`. The server may die at any time; this process stays with the worker.

It starts the worker that FOLDER/spec.json describes, keeps its output in rotated files, passes SIGTERM on and kills
after the grace period, and when the worker has ended ends whatever the worker left behind and writes FOLDER/exit.json.
Whoever holds the lock on FOLDER/lock is the one shim of that folder: starting it twice starts one worker.
Above it is a keeper, which does nothing but wait: when the shim is killed, whatever the worker had started, wherever it
hid, becomes the keeper's, and ends.

Run by its path, with the standard library alone, so that it starts in some milliseconds whatever is installed.
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
    # Run by its path: the folder it lies in is the first that is searched, and the package is not there.
    import procfs

#: Exit codes of the shim itself.
DONE, NO_RECORD, FINISHED_BEFORE, ALREADY_RUNS = 0, 96, 98, 99
#: Exit code of a worker that could not be executed, as shells have it.
CANNOT_EXECUTE = 127
#: Files of a shim in its folder.
SPEC, LOCK, RUN, EXIT, LOG = "spec.json", "lock", "run.json", "exit.json", "log"
#: Added to the name of a log: when its parts were written.
TIMES = ".times"

_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: What a worker leaves behind gets so long to end by itself.
_LEFTOVERS_S = 2.0
#: A process that cannot be ended for so long waits for the machine itself.
KEPT_S = 10.0
#: Output that nobody has read when all processes are gone is read for so long.
_DRAIN_S = 1.0
#: Room for exit.json, taken before the worker starts: a full disk must not swallow an exit code.
_RESERVED = b" " * 4096
_CHUNK = 1 << 16
#: What log.times holds: a file's number, an offset in it, and when what begins there was kept.
MARK = struct.Struct("<QQd")
_MANY_MARKS = 20_000


class Log:
    """The worker's output: FOLDER/log, and older parts as log.1, log.2 and so on; FOLDER/log.times says when."""

    def __init__(self, path: str, most_bytes: int, parts: int) -> None:
        self.path, self._most, self._parts = path, most_bytes, parts
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size
        self._inode = os.fstat(self._file).st_ino
        self._times = os.open(path + TIMES, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._marks, self._marked = 0, 0.0
        #: Bytes that could not be kept. Output never holds a worker up.
        self.lost = 0

    def write(self, data: bytes) -> None:
        """Keeps *data*, in a new part where this one is full."""
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
        """Notes when what comes next was kept: once a second, or a minute where there is much to note."""
        now = time.time()
        if now - self._marked >= (1.0 if self._marks < _MANY_MARKS else 60.0):
            self._marked = now
            with contextlib.suppress(OSError):
                os.write(self._times, MARK.pack(self._inode, self._size, now))
                self._marks += 1

    def _forget_marks(self) -> None:
        """Keeps the marks of the parts that are left: numbers of files are used again."""
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
            self._forget_marks()
            fresh = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return  # it goes on in the old one
        os.close(self._file)
        self._file, self._size = fresh, 0
        self._inode = os.fstat(fresh).st_ino


class Shim:
    """One worker and what became of it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.spec: dict[str, Any] = {}
        self.worker = -1
        self.code: int | None = None
        #: What this process writes is its owner's alone; the worker has the mask that there was, or that it was given.
        self._umask = os.umask(0o077)
        #: Somebody asked it to leave, and when patience ends.
        self.asked = False
        self.deadline = float("inf")

    # --- begin ------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """The whole life of the worker."""
        # A lock of this process alone (not of the worker, too), of which the kernel tells whose it is.
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
        woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        for number in _HEARD:
            signal.signal(number, self._hear)
        try:
            self._reserve()
            log = Log(self._path(LOG), int(self.spec.get("log_bytes", 64 << 20)), int(self.spec.get("log_parts", 4)))
            output, gate = self._fork()
            self._write(RUN, self._about_run())
        except OSError as broken:
            # Nothing has been executed: the worker waits behind the gate, which closes with this process.
            sys.stderr.write(f"cannot keep a record in {self.folder}: {broken}\n")
            return NO_RECORD
        os.write(gate, b"!")
        os.close(gate)
        self._watch(woken, output, log)
        self._end_leftovers(woken, output, log)
        self._write_exit(log)
        return DONE

    def _fork(self) -> tuple[int, int]:
        """Starts the worker behind a gate; where its output can be read, and the gate."""
        go, gate = os.pipe2(os.O_CLOEXEC)
        output, into = os.pipe2(os.O_CLOEXEC)
        shim = os.getpid()
        # What comes meanwhile waits: a child that still had this process's handlers would swallow it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        self.worker = os.fork()
        if self.worker == 0:
            try:
                os.close(gate)
                self._become_worker(shim, go, into)
            finally:
                os._exit(CANNOT_EXECUTE)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
        if self.asked:
            self._signal(signal.SIGTERM)  # before there was anybody to pass it on to
        os.close(go)
        os.close(into)
        os.set_blocking(output, False)
        return output, gate

    def _become_worker(self, shim: int, go: int, into: int) -> NoReturn:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The shim may have died before it was asked to tell.
        if os.getppid() != shim or os.read(go, 1) != b"!":
            os._exit(CANNOT_EXECUTE)
        signal.set_wakeup_fd(-1)
        for number in _HEARD:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
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
        except (OSError, ValueError) as broken:
            program = self.spec["argv"][0]
            # A folder that is not there is named by the error itself.
            is_folder = getattr(broken, "filename", None) == self.spec.get("cwd")
            nowhere = isinstance(broken, FileNotFoundError) and "/" not in program and not is_folder
            why = f"not found in PATH ({self.spec['env'].get('PATH', '')})" if nowhere else broken
            os.write(2, f"cannot start {program!r}: {why}\n".encode())
            os._exit(CANNOT_EXECUTE)

    # --- watch ------------------------------------------------------------------------------------------------------

    def _watch(self, woken: int, output: int, log: Log) -> None:
        """Until the worker has ended."""
        while self.code is None:
            left = self.deadline - time.monotonic()
            if left <= 0:
                self._signal(signal.SIGKILL)
                self.deadline = float("inf")
                continue
            self._pump(woken, output, log, None if left == float("inf") else left)
            self._reap()

    def _pump(self, woken: int, output: int, log: Log, most_s: float | None) -> bool:
        """Keeps output that is there, or waits for some or for a signal; False when there will be no more."""
        readable, _, _ = select.select([woken, output], [], [], most_s)
        if woken in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, _CHUNK)
        if output in readable:
            with contextlib.suppress(BlockingIOError):
                data = os.read(output, _CHUNK)
                log.write(data)
                if not data:
                    # Nobody can write any more; an open pipe at its end would be readable for ever.
                    os.dup2(woken, output)
                    return False
        return True

    def _hear(self, number: int, _frame: object) -> None:
        # What comes after the worker's own end (this process may have been frozen meanwhile) did not ask it to end.
        if number == signal.SIGCHLD or self._has_ended():
            return
        # Once: an interpreter that is on its way out has no handler any more, and a second signal would kill it.
        if not self.asked:
            self.asked = True
            self.deadline = time.monotonic() + float(self.spec.get("grace_s", 30.0))
            self._signal(signal.SIGTERM)

    def _has_ended(self) -> bool:
        """Whether the worker has ended by now, reaped or not."""
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
                # Before it has made its own group there is only the process.
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

    # --- end --------------------------------------------------------------------------------------------------------

    def _end_leftovers(self, woken: int, output: int, log: Log) -> None:
        """Ends what the worker started and left behind, wherever it hid, and keeps the last output."""
        until = time.monotonic() + _LEFTOVERS_S
        asked: set[int] = set()
        while left := procfs.descendants(os.getpid()):
            late = time.monotonic() >= until
            for process in left:
                if late or process.pid not in asked:
                    asked.add(process.pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL if late else signal.SIGTERM)
            self._pump(woken, output, log, 0.05)
            self._reap()
        until = time.monotonic() + _DRAIN_S
        while time.monotonic() < until and self._pump(woken, output, log, 0.0):
            if not select.select([output], [], [], 0.0)[0]:
                return

    # --- records ----------------------------------------------------------------------------------------------------

    def _about_run(self) -> dict[str, Any]:
        worker, keeper = procfs.look(self.worker), procfs.look(os.getppid())
        return {
            "boot": procfs.boot_id(),
            "shim": os.getpid(),
            "worker": self.worker,
            "worker_started": worker.started if worker is not None else 0,
            "keeper": os.getppid(),
            "keeper_started": keeper.started if keeper is not None else 0,
            "at": time.time(),
        }

    def _reserve(self) -> None:
        with open(self._path(EXIT + ".new"), "wb") as file:
            file.write(_RESERVED)
            file.flush()
            os.fsync(file.fileno())

    def _write_exit(self, log: Log) -> None:
        told = json.dumps({"code": self.code, "asked": self.asked, "at": time.time(), "lost_output": log.lost})
        with open(self._path(EXIT + ".new"), "r+b") as file:
            file.write(told.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(self._path(EXIT + ".new"), self._path(EXIT))
        self._settle()

    def _write(self, name: str, what: dict[str, Any]) -> None:
        with open(self._path(name + ".new"), "w") as file:
            json.dump(what, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(self._path(name + ".new"), self._path(name))
        self._settle()

    def _settle(self) -> None:
        """A name in a folder is safe only when the folder is."""
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


def keep(folder: str) -> int:
    """Runs the shim of *folder* in a process of its own, and ends what it may leave behind; its exit code."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    shim = os.fork()
    if shim == 0:
        return Shim(folder).run()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the shim
    status = os.waitpid(shim, 0)[1]
    until = time.monotonic() + KEPT_S
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
    sys.exit(keep(sys.argv[1]))
