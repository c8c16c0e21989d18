"""Check the Host header, against DNS rebinding to loopback addresses.

A website whose name resolves to loopback must not get answers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from levada.server.problems import response

#: WebSocket close code: policy violation.
_POLICY_VIOLATION = 1008


class AllowedHosts:
    """Rejects requests whose Host is neither loopback nor one of *names*."""

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app = app
        self._names = frozenset(map(_normalized, names))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = next((value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"host"), "")
        name = _normalized(_without_port(host))
        # A browser always sends Host.
        if not name or name in self._names or is_loopback(name):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": ""})
        else:
            detail = "the Host header has an unknown name; allow it with `levada up --allow-host NAME`"
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


def _normalized(name: str) -> str:
    return name.strip().lower().removesuffix(".")
