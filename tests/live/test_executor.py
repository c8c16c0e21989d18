"""Policy runs in threads: results, timeouts and errors."""

from __future__ import annotations

import threading
from typing import Any

from levada.core.commands import Decide
from levada.core.decision import Decision
from levada.core.events import Decided, DecideFailed
from levada.live.executor import run_policy_in_thread
from levada.perf.model import ThroughputModel
from levada.perf.table_model import TableModel
from levada.policies.fifo import Fifo
from levada.policies.queued import queued
from levada.tables.snapshot import Snapshot
from tests.builders import cluster, job, world


class BlockingPolicy(Fifo):
    """A policy that decides when it is released."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: None) -> tuple[Decision, None]:
        assert self.go.wait(60)
        return super().decide(snap, perf, state)


def question(policy: Any) -> Decide:
    inside = queued(policy)
    snap = world(cluster(4), job("x")).snapshot(0.0).detached()
    return Decide(revision=7, snapshot=snap, policy=inside, perf=TableModel([]), state=inside.initial(0))


async def test_a_decision_reports_its_duration() -> None:
    result = await run_policy_in_thread(question(Fifo()), 60.0)
    assert isinstance(result, Decided)
    assert result.revision == 7
    assert result.took_s > 0


async def test_a_decision_after_the_timeout_fails() -> None:
    blocking = BlockingPolicy()
    try:
        result = await run_policy_in_thread(question(blocking), 0.05)
        assert isinstance(result, DecideFailed)
        assert (result.revision, result.why) == (7, "it did not decide within 0.05 s")
    finally:
        blocking.go.set()


async def test_an_exception_of_a_policy_is_reported() -> None:
    class Broken(Fifo):
        def decide(self, snap: Snapshot, perf: ThroughputModel, state: None) -> tuple[Decision, None]:
            raise ZeroDivisionError("no")

    result = await run_policy_in_thread(question(Broken()), 60.0)
    assert isinstance(result, DecideFailed)
    assert result.why == "ZeroDivisionError: no"
