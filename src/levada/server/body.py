"""Requests read strictly: JSON in which nothing is given twice and every text can be stored, no unknown query."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, get_args, get_origin

from fastapi import Request, Response
from fastapi.routing import APIRoute

from levada.errors import BadInput, Fault, did_you_mean
from levada.jobfile.limits import BODY
from levada.jobfile.text import parse_json
from levada.server.problems import Problem

#: A larger body is read beside the loop.
_LARGE = 64 * 2**10
#: One large body at a time: the memory that reading takes is bounded, however many are sent.
_READER = ThreadPoolExecutor(1, "levada-body")
#: What no database stores as text.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_T = TypeVar("_T")


async def read_json(request: Request) -> Any:
    """The body of a request; raises Problem."""
    return await beside(strict_json, await request.body())


async def beside(read: Callable[[bytes], _T], content: bytes) -> _T:
    """What *read* makes of a body; other requests are answered while it reads a large one."""
    if len(content) < _LARGE:
        return read(content)
    return await asyncio.get_running_loop().run_in_executor(_READER, read, content)


def strict_json(content: bytes) -> Any:
    """The value of a body; raises Problem."""
    try:
        value = parse_json(decoded(content), BODY)
    except BadInput as error:
        raise Problem(400, str(error), bad=error if any(fault.path for fault in error.faults) else None) from None
    if b"\\u" in content and has_unstorable(value):
        raise Problem(400, "a text holds a null character or half of a surrogate pair, which cannot be stored")
    return value


def decoded(content: bytes) -> str:
    """The text of a body; raises BadInput."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput.one(f"not UTF-8 at byte {error.start}") from None


def has_unstorable(value: Any) -> bool:
    """Whether a text in *value* cannot be stored."""
    if isinstance(value, str):
        return _UNSTORABLE.search(value) is not None
    if isinstance(value, dict):
        return any(has_unstorable(key) or has_unstorable(inner) for key, inner in value.items())
    return isinstance(value, list) and any(map(has_unstorable, value))


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
