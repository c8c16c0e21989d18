"""Collect measured rates one by one, in any order, into `Profiles`."""

from __future__ import annotations

from math import isfinite, nan
from typing import Any

import numpy as np

from levada.core.names import Names
from levada.perf import Profiles

#: Largest size of a job in a throughput table; a file with a larger one is wrong.
MOST_WORKERS = 4096


def rate_fault(value: Any) -> str:
    """Return what is wrong with a rate; "" if it is valid."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        return "must be a number of steps/s, 0 or more"
    return ""


class Measurements:
    """Rates by workload, GPU type and size; workloads and types are numbered in the order of addition."""

    def __init__(self) -> None:
        self.workloads = Names()
        self.types = Names()
        self.restart_s: dict[str, float] = {}
        self._alone: dict[tuple[int, int, int], float] = {}
        self._spread: dict[tuple[int, int, int], float] = {}
        self._pairs: dict[tuple[int, int, int, int], float] = {}

    def add(self, workload: str, gpu_type: str, workers: int, rate: float, *, spread: bool = False) -> bool:
        """Add a rate; returns False if there is one already, which is kept."""
        cells = self._spread if spread else self._alone
        key = (self.workloads.add(workload), self.types.add(gpu_type), workers)
        if key in cells:
            return False
        cells[key] = rate
        return True

    def add_pair(self, a: str, b: str, gpu_type: str, workers: int, rate_a: float, rate_b: float) -> bool:
        """Add the rates of two workloads on the same devices; returns False if they contradict an earlier call."""
        first, second = self.workloads.add(a), self.workloads.add(b)
        if first == second:
            rate_a = rate_b = (rate_a + rate_b) / 2
        key = (self.types.add(gpu_type), workers)
        stored = (
            self._pairs.setdefault((*key, first, second), rate_a),
            self._pairs.setdefault((*key, second, first), rate_b),
        )
        return stored == (rate_a, rate_b)

    def profiles(self) -> Profiles:
        """Return all measurements as arrays."""
        cells = (self._alone, self._spread)
        sizes = sorted({key[2] for rates in cells for key in rates} | {key[1] for key in self._pairs})
        at = {size: index for index, size in enumerate(sizes)}
        shape = (len(self.workloads), len(self.types), len(sizes))
        alone, spread = np.full(shape, nan), np.full(shape, nan)
        for table, values in zip((alone, spread), cells, strict=True):
            for (workload, gpu_type, size), rate in values.items():
                table[workload, gpu_type, at[size]] = rate
        together = np.full((shape[1], shape[2], shape[0], shape[0]), nan)
        for (gpu_type, size, a, b), rate in self._pairs.items():
            together[gpu_type, at[size], a, b] = rate
        return Profiles(
            workloads=tuple(self.workloads),
            types=tuple(self.types),
            sizes=tuple(sizes),
            alone=alone,
            spread=spread if self._spread else None,
            together=together if self._pairs else None,
            restart_s=np.array([self.restart_s.get(name, 0.0) for name in self.workloads]) if self.restart_s else None,
        )
