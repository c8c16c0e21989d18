"""Serves the API until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import uvicorn

from levada.errors import LevadaError, Refused
from levada.server.app import make
from levada.server.context import Context, Tuning
from levada.server.hosts import is_loopback
from levada.server.meter import Meter
from levada.server.patience import patience
from levada.server.ports import Keys, Service

#: Longer than a client keeps an idle connection, so that it is never closed under a request.
_KEEP_ALIVE_S = 65
#: How long answers that are under way may take when the server stops.
_FAREWELL_S = 5
#: Of an agent's message, in bytes.
_MOST_MESSAGE = 4 * 2**20
_TUNING = Tuning()


async def serve(
    service: Service,
    keys: Keys,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    certfile: str | None = None,
    keyfile: str | None = None,
    insecure: bool = False,
    worker_key: bytes | None = None,
    ui: Path | None = None,
    names: Sequence[str] = (),
    tuning: Tuning = _TUNING,
    started: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serves until *stop* is set; tells *started* the address, whose port 0 has become a free one.

    An address that others can reach needs a certificate, or *insecure*: tokens would go over the wire for all to read.
    On loopback it goes by the names of this machine and by *names* only.
    """
    local = is_loopback(host)
    if not local and certfile is None and not insecure:
        raise Refused(
            f"{host} can be reached by others, and tokens would be sent in the clear; "
            "give --certfile and --keyfile, or --insecure where something else encrypts"
        )
    context = Context(service, keys, open_metrics=local, tuning=tuning)
    if worker_key is not None:
        context.worker_key = worker_key
    meter = Meter(service, tuning)
    config = uvicorn.Config(
        make(context, meter, ui=ui, hosts=[host, *names] if local or names else None),
        http=patience(tuning),
        ssl_certfile=certfile,
        ssl_keyfile=keyfile,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        headers=[("X-Content-Type-Options", "nosniff")],
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_FAREWELL_S,
        ws_max_size=_MOST_MESSAGE,
    )
    try:
        config.load()
    except OSError as error:
        raise LevadaError(f"the certificate {certfile} or its key cannot be used: {error}") from None
    with _bound(host, port) as listener:
        server = _Server(config)
        chores = [asyncio.create_task(_farewell(server, context, stop)), asyncio.create_task(meter.follow())]
        try:
            if started is not None:
                started(_url(listener, host, certfile is not None))
            await server.serve(sockets=[listener])
        finally:
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)


class _Server(uvicorn.Server):
    """uvicorn's, which leaves signals to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing."""
        yield


async def _farewell(server: _Server, context: Context, stop: asyncio.Event | None) -> None:
    if stop is not None:
        await stop.wait()
        # First the streams, which would never end by themselves.
        context.stopping.set()
        server.should_exit = True


def _bound(host: str, port: int) -> socket.socket:
    """A listening socket; raises LevadaError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With its protocol: where that is not said, asyncio leaves Nagle's delay on, 40 ms for every answer.
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise LevadaError(f"{host} is no address to listen on: {error.strerror}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise LevadaError(f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port") from None
    return listener


def _url(listener: socket.socket, host: str, encrypted: bool) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if encrypted else 'http'}://{shown}:{listener.getsockname()[1]}"
