"""Compiled and interpreted kernels lead to the same state after every event."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from levada.core import layout as columns
from levada.core.assignment import FREE, SHARED
from levada.core.job import Phase, Preemptible
from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS, NOT_ALLOWED
from levada.core.plan import OpKind
from levada.core.reasons import Code
from levada.core.types import CPU_TYPE, WHOLE
from tests import kernel_modes
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld
from tests.engine.random_walk import NODES, one_step

PLAIN = ("elastic-fifo", "srjf", "elastic-tiresias", "isolated", "gavel-fifo")


@pytest.fixture(autouse=True)
def _interpreted_again() -> Iterator[None]:
    yield
    kernel_modes.use("interpreted")


def test_kernel_constants_match_the_core() -> None:
    for names in (INT_COLUMNS, FLOAT_COLUMNS):
        assert [getattr(columns, name.upper()) for name in names] == list(range(len(names)))
    assert [
        Phase.names()[name] for name in ("PENDING", "STARTING", "RUNNING", "RESIZING", "STOPPING", "SUSPENDED")
    ] == [
        columns.PENDING,
        columns.STARTING,
        columns.RUNNING,
        columns.RESIZING,
        columns.STOPPING,
        columns.SUSPENDED,
    ]
    for name, kind in OpKind.names().items():
        assert getattr(columns, f"OP_{name}") == kind
    for name in ("RUNS", "NEW", "CAPACITY", "FRAGMENTED", "PREEMPTED", "NODE_LOST", "RESTARTING", "BACKOFF"):
        assert getattr(columns, name) == Code.names()[name]
    for name in (
        "INTERRUPTED",
        "DRAINED",
        "LEFT",
        "SET_ASIDE",
        "QUEUE_LIMIT",
        "TOO_LARGE",
        "UNKNOWN_TYPE",
        "USER_LIMIT",
        "WAITS_FOR_DEVICES",
    ):
        assert getattr(columns, name) == Code.names()[name]
    assert (columns.SAYS_STARTING, columns.SAYS_STOPPING, columns.SAYS_RESIZING) == (
        Code.STARTING,
        Code.STOPPING,
        Code.RESIZING,
    )
    for name, number in Preemptible.names().items():
        assert getattr(columns, name) == number
    assert columns.CORES == CPU_TYPE
    assert (columns.FREE, columns.SHARED, columns.WHOLE, columns.NOT_ALLOWED) == (FREE, SHARED, WHOLE, NOT_ALLOWED)
    assert max(Code.numbers()) == columns.LAST_REASON
    assert [columns.FINISHED, columns.CANCELLED, columns.FAILED, columns.TIME_LIMIT_REACHED] == [
        Code.FINISHED,
        Code.CANCELLED,
        Code.FAILED,
        Code.TIME_LIMIT,
    ]


def plain_job(rng: random.Random) -> dict[str, Any]:
    """Fields of a random job with whole GPUs only."""
    low, step = rng.choice([1, 1, 2, 4]), rng.choice([1, 1, 2])
    return {
        "min": low,
        "max": low + step * rng.choice([0, 1, 3]),
        "step": step,
        "steps": float(rng.randint(10, 1000)),
        "milli": rng.choice([1000, 1000, 2000]),
        "gpu_types": rng.choice([(), (), ("v100",), ("a100", "v100"), ("k80",)]),
        "retries": rng.choice([0, 3]),
        "preemptible": rng.choice([Preemptible.ALWAYS, Preemptible.ALWAYS, Preemptible.AUTO, Preemptible.NEVER]),
        "resizes_in_place": rng.random() < 0.7,
        "workload": rng.choice(["w1", "w2"]),
        "cpu": rng.choice([0, 0, 0, 0, 0, 0, 0, 0, 0, 1000]),
        "time_limit_s": rng.choice([None, None, 40.0, 400.0]),
    }


class Pair:
    """One random walk with two engines."""

    def __init__(self, seed: str, policies: tuple[str, ...], plain: bool) -> None:
        self.policies, self.plain = policies, plain
        self.worlds: dict[str, FaultyWorld] = {}
        self.dice = {name: random.Random(seed) for name in ("interpreted", "compiled")}
        for name, dice in self.dice.items():
            kernel_modes.use(name)  # type: ignore[arg-type]
            self.worlds[name] = FaultyWorld(policy=dice.choice(policies), nodes=NODES)

    def step_and_compare(self) -> None:
        did = []
        for name, dice in self.dice.items():
            kernel_modes.use(name)  # type: ignore[arg-type]
            system = self.worlds[name]
            if self.plain and len(system.active()) < 12 and dice.random() < 0.2:
                system.submit(**plain_job(dice))
                did.append("submit")
            else:
                before = len(system.history)
                did.append(self._other_step(system, dice))
                assert before <= len(system.history)
        assert did[0] == did[1]
        self.compare(did[0])

    def _other_step(self, system: FaultyWorld, dice: random.Random) -> str:
        if not self.plain:
            return one_step(system, dice, self.policies)
        saved = system.submit
        system.submit = lambda **_fields: saved(**plain_job(dice))  # type: ignore[method-assign]
        try:
            return one_step(system, dice, self.policies)
        finally:
            del system.submit

    def compare(self, what: str) -> None:
        one, two = (state_of(system.engine) for system in self.worlds.values())
        a, b = one.world, two.world
        assert a.table.order.tolist() == b.table.order.tolist(), what
        for name in (*INT_COLUMNS, *FLOAT_COLUMNS):
            left, right = (getattr(w.table, name)[w.table.order] for w in (a, b))
            assert np.array_equal(left, right, equal_nan=True), (what, name, left, right)
        for left, right in ((a.target, b.target), (a.held, b.held)):
            for name in ("owner", "cpu", "memory", "rows"):
                assert np.array_equal(getattr(left, name), getattr(right, name)), (what, name)
            taken = left.owner >= 0
            assert np.array_equal(left.index[taken], right.index[taken]), what
        used = a.held.owner >= 0
        assert np.array_equal(a.held.claimed[used], b.held.claimed[used]), what
        for name in (
            *("dirty", "turnover", "acked", "left_out", "deciding", "may_issue", "may_cycle", "unsent"),
            *("guard_wake", "policy_wake", "heed_at", "next_alarm", "told_wake"),
        ):
            assert getattr(one, name) == getattr(two, name), (what, name)
        assert [_told(state.pauses) for state in (one, two)] == [_told(one.pauses)] * 2, what
        # The history has every operation with added and dropped devices.
        histories = [system.history for system in self.worlds.values()]
        assert histories[0] == histories[1], what
        assert (one.rejections, one.last_rejection) == (two.rejections, two.last_rejection)


def _told(pauses: list[tuple[Any, Any, Any]]) -> list[tuple[str, int, float]]:
    """Observed restarts one by one, independent of batches."""
    return sorted(
        (str(kind), int(workload), float(seconds))
        for kind, workloads, all_seconds in pauses
        for workload, seconds in zip(workloads, all_seconds, strict=True)
    )


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_both_modes_lead_to_the_same_state(seed: int, plain: bool) -> None:
    pair = Pair(f"steps/{seed}", PLAIN, plain)
    for _ in range(250):
        pair.step_and_compare()
