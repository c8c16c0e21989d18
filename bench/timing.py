"""CPU-time stopwatches and quantiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import process_time
from typing import Any, TypeVar

import levada.engine.engine as engine_module

T = TypeVar("T")


class Stopwatch:
    """CPU seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def add(self, name: str, call: Callable[..., T], *arguments: Any) -> T:
        """Return the result of *call*; add its time to *name*."""
        begin = process_time()
        try:
            return call(*arguments)
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + process_time() - begin


@contextmanager
def engine_steps(watch: Stopwatch) -> Iterator[None]:
    """Measure steps inside the engine: `commit` (place, check, diff, adopt) and `issue`."""
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
    """Return a quantile without interpolation; with few values p99 is the largest."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]
