"""Stopwatches that count CPU time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import process_time
from typing import Any, TypeVar

import levada.engine.engine as engine_module

T = TypeVar("T")


class Stopwatch:
    """Seconds of CPU by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def add(self, name: str, call: Callable[..., T], *arguments: Any) -> T:
        """What *call* returns; its time is added to *name*."""
        begin = process_time()
        try:
            return call(*arguments)
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + process_time() - begin


@contextmanager
def inside_the_engine(watch: Stopwatch) -> Iterator[None]:
    """Times the engine's own steps too: `commit` (place, check, diff, take over) and `issue`."""
    names = ("commit", "issue")
    originals = {name: getattr(engine_module, name) for name in names}

    def timed(name: str) -> Callable[..., Any]:
        return lambda *arguments: watch.add(name, originals[name], *arguments)

    try:
        for name in names:
            setattr(engine_module, name, timed(name))
        yield
    finally:
        for name in names:
            setattr(engine_module, name, originals[name])


def quantile(values: list[float], fraction: float) -> float:
    """The value that *fraction* of all are not above, without interpolation: with few values p99 is the largest."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]
