"""Traces that name days: times on a calendar to seconds of a trace, and back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np

from levada.core.types import Floats

#: When a trace begins that is written in a format with days; a Saturday.
FIRST_DAY = datetime(2000, 1, 1)


def moment(text: str) -> datetime:
    """The time that *text* names, `2017-10-03 08:15:00` or with a T; raises ValueError."""
    # Slurm and Philly write local times. Where an offset is given, it is dropped: all lines of a trace share it.
    return datetime.fromisoformat(text).replace(tzinfo=None)


def seconds(moments: Sequence[datetime]) -> Floats:
    """Seconds from the earliest of them."""
    first = min(moments, default=FIRST_DAY)
    return np.array([(each - first).total_seconds() for each in moments], np.float64)


def moments(arrival_s: Floats) -> list[datetime]:
    """Times on the calendar, to the second."""
    return [FIRST_DAY + timedelta(seconds=round(each)) for each in arrival_s.tolist()]
