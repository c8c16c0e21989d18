"""Requests read strictly: JSON in which nothing is given twice and every text can be stored, no unknown query."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, get_args, get_origin

from fastapi import Request, Response
from fastapi.routing import APIRoute

from levada.errors import BadInput, Fault, did_you_mean
from levada.jobfile.text import parse_json
from levada.server.problems import Problem

#: Of a body: more than any job file needs, and few enough for whoever walks through it.
MOST_DEPTH = 64
_TOO_DEEP = f"nested too deeply: {MOST_DEPTH} levels are the most"
#: A larger body is read beside the loop.
_LARGE = 64 * 2**10


async def read_json(request: Request) -> Any:
    """The body of a request; raises Problem."""
    content = await request.body()
    return strict_json(content) if len(content) < _LARGE else await asyncio.to_thread(strict_json, content)


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
    except RecursionError:
        raise Problem(400, _TOO_DEEP) from None
    if _depth(value) > MOST_DEPTH:
        raise Problem(400, _TOO_DEEP)
    if "\\u" in text and _unstorable(value):
        raise Problem(400, "a text holds a null character or half of a surrogate pair, which cannot be stored")
    return value


def is_storable(value: Any) -> bool:
    """Whether a value that was read by somebody else is as good as a body has to be."""
    return _depth(value) <= MOST_DEPTH and not _unstorable(value)


def _depth(value: Any) -> int:
    """How many levels a value has; stops counting beyond what is allowed."""
    depth, level = 0, [value]
    while level and depth <= MOST_DEPTH:
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [each for values in inner for each in values if isinstance(each, dict | list)]
        depth += bool(inner)
    return depth


def _unstorable(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value or any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return any(_unstorable(key) or _unstorable(inner) for key, inner in value.items())
    return isinstance(value, list) and any(map(_unstorable, value))


class _StrictRequest(Request):
    async def json(self) -> Any:
        """The body, read strictly."""
        return await read_json(self)


class StrictRoute(APIRoute):
    """A route whose body is read by `strict_json`, and whose query holds nothing unknown."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler that FastAPI makes, given a stricter request."""
        handle = super().get_route_handler()
        known = {field.alias: _several(field.field_info.annotation) for field in self.dependant.query_params}

        async def strict(request: Request) -> Response:
            times = Counter(name for name, _ in request.query_params.multi_items())
            faults = [_unknown(name, list(known)) for name in times if name not in known]
            faults += [Fault(name, "is given twice") for name in known if times[name] > 1 and not known[name]]
            if faults:
                raise BadInput(faults)
            if self.body_field is not None and _has_body(request) and not _is_json(request):
                raise Problem(415, "send JSON, with Content-Type: application/json")
            return await handle(_StrictRequest(request.scope, request.receive))

        return strict


def _has_body(request: Request) -> bool:
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers


def _is_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _several(annotation: Any) -> bool:
    """Whether a parameter of this type may be given several times."""
    return any(get_origin(each) is list for each in (annotation, *get_args(annotation)))


def _unknown(name: str, known: list[str]) -> Fault:
    others = f"there are {', '.join(known)}" if known else "this takes no query"
    return Fault(name, "is not known" + did_you_mean(name, known, others))
