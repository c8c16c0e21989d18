"""Answers that come often or are long: written as they are, without a second look at every field.

The models beside them are their description; tests hold the answers to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as JSON."""
    return Response(as_json(value), status, dict(headers or {}), "application/json")


def as_json(value: Any) -> bytes:
    """A value as it is sent."""
    return msgspec.json.encode(value, enc_hook=_plain)


def _plain(value: Any) -> Any:
    """A number of numpy's as one of Python's."""
    if hasattr(value, "item"):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} cannot be written as JSON")
