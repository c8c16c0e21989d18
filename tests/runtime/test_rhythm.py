"""When members ask each other whether to go on."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from levada.runtime.rhythm import Rhythm


@given(
    st.lists(st.floats(1, 200), max_size=20), st.integers(0, 10**6), st.one_of(st.just(math.inf), st.integers(1, 500))
)
def test_it_is_never_long_until_the_next_question(strides: list[float], step: int, left: float) -> None:
    rhythm = Rhythm()
    rhythm.restart(step)
    assert rhythm.due == step + 1
    for stride in strides:
        step = int(rhythm.due)
        proposal = rhythm.proposal(step, step + left)
        assert 1 <= proposal <= min(100, max(1, left))
        rhythm.agreed(step, min(stride, proposal))
        assert step < rhythm.due <= step + 100


def test_members_who_agree_ask_after_the_same_step() -> None:
    quick, slow = Rhythm(), Rhythm()
    for rhythm in (quick, slow):
        rhythm.restart(0)
    step = 1
    for proposals in ((2.0, 1.6), (3.2, 7.0), (6.0, 4.4)):
        for rhythm in (quick, slow):
            rhythm.agreed(step, min(proposals))
        assert quick.due == slow.due > step
        step = int(quick.due)
