"""The published mechanism: its state survives a dump, and jobs do not move."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from levada.core import codec
from levada.plugins import find_policy
from levada.policies.queued import queued
from levada.tables.snapshot import Snapshot
from tests.policies.gavel.instances import moment


@pytest.mark.parametrize("name", ["max_min_fairness", "max_min_fairness_perf", "max_min_fairness_packed"])
def test_a_restored_memory_decides_as_the_first(name: str) -> None:
    policy = queued(find_policy(name, {"mechanism": "gavel"}))
    pairs = {(a, b): [(0.6, 0.7), (0.5, 0.4)] for a in range(5) for b in range(a + 1, 5)}
    instance = moment(
        [[3.0, 1.0]] * 5, {"v100": 2, "k80": 2}, scale=[1, 2, 1, 1, 2], steps=[5000.0] * 5, pairs=pairs, now=10.0
    )
    snap: Snapshot = instance.snap
    state: Any = policy.initial(3)
    for now in (10.0, 370.0, 730.0):
        snap.now = now
        again = policy.restored(msgspec.msgpack.decode(codec.pack(state)))
        decision, state = policy.decide(snap, instance.perf, state)
        assert decision.count.any()
        for expected, ours in zip(policy.decide(snap, instance.perf, again), (decision, state), strict=True):
            assert codec.pack(expected) == codec.pack(ours)
