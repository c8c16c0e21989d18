"""Start a local server in the background, wait until it is ready, and stop it."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levada.cli.interrupts import signals_deferred
from levada.cli.output import message
from levada.cli.spinner import Spinner
from levada.errors import LevadaError, Refused

if TYPE_CHECKING:
    from levada.server.state_dir import StateFolder

#: Default port, the same as in `levada.server.main`.
USUAL_PORT = 7373
#: Timeouts of a start, and of the stop of a server whose start was interrupted.
_START_S, _ABORT_S = 60.0, 10.0
#: A server must begin its shutdown within this time.
_SHUTDOWN_BEGIN_S = 30.0
_POLL_S = 0.05
#: Less free space than this counts as a full disk.
_MIN_FREE_BYTES = 1 << 20
#: Settings in the state directory that must match those of a running server.
_FIXED = {
    "nodes": "other nodes",
    "store": "another --store",
    "port": "another --port",
    "checkpoints": "other --checkpoints",
    "stuck_after_s": "another --stuck-after",
    "keep": "another --keep",
    "names": "another --allow-host",
}
_UNRECORDED = {
    "options": "--set",
    "policy": "--policy",
    "certfile": "--certfile",
    "keyfile": "--keyfile",
    "gone": "--take-over",
}


def start_server(home: StateFolder, setup: dict[str, Any]) -> None:
    """Start a server and return when it is ready; an interrupted start leaves none behind. Raises LevadaError."""
    from levada.server.state_dir import LOG

    home.make()
    if home.holder() is not None:
        message("a server is running already")
        _check_same_setup(home, setup)
        with Spinner("waiting for the server to become ready"):
            _await_ready(home, None, 0)
        return
    _check_port(home, setup)
    log_start = home.path(LOG).stat().st_size if home.path(LOG).exists() else 0
    child = None
    try:
        with signals_deferred():
            child = _spawn(home, setup)
        with Spinner("starting the server"):
            _await_ready(home, child, log_start)
    except KeyboardInterrupt:
        _terminate(child)
        raise
    except _OtherServerStarted:
        start_server(home, setup)


class _OtherServerStarted(Exception):
    """Another process started a server in the same folder at the same time; use that one."""


def stop_server(home: StateFolder, *, leave_jobs: bool = False, patience_s: float = _SHUTDOWN_BEGIN_S) -> None:
    """Stop the server and return when it has exited; raises LevadaError if it does not react."""
    from levada.server.state_dir import SERVER, STOP

    pid = home.holder()
    if pid is None:
        return
    home.write(STOP, {"jobs": "leave" if leave_jobs else "stop"})
    handle = os.pidfd_open(pid)
    try:
        if home.holder() == pid:
            signal.pidfd_send_signal(handle, signal.SIGTERM)
        # A server removes its address first; then jobs may use their grace periods.
        with Spinner("stopping the server; jobs may use their grace period"):
            exited = select.select([handle], [], [], patience_s)[0]
            if not exited and home.read(SERVER).get("pid") == pid:
                raise LevadaError(
                    f"the server (process {pid}) did not react to SIGTERM within {patience_s:g} s; stop it with "
                    f"`kill -9 {pid}`: its jobs keep running, and the next `levada up` adopts them"
                )
            select.select([handle], [], [])
    finally:
        os.close(handle)


def _terminate(child: subprocess.Popen[bytes] | None) -> None:
    """Stop a server that is starting; jobs that it adopted keep running."""
    if child is None:
        return
    child.terminate()
    try:
        child.wait(_ABORT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _check_same_setup(home: StateFolder, setup: dict[str, Any]) -> None:
    """Raise Refused if *setup* differs from the running server, whose settings cannot change."""
    from levada.server.state_dir import SETUP

    current = home.read(SETUP)
    # Port 0 means any port.
    wanted = {name: setup.get(name) for name in _FIXED}
    wanted = {name: value for name, value in wanted.items() if value is not None and (name, value) != ("port", 0)}
    different = [_FIXED[name] for name, value in wanted.items() if name in current and current[name] != value]
    if different:
        raise Refused(f"the running server was started with {' and '.join(different)}; run `levada down` first")
    ignored = [option for name, option in _UNRECORDED.items() if setup.get(name)]
    if ignored:
        message(f"{', '.join(ignored)}: no effect on a running server; run `levada down` first")


def _check_port(home: StateFolder, setup: dict[str, Any]) -> None:
    """Raise LevadaError now if the port is taken, not only after the server has started."""
    from levada.server.state_dir import SETUP

    port = setup["port"] if setup["port"] is not None else home.read(SETUP).get("port") or USUAL_PORT
    host = setup["host"]
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OverflowError:
        return  # not a port; the server reports it
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            advice = "choose another with --port, or a free one with --port 0"
            raise LevadaError(f"cannot listen on {host}:{port}: {error.strerror}; {advice}") from None


def _spawn(home: StateFolder, setup: dict[str, Any]) -> subprocess.Popen[bytes]:
    from levada.server.state_dir import LOG, advice

    words = ["serve", "--state-dir", str(home.folder)]
    for name in ("host", "port", "checkpoints", "policy", "certfile", "keyfile"):
        if setup[name] is not None:
            words += [f"--{name}", str(setup[name])]
    if setup["insecure"]:
        words.append("--insecure")
    if setup["stuck_after_s"] is not None:
        words += ["--stuck-after", f"{setup['stuck_after_s']:g}"]
    for name, value in (setup.get("keep") or {}).items():
        words += ["--keep", f"{name}={value:.0f}"]
    for name, value in setup["options"].items():
        words += ["--set", f"{name}={value}"]
    for gpus in setup["nodes"] or ():
        words += ["--node", ",".join(f"{name}={amount}" for name, amount in gpus.items())]
    for name in setup.get("names") or ():
        words += ["--allow-host", name]
    if setup.get("gone"):
        words += ["--take-over", setup["gone"]]
    # The URL of a database may hold a password, and all users can see the arguments of a process.
    environment = {name: value for name, value in os.environ.items() if name != "LEVADA_STORE"}
    if setup["store"] is not None:
        environment["LEVADA_STORE"] = setup["store"]
    try:
        with open(home.path(LOG), "ab", opener=_private) as log:
            return subprocess.Popen(
                [sys.executable, "-m", "levada", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env=environment,
            )
    except OSError as error:
        todo = advice(error, "let Levada write there, or choose another folder with --state-dir")
        raise LevadaError(f"{home.path(LOG)}: {error.strerror}; {todo}") from None


def _private(path: str, flags: int) -> int:
    """Open a file and make it readable by its owner only, also if it exists."""
    handle = os.open(path, flags, 0o600)
    os.fchmod(handle, 0o600)
    return handle


def _await_ready(home: StateFolder, child: subprocess.Popen[bytes] | None, log_start: int) -> None:
    """Return when the server is ready; raises LevadaError with its last message if it exits."""
    from levada.sdk.client import Client
    from levada.server.state_dir import LOG, SERVER

    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        if child is not None and child.poll() is not None:
            if home.holder() is not None:
                raise _OtherServerStarted
            raise LevadaError(_last_message(home.path(LOG), log_start))
        server = home.read(SERVER)
        if server and server.get("pid") == home.holder():
            try:
                if not Client(server["url"], server["token"], timeout_s=5.0, patience_s=0.0).ready():
                    if child is not None and child.pid != server["pid"]:
                        # Another `up` was faster. This child would start later, when that server is stopped.
                        _terminate(child)
                    return
            except LevadaError:
                pass
        time.sleep(_POLL_S)
    raise LevadaError(
        f"the server is still starting after {_START_S:.0f} s; `levada up` waits for it again; "
        f"its log is {home.path(LOG)}"
    )


def _last_message(log: Path, log_start: int) -> str:
    with open(log, "rb") as file:
        file.seek(log_start)
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("levada: ") for line in lines if line.startswith("levada: ")]
    if not lines:
        # On a full disk, the server cannot write its log.
        disk = os.statvfs(log)
        has_room = disk.f_bavail * disk.f_frsize >= _MIN_FREE_BYTES
        return f"the server exited at once; {f'see {log}' if has_room else f'free space on the disk of {log.parent}'}"
    return (errors or lines)[-1]
