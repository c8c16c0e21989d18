"""Human-readable times and amounts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime


def short(seconds: float | None) -> str:
    """A duration in its one or two largest units, as kubectl prints ages: `45s`, `12m`, `3h20m`, `5d`."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    if whole < 120:
        return f"{max(0, whole)}s"
    if whole < 7200:
        return f"{whole // 60}m"
    hours, minutes = divmod(whole // 60, 60)
    if hours < 10:
        return f"{hours}h{minutes}m" if minutes else f"{hours}h"
    return f"{hours}h" if hours < 48 else f"{hours // 24}d"


def exact(seconds: float) -> str:
    """A duration to the second, as Go prints it: `0s`, `1m5s`, `3h1m2s`."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def moment(text: str | None) -> float | None:
    """Return Unix seconds of a time in a response of the server."""
    if not text:
        return None
    return datetime.fromisoformat(text).timestamp()


def ago(text: str | None, now: float | None = None) -> str:
    """Return the time since *text*, in short form."""
    then = moment(text)
    return "-" if then is None else short((time.time() if now is None else now) - then)


def clock(text: str | None) -> str:
    """Format a time in a response of the server as local time."""
    then = moment(text)
    return "-" if then is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(then))


def number(value: float | None) -> str:
    """Format a number without trailing zeros; "-" for None."""
    return "-" if value is None else f"{value:g}" if abs(value) < 1e6 else f"{value:.0f}"


def amounts(by_type: Mapping[str, float] | None) -> str:
    """Format amounts by type: `a100=4,v100=2`."""
    return ",".join(f"{name}={number(amount)}" for name, amount in (by_type or {}).items()) or "-"


def counted(count: int, noun: str) -> str:
    """Format a count with its noun: `1 worker`, `2 workers`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
