"""Which GPUs are in use, for how long, and what that costs."""

from __future__ import annotations

import numpy as np

from levada.core.plane import FREE
from levada.core.types import Floats
from levada.core.world import World

HOUR_S = 3600.0


class Use:
    """GPU-seconds by type and $, counted up to `now`. A GPU is in use while somebody holds it, or a part of it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.now = 0.0
        self.seconds: Floats = np.zeros(0)
        self.cost = 0.0
        self._busy: Floats | None = None
        self._prices: Floats = np.zeros(0)

    def changed(self) -> None:
        """GPUs may be in other hands, or have other prices, from now on."""
        self._busy = None

    def advance(self, now: float) -> None:
        """Time passes; call it before anything changes hands."""
        passed, self.now = now - self.now, now
        if passed <= 0:
            return
        if self._busy is None:
            self._count()
        assert self._busy is not None
        used = self._busy * passed
        self.seconds += used
        self.cost += float(used @ self._prices) / HOUR_S

    def by_name(self) -> dict[str, float]:
        """GPU-seconds by the name of the type."""
        types = self._world.inventory.types
        return {types[number]: float(seconds) for number, seconds in enumerate(self.seconds.tolist()) if number}

    def _count(self) -> None:
        inventory = self._world.inventory
        types = len(inventory.types)
        held = inventory.type_of[self._world.held.owner != FREE]
        self._busy = np.bincount(held, minlength=types).astype(np.float64)
        self._prices = np.array([self._world.prices.get(name, 1.0) for name in inventory.types])
        if len(self.seconds) < types:
            self.seconds = np.append(self.seconds, np.zeros(types - len(self.seconds)))
