"""GPU-seconds in use by type, and their cost."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from levada.core.types import Floats
from levada.engine.queries import Queries

HOUR_S = 3600.0


class Utilization:
    """GPU-seconds by type and $, up to `now`. A GPU is in use while a job holds it or a fraction of it."""

    def __init__(self, query: Queries) -> None:
        self._query = query
        self.now = 0.0
        self.seconds: Floats = np.zeros(0)
        self.cost = 0.0
        self._prices: Floats = np.zeros(0)
        self._priced: tuple[Mapping[str, float], int] | None = None

    def advance(self, now: float) -> None:
        """Count the time up to *now*; must be called before held devices change."""
        passed, self.now = now - self.now, now
        if passed <= 0:
            return
        types = len(self._query.cluster.types)
        if self._priced is None or self._priced[0] is not self._query.prices or self._priced[1] != types:
            self._look_up_prices(types)
        self.cost += self._query.held.add_use(passed, self.seconds, self._prices) / HOUR_S

    def by_name(self) -> dict[str, float]:
        """Return GPU-seconds by type name."""
        types = self._query.cluster.types
        return {types[number]: float(seconds) for number, seconds in enumerate(self.seconds.tolist()) if number}

    def _look_up_prices(self, types: int) -> None:
        prices = self._query.prices
        self._prices = np.array([prices.get(name, 1.0) for name in self._query.cluster.types])
        self._priced = (prices, types)
        self.seconds = np.append(self.seconds, np.zeros(types - len(self.seconds)))
