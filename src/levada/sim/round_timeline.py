"""Timelines from `--rounds` files: which job had which GPUs from when to when.

Works for every mechanism, because it reads only the lines of `--rounds`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from levada.errors import BadInput


class Round(msgspec.Struct, frozen=True):
    """One line: start time and GPUs by job; two jobs on the same GPUs are named `(3, 7)`."""

    round: int
    time: float
    assignments: list[tuple[str, str, tuple[int, ...]]]


class Interval(NamedTuple):
    """An interval in which a job had the same GPUs."""

    job: int
    begin_s: float
    end_s: float
    gpu_type: str
    devices: tuple[int, ...]


def read_rounds(path: str | Path) -> list[Round]:
    """Read a file written by `levada sim run --rounds`; raises BadInput."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise BadInput.one(f"{path}: {error.strerror}") from None
    rounds = []
    for number, line in enumerate(lines, 1):
        try:
            rounds.append(msgspec.json.decode(line, type=Round))
        except msgspec.DecodeError as error:
            raise BadInput.one(f"{path}:{number}: not a round of `levada sim run --rounds`: {error}") from None
    return rounds


def intervals(rounds: Iterable[Round], finished_s: Mapping[int, float], end_s: float) -> list[Interval]:
    """Return intervals by job and time. A job has the GPUs of a round until the next round, or until it finished."""
    done: list[Interval] = []
    open_: dict[int, Interval] = {}

    def close(job: int, now: float) -> None:
        interval = open_.pop(job)
        end = finished_s.get(job, math.nan)
        end = now if math.isnan(end) else min(now, end)
        if end > interval.begin_s:
            done.append(interval._replace(end_s=end))

    for entry in rounds:
        gpus_of: dict[int, tuple[str, tuple[int, ...]]] = {}
        for name, gpu_type, devices in entry.assignments:
            for job in re.findall(r"[0-9]+", name):
                gpus_of[int(job)] = (gpu_type, devices)
        for job, interval in list(open_.items()):
            if gpus_of.get(job) != (interval.gpu_type, interval.devices):
                close(job, entry.time)
        for job, (gpu_type, devices) in gpus_of.items():
            open_.setdefault(job, Interval(job, entry.time, math.nan, gpu_type, devices))
    for job in list(open_):
        close(job, end_s)
    return sorted(done)
