"""Sync interval of members."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from levada.runtime.sync_interval import SyncInterval


@given(
    st.lists(st.floats(1, 200), max_size=20), st.integers(0, 10**6), st.one_of(st.just(math.inf), st.integers(1, 500))
)
def test_the_next_sync_is_at_most_100_steps_away(strides: list[float], step: int, steps_left: float) -> None:
    interval = SyncInterval()
    interval.restart(step)
    assert interval.due == step + 1
    for stride in strides:
        step = int(interval.due)
        proposal = interval.proposal(step, step + steps_left)
        assert 1 <= proposal <= min(100, max(1, steps_left))
        interval.agreed(step, min(stride, proposal))
        assert step < interval.due <= step + 100


def test_members_with_the_same_agreed_interval_sync_at_the_same_step() -> None:
    quick, slow = SyncInterval(), SyncInterval()
    for interval in (quick, slow):
        interval.restart(0)
    step = 1
    for proposals in ((2.0, 1.6), (3.2, 7.0), (6.0, 4.4)):
        for interval in (quick, slow):
            interval.agreed(step, min(proposals))
        assert quick.due == slow.due > step
        step = int(quick.due)
