"""A policy with some invalid decisions, which are rejected."""

from __future__ import annotations

from typing import Any

import msgspec

from levada.core.decision import Decision
from levada.policies.elastic_fifo import ElasticFifo
from levada.policies.protocol import ALL_GUARDS, ON_EVENTS
from levada.tables.snapshot import Snapshot


class Erratic:
    """Elastic FIFO; every fourth decision exceeds the capacity, and about every seventh fails."""

    name = "erratic"
    needs = ElasticFifo.needs
    cadence = ON_EVENTS
    guards = ALL_GUARDS

    def __init__(self) -> None:
        self._fifo = ElasticFifo()

    def initial(self, _seed: int) -> int:
        return 0

    def decide(self, snap: Snapshot, perf: Any, state: int) -> tuple[Decision, int]:
        decided, _ = self._fifo.decide(snap, perf, None)
        if int(snap.now) % 7 == 6:
            raise ValueError("no idea")
        if state % 4 == 3:
            decided = msgspec.structs.replace(decided, count=decided.count + 1000 * (decided.count > 0))
        return decided, state + 1
