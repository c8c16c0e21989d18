"""From rounds to stretches of time: who had which GPUs from when to when, as timelines are drawn from.

Works for every world and mechanism, for it reads nothing but the lines of `--rounds`.
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
    """One line: when it began, and who has what; two jobs on the same GPUs are named `(3, 7)`."""

    round: int
    time: float
    assignments: list[tuple[str, str, tuple[int, ...]]]


class Stretch(NamedTuple):
    """A job on the same GPUs for some time."""

    job: int
    begin_s: float
    end_s: float
    gpu_type: str
    devices: tuple[int, ...]


def read_rounds(path: str | Path) -> list[Round]:
    """The rounds in a file that `levada sim run --rounds` wrote; raises BadInput."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise BadInput.one(f"{path}: {error.strerror}") from None
    rounds = []
    for number, line in enumerate(lines, 1):
        try:
            rounds.append(msgspec.json.decode(line, type=Round))
        except msgspec.DecodeError as error:
            raise BadInput.one(f"{path}:{number}: is no round of `sim run --rounds`: {error}") from None
    return rounds


def stretches(rounds: Iterable[Round], finished_s: Mapping[int, float], end_s: float) -> list[Stretch]:
    """All stretches by job and time. A job has what its round gave it until the next one, or until it finished."""
    done: list[Stretch] = []
    open_: dict[int, Stretch] = {}

    def close(job: int, now: float) -> None:
        stretch = open_.pop(job)
        end = finished_s.get(job, math.nan)
        end = now if math.isnan(end) else min(now, end)
        if end > stretch.begin_s:
            done.append(stretch._replace(end_s=end))

    for each in rounds:
        has: dict[int, tuple[str, tuple[int, ...]]] = {}
        for name, gpu_type, devices in each.assignments:
            for job in re.findall(r"[0-9]+", name):
                has[int(job)] = (gpu_type, devices)
        for job, stretch in list(open_.items()):
            if has.get(job) != (stretch.gpu_type, stretch.devices):
                close(job, each.time)
        for job, (gpu_type, devices) in has.items():
            open_.setdefault(job, Stretch(job, each.time, math.nan, gpu_type, devices))
    for job in list(open_):
        close(job, end_s)
    return sorted(done)
