"""`kernels.slots` is equal in both modes; the tests of `solve.allox` show that it is optimal."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel_modes import Kernels

slots_interpreted = Kernels("slots", "interpreted")


slots_compiled = Kernels("slots", "compiled")

times = st.sampled_from([1.0, 1.0, 2.0, 3.0, 7.0]) | st.floats(0.1, 50.0)


@given(
    st.lists(st.tuples(times, times), min_size=1, max_size=12),
    st.integers(1, 3),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_cheapest_slots(rows: list[tuple[float, float]], first: int, second: int, random: object) -> None:
    time = np.array(rows)
    depth = [-(-len(rows) // first), -(-len(rows) // second)]
    kinds = np.repeat([0, 1], depth)
    places = np.concatenate([np.arange(depth[0]), np.arange(depth[1])]) + 1
    room = np.array([first, second])[kinds]
    order = np.arange(len(rows))
    random.shuffle(order)  # type: ignore[attr-defined]
    arguments = time, kinds, places, room, order
    slots = slots_interpreted.cheapest_slots(*arguments)
    assert slots.tolist() == slots_compiled.cheapest_slots(*arguments).tolist()
    assert (np.bincount(slots, minlength=len(room)) <= room).all()
