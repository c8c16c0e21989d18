"""Strict requests: no duplicate keys, invalid text or unknown parameters."""

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

#: Bodies of this size and more are parsed in a thread.
_LARGE_BYTES = 64 * 2**10
#: One large body at a time, which limits memory.
_READER = ThreadPoolExecutor(1, "levada-body")
#: Characters that databases do not store.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_T = TypeVar("_T")


async def read_json(request: Request) -> Any:
    """Return the body of a request; raises Problem."""
    return await parse_body(strict_json, await request.body())


async def parse_body(parse: Callable[[bytes], _T], content: bytes) -> _T:
    """Parse a body, a large one in a thread so that other requests continue."""
    if len(content) < _LARGE_BYTES:
        return parse(content)
    return await asyncio.get_running_loop().run_in_executor(_READER, parse, content)


def strict_json(content: bytes) -> Any:
    """Parse a JSON body; raises Problem."""
    try:
        value = parse_json(decoded(content), BODY)
    except BadInput as error:
        raise Problem(400, str(error), bad=error if any(fault.path for fault in error.faults) else None) from None
    if b"\\u" in content and has_unstorable(value):
        raise Problem(400, "a text contains a null character or an unpaired surrogate, which cannot be stored")
    return value


def decoded(content: bytes) -> str:
    """Decode a body; raises BadInput."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput.one(f"not UTF-8 at byte {error.start}") from None


def has_unstorable(value: Any) -> bool:
    """Whether *value* contains text that cannot be stored."""
    if isinstance(value, str):
        return _UNSTORABLE.search(value) is not None
    if isinstance(value, dict):
        return any(has_unstorable(key) or has_unstorable(inner) for key, inner in value.items())
    return isinstance(value, list) and any(map(has_unstorable, value))


class _StrictRequest(Request):
    async def json(self) -> Any:
        """Return the body, parsed strictly."""
        return await read_json(self)


class StrictRoute(APIRoute):
    """A route that parses bodies with `strict_json` and rejects unknown query parameters."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler behind the strict checks."""
        handle = super().get_route_handler()
        known = {field.alias: _is_list(field.field_info.annotation) for field in self.dependant.query_params}

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


def _is_list(annotation: Any) -> bool:
    """Whether a parameter of this type may be repeated."""
    return any(get_origin(option) is list for option in (annotation, *get_args(annotation)))


def _unknown(name: str, known: list[str]) -> Fault:
    others = f"known are {', '.join(known)}" if known else "this path has no parameters"
    return Fault(name, "is unknown" + did_you_mean(name, known, others))
