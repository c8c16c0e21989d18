"""A server of this machine in the background: started and waited for until it answers, and stopped."""

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

from levada.cli.interrupts import deferred
from levada.cli.output import chatter
from levada.cli.waiting import Waiting
from levada.errors import LevadaError, Refused

if TYPE_CHECKING:
    from levada.server.home import Home

#: Where a server listens unless told otherwise, as `levada.server.main` has it.
USUAL_PORT = 7373
#: How long a server may take to come up, and one that is not wanted any more to go.
_UP_S, _GO_S = 60.0, 10.0
#: Who is asked to go down has begun with it by then.
_HEARS_S = 30.0
_LOOK_S = 0.05
#: A disk with less room is full.
_ROOM_BYTES = 1 << 20
#: What is the same for as long as a server is up, as far as its folder knows it.
_KEPT = {
    "nodes": "other nodes",
    "store": "another --store",
    "port": "another --port",
    "checkpoints": "other --checkpoints",
    "stuck_after_s": "another --stuck-after",
    "keep": "another --keep",
    "names": "another --allow-host",
}
_NOT_KEPT = {
    "options": "--set",
    "policy": "--policy",
    "certfile": "--certfile",
    "keyfile": "--keyfile",
    "gone": "--take-over",
}


def bring_up(home: Home, setup: dict[str, Any]) -> None:
    """Returns when a server answers; who is interrupted before leaves none behind. Raises LevadaError."""
    from levada.server.home import LOG

    home.make()
    if home.holder() is not None:
        chatter("a server is up already")
        _same(home, setup)
        with Waiting("it is asked whether it is ready"):
            _await(home, None, 0)
        return
    _check_port(home, setup)
    began = home.path(LOG).stat().st_size if home.path(LOG).exists() else 0
    child = None
    try:
        with deferred():
            child = _spawn(home, setup)
        with Waiting("the server comes up"):
            _await(home, child, began)
    except KeyboardInterrupt:
        _end(child)
        raise
    except _Taken:
        bring_up(home, setup)


class _Taken(Exception):
    """Somebody else who started a server here at the same time was faster: theirs is the one."""


def take_down(home: Home, *, leave_jobs: bool = False, patience_s: float = _HEARS_S) -> None:
    """Returns when no server has the folder, whatever it still had to do; raises LevadaError where it hears nothing."""
    from levada.server.home import SERVER, STOP

    pid = home.holder()
    if pid is None:
        return
    home.write(STOP, {"jobs": "leave" if leave_jobs else "stop"})
    handle = os.pidfd_open(pid)
    try:
        if home.holder() == pid:
            signal.pidfd_send_signal(handle, signal.SIGTERM)
        with Waiting("the server goes down; jobs may take their grace period"):
            # Who has heard takes its address away first; only then jobs may take as long as they were given.
            ended = select.select([handle], [], [], patience_s)[0]
            if not ended and home.read(SERVER).get("pid") == pid:
                raise LevadaError(
                    f"the server (process {pid}) has not heard for {patience_s:g} s: `kill -9 {pid}` ends it, its jobs "
                    "run on, and the next `levada up` finds them"
                )
            select.select([handle], [], [])
    finally:
        os.close(handle)


def _end(child: subprocess.Popen[bytes] | None) -> None:
    """Jobs that a server found running are left as they were."""
    if child is None:
        return
    child.terminate()
    try:
        child.wait(_GO_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _same(home: Home, setup: dict[str, Any]) -> None:
    """What is asked for must be what there is: a server that is up does not change. Raises Refused."""
    from levada.server.home import SETUP

    kept = home.read(SETUP)
    # Port 0 is any.
    asked = {name: setup.get(name) for name in _KEPT}
    asked = {name: value for name, value in asked.items() if value is not None and (name, value) != ("port", 0)}
    other = [_KEPT[name] for name, value in asked.items() if name in kept and kept[name] != value]
    if other:
        raise Refused(f"the server that is up was started with {' and '.join(other)}; `levada down` first")
    idle = [option for name, option in _NOT_KEPT.items() if setup.get(name)]
    if idle:
        chatter(f"{', '.join(idle)}: no effect on a server that is up; `levada down` first")


def _check_port(home: Home, setup: dict[str, Any]) -> None:
    """Says at once what a server would say after all its preparations; raises LevadaError."""
    from levada.server.home import SETUP

    port = setup["port"] if setup["port"] is not None else home.read(SETUP).get("port") or USUAL_PORT
    host = setup["host"]
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OverflowError:
        return  # it is no port, as the server will say
    except OSError as broken:
        if broken.errno in (errno.EADDRINUSE, errno.EACCES):
            advice = "choose another with --port, or a free one with --port 0"
            raise LevadaError(f"cannot listen on {host}:{port}: {broken.strerror}; {advice}") from None


def _spawn(home: Home, setup: dict[str, Any]) -> subprocess.Popen[bytes]:
    from levada.server.home import LOG, advice

    words = ["serve", "--state", str(home.folder)]
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
    # The address of a database may hold a password, and everybody sees the words of a process.
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
    except OSError as broken:
        todo = advice(broken, "let Levada write there, or name another folder with --state")
        raise LevadaError(f"{home.path(LOG)}: {broken.strerror}; {todo}") from None


def _private(path: str, flags: int) -> int:
    """Opens a file that only its owner may read, also one that was there."""
    handle = os.open(path, flags, 0o600)
    os.fchmod(handle, 0o600)
    return handle


def _await(home: Home, child: subprocess.Popen[bytes] | None, began: int) -> None:
    """Returns when the server answers; raises what it said where it ended instead."""
    from levada.sdk.client import Client
    from levada.server.home import LOG, SERVER

    until = time.monotonic() + _UP_S
    while time.monotonic() < until:
        if child is not None and child.poll() is not None:
            if home.holder() is not None:
                raise _Taken
            raise LevadaError(_last_words(home.path(LOG), began))
        told = home.read(SERVER)
        if told and told.get("pid") == home.holder():
            try:
                if not Client(told["url"], told["token"], timeout_s=5.0, patience_s=0.0).ready():
                    return
            except LevadaError:
                pass
        time.sleep(_LOOK_S)
    raise LevadaError(
        f"the server is not ready after {_UP_S:.0f} s, and goes on coming up: `levada up` waits for it again; "
        f"its log is {home.path(LOG)}"
    )


def _last_words(log: Path, began: int) -> str:
    with open(log, "rb") as file:
        file.seek(began)
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    said = [line.removeprefix("levada: ") for line in lines if line.startswith("levada: ")]
    if not lines:
        # On a full disk it could not even say that.
        disk = os.statvfs(log)
        room = disk.f_bavail * disk.f_frsize >= _ROOM_BYTES
        return f"the server ended at once; {f'see {log}' if room else f'make room on the disk of {log.parent}'}"
    return (said or lines)[-1]
