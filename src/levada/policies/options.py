"""Checks of policy options; each fault names the option it is about."""

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
    """How *value* looks, in a few words: an error is one line whatever somebody wrote."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
