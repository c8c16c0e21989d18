"""Responses encoded without validation, for frequent or long answers.

Their types are in OpenAPI, and tests compare answers with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a value as a JSON response."""
    return Response(as_json(value), status, dict(headers or {}), "application/json")


def as_json(value: Any) -> bytes:
    """Encode a value as in a response."""
    return msgspec.json.encode(value, enc_hook=_python_number)


def _python_number(value: Any) -> Any:
    """Convert a numpy scalar."""
    if hasattr(value, "item"):
        return value.item()
    raise NotImplementedError(f"cannot encode {type(value).__name__} as JSON")
