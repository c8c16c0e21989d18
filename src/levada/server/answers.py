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
    return Response(msgspec.json.encode(value), status, dict(headers or {}), "application/json")
