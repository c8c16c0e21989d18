"""By which names a server is asked. A page of some website whose name leads to loopback must not read what is here."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from levada.server.problems import response

#: WebSocket's code for a refusal.
_POLICY_VIOLATION = 1008


class Hosts:
    """Refuses requests for other hosts than this machine and *names*."""

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app = app
        self._names = frozenset(map(_plain, names))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = next((value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"host"), "")
        name = _plain(_without_port(asked))
        # Who names no host is no browser.
        if not name or name in self._names or is_loopback(name):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": ""})
        else:
            detail = "this server does not go by the name in Host; `levada up --allow-host NAME` lets it"
            await response(421, detail)(scope, receive, send)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _plain(name: str) -> str:
    return name.strip().lower().removesuffix(".")
