"""Start and stop a server: state directory, store, backend, loop and HTTP."""

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

from levada.backends.local.epoch_fence import last_epoch
from levada.errors import LevadaError, Refused
from levada.live.live import STAND_BY_S, Live
from levada.live.retention import Keep
from levada.live.service import Service
from levada.live.store import LeaseLost, Store
from levada.live.store_identity import StoreIdentity
from levada.live.takeover import ServerLocation
from levada.live.warnings import STUCK_AFTER_S, WarningOptions
from levada.server import worker_token
from levada.server.allowed_hosts import is_loopback
from levada.server.backend_factory import LOCAL, BackendFactory
from levada.server.context import Context
from levada.server.kernel_loader import load_kernels
from levada.server.run import CannotListen, Listen, serve, standing_by
from levada.server.secrets import Secrets
from levada.server.state_dir import SERVER, SETUP, STOP, StateFolder, advice

_log = logging.getLogger(__name__)

DEFAULT_PORT = 7373
_SWITCH_S = 0.00025
_GC_THRESHOLDS = (10_000, 20, 200)


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a start; None means as at the last start."""

    host: str = "127.0.0.1"
    port: int | None = None
    store: str | None = None
    #: Directory for checkpoints that all machines share.
    checkpoints: str | None = None
    #: GPUs by type of each simulated node.
    nodes: Sequence[Mapping[str, int]] | None = None
    #: Initial policy of a new store.
    policy: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    insecure: bool = False
    #: Accepted Host names besides loopback, e.g. that of a proxy.
    names: Sequence[str] | None = None
    #: Options of the engine to change.
    options: Mapping[str, float] = {}
    #: Wait as a standby while another server has the lease.
    wait: bool = False
    #: Take over from this machine, on which no job runs any more.
    gone: str | None = None
    #: Warn about a job without progress for this time; 0 = never.
    stuck_after_s: float | None = None
    #: Retention of history in seconds; see `Keep`.
    keep: Mapping[str, float] | None = None
    #: What runs jobs: local or kubernetes.
    backend: str = LOCAL
    #: None: the service account of this pod, $KUBECONFIG or ~/.kube/config.
    kubeconfig: str | None = None
    #: URL under which workers reach the server; by default that of its host and port.
    public_url: str | None = None


async def run(folder: Path, setup: Setup, ready: Callable[[str, str], None]) -> None:
    """Serve until SIGTERM or SIGINT; *ready* gets the URL and the owner's token."""
    # Switch threads 20 times as often as by default, so that requests run while a policy decides in its thread.
    sys.setswitchinterval(_SWITCH_S)
    # Imported modules stay loaded and jobs live for days: a full collection takes 0.1 s and is made rarely. Garbage of
    # requests is young and still collected.
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    home = StateFolder(folder)
    home.make()
    async with _locked(home, setup.wait):
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
        Keep.of(keep)  # raises BadInput before the settings are stored
        # The path of the own database is not stored: it changes when the directory is moved or copied.
        external = None if url == own else url
        settings = {
            "nodes": nodes,
            "store": external,
            "port": port,
            "stuck_after_s": stuck_after_s,
            "checkpoints": shared,
        }
        home_id = before.get("id") or secrets.token_hex(8)
        home.write(SETUP, {**settings, "names": names, "keep": keep, "id": home_id})
        setup = msgspec.structs.replace(setup, stuck_after_s=stuck_after_s, checkpoints=shared, names=names, keep=keep)
        await _run(home, setup, url, port, nodes, home_id, ready)


@contextlib.asynccontextmanager
async def _locked(home: StateFolder, wait: bool) -> AsyncIterator[None]:
    """Lock the state directory; *wait* until it is free instead of raising Refused."""
    logged = False
    while True:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(home.held())
            except Refused as refused:
                if not wait:
                    raise
                if not logged:
                    _log.info("waiting as a standby: %s", refused)
                logged = True
            else:
                yield
                return
        await asyncio.sleep(STAND_BY_S)


async def _run(
    home: StateFolder,
    setup: Setup,
    url: str,
    port: int,
    declared: Sequence[Mapping[str, int]] | None,
    home_id: str,
    ready: Callable[[str, str], None],
) -> None:
    folder = home.folder.absolute()
    store_identity = StoreIdentity(folder, last_epoch(home.folder))
    store_identity.check_file(url)
    store = await Store.open(url)
    secret = Secrets(home, store)
    scheme = "http" if setup.certfile is None else "https"
    address = f"{scheme}://{'127.0.0.1' if is_loopback(setup.host) else _reachable(setup.host)}:{port}"
    live: Live
    backends = BackendFactory(
        folder=folder,
        nodes=declared,
        server_url=setup.public_url or address,
        checkpoints=None if setup.checkpoints is None else Path(setup.checkpoints),
        sign=lambda job, number, worker: worker_token.sign(secret.worker_key, job, number, worker),
        kubeconfig=setup.kubeconfig,
        lease_age_s=lambda: live.lease_age_s(),
    )
    is_local = setup.backend == LOCAL
    chosen = backends.local() if is_local else await backends.kubernetes(store)
    _log.info("%s", chosen.text)
    backend = chosen.backend
    live = Live(
        store,
        backend,
        warn=WarningOptions(
            after_s=STUCK_AFTER_S if setup.stuck_after_s is None else setup.stuck_after_s, gpu_use=chosen.gpu_use
        ),
        # Every server sees all jobs of a cluster: none of them runs elsewhere.
        machine=ServerLocation(host=socket.gethostname(), folder=str(folder), id=home_id, place=home.place())
        if is_local
        else None,
        keep=Keep.of(setup.keep or {}),
        store_identity=store_identity,
        prepare=secret.prepare,
    )
    listen = Listen(
        host=setup.host,
        port=port,
        certfile=setup.certfile,
        keyfile=setup.keyfile,
        insecure=setup.insecure,
        names=setup.names or (),
    )
    try:
        listener = await _open(live, setup, listen)
    except BaseException as error:
        await backend.close()
        await store.close()
        if isinstance(error, OSError):
            where = error.filename or home.folder
            todo = advice(error, "give the server write access, or name another folder with --state-dir")
            raise LevadaError(f"{where}: {error.strerror or error}; {todo}") from error
        if isinstance(error, _Stopped):
            return
        raise
    await _serve(home, live, secret, listen, listener, chosen.text, ready)


class _Stopped(Exception):
    """SIGTERM came before the server led."""


async def _open(live: Live, setup: Setup, listen: Listen) -> socket.socket | None:
    """Open the server; one that may have to wait answers health checks meanwhile. Returns its socket, if it has one."""
    opening = asyncio.ensure_future(
        live.open(wait=setup.wait, policy=setup.policy, options=setup.options, gone=setup.gone)
    )
    # Process 1 of a container ignores SIGTERM without a handler.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, opening.cancel)
    try:
        if not setup.wait and setup.backend == LOCAL:
            await opening
            return None
        try:
            async with standing_by(listen) as listener:
                await opening
                return listener
        except CannotListen as error:
            if setup.backend != LOCAL:
                raise
            # A standby beside the leader, with its port.
            _log.info("standing by without health checks: %s", error)
            await opening
            return None
    except asyncio.CancelledError:
        if opening.cancelled() and not asyncio.current_task().cancelling():  # type: ignore[union-attr]
            raise _Stopped from None
        raise
    finally:
        if not opening.done():
            opening.cancel()
            await asyncio.wait([opening])


async def _serve(
    home: StateFolder,
    live: Live,
    secret: Secrets,
    listen: Listen,
    listener: socket.socket | None,
    gpus: str,
    ready: Callable[[str, str], None],
) -> None:
    stopping, hurry, stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
    jobs = "leave"

    def request_stop(default: str) -> None:
        nonlocal jobs
        if stopping.is_set():
            hurry.set()
        jobs = home.read(STOP).get("jobs", default)
        stopping.set()

    loop = asyncio.get_running_loop()
    # Ctrl-C stops the jobs; a service manager that sends SIGTERM usually restarts the server, so jobs keep running.
    loop.add_signal_handler(signal.SIGINT, request_stop, "stop")
    loop.add_signal_handler(signal.SIGTERM, request_stop, "leave")

    def started(url: str) -> None:
        home.write(SERVER, {"url": url, "token": secret.token, "pid": os.getpid(), "gpus": gpus})
        ready(url, secret.token)

    work = asyncio.create_task(live.run())
    work.add_done_callback(lambda _: stopping.set())

    async def shut_down() -> None:
        await stopping.wait()
        try:
            home.drop(SERVER)
            live.stop()
            await asyncio.wait([work])
            lost = isinstance(work.exception(), LeaseLost) if not work.cancelled() else False
            if jobs == "stop" and not lost:
                _log.info("stopping jobs: each saves a checkpoint")
                await _stop_jobs(live, hurry)
        finally:
            stop.set()

    shutdown = asyncio.create_task(shut_down())
    service = Service(live)
    loading = asyncio.create_task(load_kernels(service.size))
    loading.add_done_callback(_log_failure)
    try:
        # Serves until jobs have stopped: agents of other machines get their commands over HTTP.
        context = Context(service, secret.keys, worker_key=secret.worker_key)
        await serve(context, listen, started=started, stop=stop, listener=listener)
    finally:
        stopping.set()
        loading.cancel()
        await asyncio.wait([shutdown, loading])
        await live.close()
    await shutdown
    if not work.cancelled() and (error := work.exception()) is not None:
        raise error if isinstance(error, LevadaError) else LevadaError(f"the server stopped: {error}") from error


def _log_failure(loading: asyncio.Task[None]) -> None:
    """Log a failure; without compiled kernels the server is only slower."""
    if not loading.cancelled() and (error := loading.exception()) is not None:
        _log.error("cannot load compiled kernels: %s", error, exc_info=error)


async def _stop_jobs(live: Live, hurry: asyncio.Event) -> None:
    """Return when all jobs have stopped, or at a second signal (*hurry*)."""
    both = [asyncio.create_task(live.stop_jobs()), asyncio.create_task(hurry.wait())]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    for task in both:
        task.cancel()
    await asyncio.gather(*both, return_exceptions=True)


def _port(setup: Setup, before: Mapping[str, object]) -> int:
    """Return the requested port, by default the last one so that workers find the server; 0: any free port."""
    last = before.get("port")
    port = setup.port
    if port is None:
        port = last if isinstance(last, int) else DEFAULT_PORT
    if port == 0:
        if isinstance(last, int) and _is_free(setup.host, last):
            return last
        try:
            with socket.socket(socket.AF_INET6 if ":" in setup.host else socket.AF_INET) as probe:
                probe.bind((setup.host, 0))
                return int(probe.getsockname()[1])
        except OSError as error:
            todo = "give an address of this machine with --host"
            raise LevadaError(f"cannot listen on {setup.host}: {error.strerror}; {todo}") from None
    return port


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def _reachable(host: str) -> str:
    """Return the host under which workers reach a server that listens on *host*."""
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host
