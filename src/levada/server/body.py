"""Bodies as plain values: JSON in which nothing is given twice and every text can be stored."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from levada.errors import BadInput
from levada.jobfile.text import parse_json
from levada.server.problems import Problem


def strict_json(content: bytes) -> Any:
    """The value of a body; raises Problem."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Problem(400, f"not UTF-8 at byte {error.start}") from None
    try:
        value = parse_json(text)
    except BadInput as error:
        raise Problem(400, str(error), faults=error.faults) from None
    if "\\u" in text and _unstorable(value):
        raise Problem(400, "a text holds a null character or half of a surrogate pair, which cannot be stored")
    return value


def _unstorable(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value or any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return any(_unstorable(key) or _unstorable(inner) for key, inner in value.items())
    return isinstance(value, list) and any(map(_unstorable, value))


class _StrictRequest(Request):
    async def json(self) -> Any:
        """The body, read strictly."""
        return strict_json(await self.body())


class StrictRoute(APIRoute):
    """A route whose body is read by `strict_json`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler that FastAPI makes, given a stricter request."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return strict
