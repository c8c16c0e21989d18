"""Checks of policy options; each fault names its option."""

from __future__ import annotations

import math
from typing import Any

from levada.errors import BadInput


def number_above(name: str, value: Any, least: float) -> float:
    """The finite number *value*, which must be above *least*."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadInput.one(f"must be a finite number, not {_brief(value)}", f"options.{name}")
    if value <= least:
        raise BadInput.one(f"must be above {least:g}", f"options.{name}")
    return float(value)


def whole_number(name: str, value: Any, least: int) -> int:
    """The whole number *value*, which must be at least *least*."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput.one(f"must be a whole number, not {_brief(value)}", f"options.{name}")
    if value < least:
        raise BadInput.one(f"must be at least {least}", f"options.{name}")
    return value


def _brief(value: Any) -> str:
    """The value in at most 40 characters, so that an error stays one line."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
