"""Limits of request bodies: size and time."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from levada.server.context import ServerTuning
from levada.server.problems import Problem, response

#: Close the connection: the rest of the body is not read.
_CLOSE = {"Connection": "close"}


class RequestLimits:
    """Rejects bodies that are too large or too slow, and null characters in paths and queries."""

    def __init__(self, app: ASGIApp, tuning: ServerTuning) -> None:
        self._app = app
        self._tuning = tuning

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            await response(400, "a name must not contain a null character")(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > self._tuning.max_bytes:
            await response(413, self._too_large(), headers=_CLOSE)(scope, receive, send)
            return
        await self._app(scope, self._bounded(receive), send)

    def _bounded(self, receive: Receive) -> Receive:
        received = 0
        complete = False
        until = asyncio.get_running_loop().time() + self._tuning.body_s

        async def bounded() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise Problem(408, f"no complete body within {self._tuning.body_s:g} s", headers=_CLOSE) from None
            received += len(message.get("body", b""))
            if received > self._tuning.max_bytes:
                raise Problem(413, self._too_large(), headers=_CLOSE)
            complete = not message.get("more_body", False)
            return message

        return bounded

    def _too_large(self) -> str:
        return f"a body may have at most {self._tuning.max_bytes >> 20} MiB; split it"
