"""Policies beside the loop: their answers, and what becomes of one that does not come."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from levada.core.commands import Decide
from levada.core.decision import Decision
from levada.core.events import Decided, DecideFailed
from levada.live.thinking import think
from levada.perf.model import ThroughputModel
from levada.perf.table import TableModel
from levada.policies.fifo import Fifo
from levada.policies.queued import queued
from levada.tables.snapshot import Snapshot
from tests.builders import cluster, job, world


class Slow(Fifo):
    """Decides when it is let."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: None) -> tuple[Decision, None]:
        assert self.go.wait(60)
        return super().decide(snap, perf, state)


def question(policy: Any) -> Decide:
    inside = queued(policy)
    snap = world(cluster(4), job("x")).snapshot(0.0).detached()
    return Decide(revision=7, snapshot=snap, policy=inside, perf=TableModel([]), state=inside.initial(0))


def test_an_answer_tells_how_long_it_took() -> None:
    found = asyncio.run(think(question(Fifo()), 60.0))
    assert isinstance(found, Decided)
    assert found.revision == 7
    assert found.took_s > 0


def test_an_answer_that_does_not_come_in_time_has_failed() -> None:
    slow = Slow()
    try:
        found = asyncio.run(think(question(slow), 0.05))
        assert isinstance(found, DecideFailed)
        assert (found.revision, found.why) == (7, "it did not decide within 0.05 s")
    finally:
        slow.go.set()


def test_a_policy_that_breaks_is_told_of() -> None:
    class Broken(Fifo):
        def decide(self, snap: Snapshot, perf: ThroughputModel, state: None) -> tuple[Decision, None]:
            raise ZeroDivisionError("no")

    found = asyncio.run(think(question(Broken()), 60.0))
    assert isinstance(found, DecideFailed)
    assert found.why == "ZeroDivisionError: no"
