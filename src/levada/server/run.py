"""Serve the API with uvicorn until stopped."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from levada import __version__
from levada.errors import LevadaError, Refused
from levada.server.allowed_hosts import is_loopback
from levada.server.app import make
from levada.server.context import Context, ServerTuning
from levada.server.metrics_middleware import MetricsMiddleware
from levada.server.problems import response
from levada.server.timeouts import protocol

#: Longer than clients keep idle connections, so that the server does not close one during a request.
_KEEP_ALIVE_S = 65
#: Time for responses in progress when the server stops.
_SHUTDOWN_S = 5
#: Size of a message of an agent, in bytes.
_MAX_MESSAGE = 4 * 2**20


class CannotListen(LevadaError):
    """Another process listens on the address, or the machine does not have it."""


@dataclass(frozen=True)
class Listen:
    """Address and TLS settings of a server."""

    host: str = "127.0.0.1"
    #: 0 = any free port.
    port: int = 0
    certfile: str | None = None
    keyfile: str | None = None
    #: Allow plain HTTP on an address that other machines can reach.
    insecure: bool = False
    #: Accepted Host names besides *host* and loopback.
    names: Sequence[str] = ()
    #: Directory of files to serve at `/`.
    ui: Path | None = None


async def serve(
    context: Context,
    listen: Listen,
    *,
    started: Callable[[str], None],
    stop: asyncio.Event | None = None,
    listener: socket.socket | None = None,
) -> None:
    """Serve until *stop* is set; *started* gets the URL. `/metrics` needs no token on loopback.

    *listener*: the socket of `standing_by`. Raises Refused for an address that other machines can reach without TLS,
    unless `insecure` is set.
    """
    host = listen.host
    context.open_metrics = is_loopback(host)
    meter = MetricsMiddleware(context.service, context.tuning)
    hosts = [host, *listen.names] if context.open_metrics or listen.names else None
    config = _config(make(context, meter, ui=listen.ui, hosts=hosts), listen, context.tuning)
    with listener or _listening_socket(host, listen.port) as sockets:
        server = _Server(config)
        tasks = [asyncio.create_task(_stop_when_set(server, context, stop)), asyncio.create_task(meter.follow())]
        try:
            started(_url(sockets, host, listen.certfile is not None))
            await server.serve(sockets=[sockets])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def standing_by(listen: Listen) -> AsyncIterator[socket.socket]:
    """Answer health checks while the server does not lead yet; yields the socket for `serve`.

    `/healthz` is 200, everything else 503. Connections that arrive between this and `serve` wait in the socket.
    """
    config = _config(_standby, listen, ServerTuning())
    listener = _listening_socket(listen.host, listen.port)
    server = _Server(config)
    # The server closes its socket when it ends: give it a copy.
    task = asyncio.create_task(server.serve(sockets=[listener.dup()]))
    try:
        yield listener
    except BaseException:
        listener.close()
        raise
    finally:
        server.should_exit = True
        await asyncio.wait([task])


async def _standby(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        is_health = scope["path"] == "/healthz"
        why = "standing by: this server does not lead yet"
        answer = JSONResponse({"status": "ok", "version": __version__}) if is_health else response(503, why)
        await answer(scope, receive, send)


def _config(app: ASGIApp, listen: Listen, tuning: ServerTuning) -> uvicorn.Config:
    """Return the settings of uvicorn; raises Refused or LevadaError for settings that cannot be used."""
    if not is_loopback(listen.host) and listen.certfile is None and not listen.insecure:
        raise Refused(
            f"other machines can reach {listen.host}, and tokens would be sent in the clear; "
            "use --certfile and --keyfile, or --insecure behind a TLS proxy"
        )
    config = uvicorn.Config(
        app,
        http=protocol(tuning),
        ssl_certfile=listen.certfile,
        ssl_keyfile=listen.keyfile,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        headers=[("X-Content-Type-Options", "nosniff")],
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        ws_max_size=_MAX_MESSAGE,
    )
    try:
        config.load()
    except OSError as error:
        raise LevadaError(f"cannot use the certificate {listen.certfile} or its key: {error}") from None
    return config


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers."""
        yield


async def _stop_when_set(server: _Server, context: Context, stop: asyncio.Event | None) -> None:
    if stop is not None:
        await stop.wait()
        # End streams first: they do not end by themselves.
        context.stopping.set()
        server.should_exit = True


def _listening_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; raises CannotListen."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Without the protocol, asyncio does not disable Nagle's algorithm: 40 ms per response.
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CannotListen(f"cannot listen on {host}: {error.strerror}; use another --host") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror}; use another --port") from None
    return listener


def _url(listener: socket.socket, host: str, encrypted: bool) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if encrypted else 'http'}://{shown}:{listener.getsockname()[1]}"
