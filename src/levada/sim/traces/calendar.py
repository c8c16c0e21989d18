"""Convert calendar times to seconds of a trace, and back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np

from levada.core.types import Floats

#: Start of a trace that is written in a format with calendar times; a Saturday.
FIRST_DAY = datetime(2000, 1, 1)


def parse_time(text: str) -> datetime:
    """Parse `2017-10-03 08:15:00`, or the same with a T; raises ValueError."""
    # Slurm and Philly write local times. An offset is dropped, because all lines of a trace share it.
    return datetime.fromisoformat(text).replace(tzinfo=None)


def to_seconds(times: Sequence[datetime]) -> Floats:
    """Return seconds since the earliest of *times*."""
    first = min(times, default=FIRST_DAY)
    return np.array([(time - first).total_seconds() for time in times], np.float64)


def to_times(arrival_s: Floats) -> list[datetime]:
    """Return calendar times, rounded to seconds."""
    return [FIRST_DAY + timedelta(seconds=round(arrival)) for arrival in arrival_s.tolist()]
