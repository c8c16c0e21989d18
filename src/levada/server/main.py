"""One server of one machine: everything brought up in order, and taken down in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from levada.backends.local.backend import LocalBackend
from levada.backends.local.command import last_epoch
from levada.backends.local.devices import Nvml, nodes_here
from levada.errors import LevadaError, Refused
from levada.live.elsewhere import Machine
from levada.live.live import STAND_BY_S, Live
from levada.live.service import Service
from levada.live.store import LeaseLost, Store
from levada.live.trimming import Keep
from levada.live.warnings import STUCK_AFTER_S
from levada.live.witness import Witness
from levada.server import worker_token
from levada.server.home import SERVER, SETUP, STOP, Home, advice
from levada.server.hosts import is_loopback
from levada.server.kernel_loader import load_kernels
from levada.server.run import serve
from levada.server.secrets import Secrets

_log = logging.getLogger(__name__)

DEFAULT_PORT = 7373
_SWITCH_S = 0.00025
_COLLECT = (10_000, 20, 200)


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is started. What is None is as it was the last time."""

    host: str = "127.0.0.1"
    port: int | None = None
    store: str | None = None
    #: A folder that all machines share.
    checkpoints: str | None = None
    #: GPUs by type of each pretend node.
    nodes: Sequence[Mapping[str, int]] | None = None
    #: Of a server that is new.
    policy: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    insecure: bool = False
    #: Names that it goes by besides those of this machine, as who stands before it says them.
    names: Sequence[str] | None = None
    #: Of the engine, from now on.
    options: Mapping[str, float] = {}
    #: Stand by while another server acts on the store.
    wait: bool = False
    #: A machine of which an operator says that nothing runs there any more.
    gone: str | None = None
    #: A job that makes no step for so long is worth a warning; 0 = never.
    stuck_after_s: float | None = None
    #: For how many seconds what users may ask for is kept; see `Keep`.
    keep: Mapping[str, float] | None = None


async def run(folder: Path, setup: Setup, ready: Callable[[str, str], None]) -> None:
    """Serves until SIGTERM or SIGINT; tells *ready* address and token."""
    # While a policy thinks in its thread, requests get their turn twenty times as often as Python would give it.
    sys.setswitchinterval(_SWITCH_S)
    # What is loaded by now stays for ever, and jobs stay for days: to look through all of them for rubbish takes a
    # tenth of a second, so it is done seldom; what a request leaves behind is young, and found all the same.
    gc.freeze()
    gc.set_threshold(*_COLLECT)
    home = Home(folder)
    home.make()
    async with _held(home, setup.wait):
        home.drop(STOP)
        before = home.read(SETUP)
        nodes = setup.nodes if setup.nodes is not None else before.get("nodes")
        own = f"sqlite:///{folder.absolute()}/levada.db"
        url = setup.store or before.get("store") or own
        port = _port(setup, before)
        stuck_after_s = before.get("stuck_after_s") if setup.stuck_after_s is None else setup.stuck_after_s
        shared = setup.checkpoints or before.get("checkpoints")
        names = setup.names if setup.names is not None else before.get("names", ())
        keep = setup.keep if setup.keep is not None else before.get("keep", {})
        Keep.of(keep)  # raises BadInput before it is remembered
        # Not the path of the folder's own: it is another one when the folder is moved or copied.
        elsewhere = None if url == own else url
        kept = {"nodes": nodes, "store": elsewhere, "port": port, "stuck_after_s": stuck_after_s, "checkpoints": shared}
        home_id = before.get("id") or secrets.token_hex(8)
        home.write(SETUP, {**kept, "names": names, "keep": keep, "id": home_id})
        setup = msgspec.structs.replace(setup, stuck_after_s=stuck_after_s, checkpoints=shared, names=names, keep=keep)
        await _run(home, setup, url, port, nodes, home_id, ready)


@contextlib.asynccontextmanager
async def _held(home: Home, wait: bool) -> AsyncIterator[None]:
    """The folder is this server's alone; *wait*: as soon as it can be."""
    told = False
    while True:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(home.held())
            except Refused as refused:
                if not wait:
                    raise
                if not told:
                    _log.info("stands by: %s", refused)
                told = True
            else:
                yield
                return
        await asyncio.sleep(STAND_BY_S)


async def _run(
    home: Home,
    setup: Setup,
    url: str,
    port: int,
    declared: Sequence[Mapping[str, int]] | None,
    home_id: str,
    ready: Callable[[str, str], None],
) -> None:
    witness = Witness(home.folder.absolute(), last_epoch(home.folder))
    witness.check_file(url)
    store = await Store.open(url)
    secret = Secrets(home, store)
    nvml = Nvml()
    here, found = nodes_here(declared, nvml=nvml)
    _log.info("%s", found)
    scheme = "http" if setup.certfile is None else "https"
    address = f"{scheme}://{'127.0.0.1' if is_loopback(setup.host) else _reachable(setup.host)}:{port}"
    backend = LocalBackend(
        home.folder.absolute(),
        here,
        server_url=address,
        token_for=lambda job, number, worker: worker_token.sign(secret.worker_key, job, number, worker),
        checkpoints=None if setup.checkpoints is None else Path(setup.checkpoints),
    )
    live = Live(
        store,
        backend,
        stuck_after_s=STUCK_AFTER_S if setup.stuck_after_s is None else setup.stuck_after_s,
        gpu_use=nvml.use if nvml.devices() else None,
        machine=Machine(host=socket.gethostname(), folder=str(home.folder.absolute()), id=home_id, place=home.place()),
        keep=Keep.of(setup.keep or {}),
        witness=witness,
        prepare=secret.prepare,
    )
    try:
        await live.open(wait=setup.wait, policy=setup.policy, options=setup.options, gone=setup.gone)
    except BaseException as broken:
        await backend.close()
        await store.close()
        if isinstance(broken, OSError):
            where = broken.filename or home.folder
            todo = advice(broken, "let the server write there, or name another folder with --state")
            raise LevadaError(f"{where}: {broken.strerror or broken}; {todo}") from broken
        raise
    await _serve(home, setup, live, secret, port, ready)


async def _serve(
    home: Home,
    setup: Setup,
    live: Live,
    secret: Secrets,
    port: int,
    ready: Callable[[str, str], None],
) -> None:
    asked, hurry, stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
    jobs = {"jobs": "leave"}

    def end(default: str) -> None:
        if asked.is_set():
            hurry.set()
        jobs["jobs"] = home.read(STOP).get("jobs", default)
        asked.set()

    loop = asyncio.get_running_loop()
    # Who presses Ctrl-C wants everything to end; a service manager that stops a server starts it again.
    loop.add_signal_handler(signal.SIGINT, end, "stop")
    loop.add_signal_handler(signal.SIGTERM, end, "leave")

    def started(url: str) -> None:
        home.write(SERVER, {"url": url, "token": secret.token, "pid": os.getpid()})
        ready(url, secret.token)

    work = asyncio.create_task(live.run())
    work.add_done_callback(lambda _: asked.set())

    async def farewell() -> None:
        await asked.wait()
        try:
            home.drop(SERVER)
            live.stop()
            await asyncio.wait([work])
            lost = isinstance(work.exception(), LeaseLost) if not work.cancelled() else False
            if jobs["jobs"] == "stop" and not lost:
                _log.info("jobs save and leave")
                await _stop_jobs(live, hurry)
        finally:
            stop.set()

    leaving = asyncio.create_task(farewell())
    service = Service(live)
    loading = asyncio.create_task(load_kernels(service.size))
    loading.add_done_callback(_note_failure)
    try:
        # It answers until jobs have left: agents of other machines hear through it that theirs shall.
        await serve(
            service,
            secret.keys,
            host=setup.host,
            port=port,
            certfile=setup.certfile,
            keyfile=setup.keyfile,
            insecure=setup.insecure,
            worker_key=secret.worker_key,
            names=setup.names or (),
            started=started,
            stop=stop,
        )
    finally:
        asked.set()
        loading.cancel()
        await asyncio.wait([leaving, loading])
        await live.close()
    await leaving
    if not work.cancelled() and (broken := work.exception()) is not None:
        raise broken if isinstance(broken, LevadaError) else LevadaError(f"the server stopped: {broken}") from broken


def _note_failure(loading: asyncio.Task[None]) -> None:
    """A server without compiled kernels is slower, and works."""
    if not loading.cancelled() and (broken := loading.exception()) is not None:
        _log.error("compiled kernels could not be loaded: %s", broken, exc_info=broken)


async def _stop_jobs(live: Live, hurry: asyncio.Event) -> None:
    """Returns when all jobs have saved and left, or somebody is in a hurry."""
    both = [asyncio.create_task(live.stop_jobs()), asyncio.create_task(hurry.wait())]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    for task in both:
        task.cancel()
    await asyncio.gather(*both, return_exceptions=True)


def _port(setup: Setup, before: Mapping[str, object]) -> int:
    """The port that is asked for; the last one again, so that workers find the server; 0 is a free one."""
    known = before.get("port")
    wanted = setup.port
    if wanted is None:
        wanted = known if isinstance(known, int) else DEFAULT_PORT
    if wanted == 0:
        if isinstance(known, int) and _is_free(setup.host, known):
            return known
        try:
            with socket.socket(socket.AF_INET6 if ":" in setup.host else socket.AF_INET) as probe:
                probe.bind((setup.host, 0))
                return int(probe.getsockname()[1])
        except OSError as broken:
            todo = "name an address of this machine with --host"
            raise LevadaError(f"cannot listen on {setup.host}: {broken.strerror}; {todo}") from None
    return wanted


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def _reachable(host: str) -> str:
    """How workers reach a server that listens on *host*."""
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host
