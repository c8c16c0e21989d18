"""Measured rates one by one, in any order, until they become `Profiles`."""

from __future__ import annotations

from math import isfinite, nan
from typing import Any

import numpy as np

from levada.core.names import Names
from levada.perf import Profiles

#: A table has a place for every size up to its largest; a file that says more is wrong.
MOST_WORKERS = 4096


def rate_fault(value: Any) -> str:
    """What is wrong with a rate; empty if nothing is."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        return "must be a number of steps/s, 0 or more"
    return ""


class Measurements:
    """Rates by workload, GPU type and size; workloads and types are numbered as they come."""

    def __init__(self) -> None:
        self.workloads = Names()
        self.types = Names()
        self.restart_s: dict[str, float] = {}
        self._alone: dict[tuple[int, int, int], float] = {}
        self._spread: dict[tuple[int, int, int], float] = {}
        self._pairs: dict[tuple[int, int, int, int], float] = {}

    def add(self, workload: str, gpu_type: str, workers: int, rate: float, *, spread: bool = False) -> bool:
        """Takes a rate; False if there is one already, which then stays."""
        cells = self._spread if spread else self._alone
        key = (self.workloads.add(workload), self.types.add(gpu_type), workers)
        if key in cells:
            return False
        cells[key] = rate
        return True

    def add_pair(self, a: str, b: str, gpu_type: str, workers: int, rate_a: float, rate_b: float) -> bool:
        """Takes what two workloads reach on the same devices; False if that was said before, and otherwise."""
        first, second = self.workloads.add(a), self.workloads.add(b)
        if first == second:
            rate_a = rate_b = (rate_a + rate_b) / 2
        place = (self.types.add(gpu_type), workers)
        said = (
            self._pairs.setdefault((*place, first, second), rate_a),
            self._pairs.setdefault((*place, second, first), rate_b),
        )
        return said == (rate_a, rate_b)

    def profiles(self) -> Profiles:
        """All of it as arrays."""
        cells = (self._alone, self._spread)
        sizes = sorted({key[2] for each in cells for key in each} | {key[1] for key in self._pairs})
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
