"""Requests read strictly: JSON in which nothing is given twice and every text can be stored, no unknown query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, get_args, get_origin

from fastapi import Request, Response
from fastapi.routing import APIRoute

from levada.errors import BadInput, Fault, did_you_mean
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
