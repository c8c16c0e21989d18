"""Parse units: memory (MiB), cores and GPUs (1/1000ths), durations (seconds)."""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation
from typing import TypeVar

_Number = TypeVar("_Number", int, float, Decimal)

#: Above any real machine, and well within 64-bit integers.
LARGEST = 10**9

_MEMORY_BYTES = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
}  # fmt: skip
_DURATION_S = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600), "d": Decimal(86400)}

MEMORY_PATTERN = r"^[0-9]+(\.[0-9]+)?([kMGTP]|[KMGTP]i)?$"
CPU_PATTERN = r"^[0-9]+(\.[0-9]+)?m?$"
DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"

_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")


def memory_mib(value: str) -> int:
    """MiB, rounded up, of a Kubernetes quantity: `8Gi`, `512M`, `1073741824`."""
    if not re.fullmatch(MEMORY_PATTERN, value):
        raise ValueError("must be an amount of memory, e.g. 8Gi")
    number = value.rstrip("kKMGTPi")
    return _bounded(math.ceil(Decimal(number) * _MEMORY_BYTES[value[len(number) :]] / 2**20))


def cpu_milli(value: str | float | int) -> int:
    """1/1000ths of a core, rounded up: 4, 0.5, `500m`."""
    text = value if isinstance(value, str) else repr(value)
    try:
        cores = Decimal(text.removesuffix("m")) / (1000 if text.endswith("m") else 1)
    except InvalidOperation:
        cores = Decimal("NaN")
    if not cores.is_finite() or cores < 0:
        raise ValueError("must be a number of cores, e.g. 4, 0.5 or 500m")
    return _bounded(math.ceil(cores * 1000))


def duration_s(value: str) -> float:
    """Seconds of `90s`, `2h`, `1h30m`, `7d`."""
    if not re.fullmatch(DURATION_PATTERN, value):
        raise ValueError("must be a duration, e.g. 90s, 2h, 1h30m or 7d")
    total = sum((Decimal(number) * _DURATION_S[unit] for number, unit in _DURATION_PART.findall(value)), Decimal(0))
    return float(_bounded(total))


def gpu_milli(value: float | int) -> int:
    """1/1000ths of a GPU: 0, a whole number, or a fraction; finer ones are rejected."""
    if not math.isfinite(value) or value < 0:
        raise ValueError("must be 0, a whole number, or a fraction below 1")
    milli = round(_bounded(value) * 1000)
    if abs(milli - value * 1000) > 1e-6:
        raise ValueError("must be in steps of 0.001")
    if milli % 1000 and milli > 1000:
        raise ValueError("must be a whole number if above 1")
    return milli


def _bounded(value: _Number) -> _Number:
    if value > LARGEST:
        raise ValueError("is too large")
    return value
