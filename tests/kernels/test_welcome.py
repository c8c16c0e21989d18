"""Newcomers get the devices that the general way of seating jobs would give them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.core import layout as c
from tests.kernel_modes import Kernels

place_compiled = Kernels("place", "compiled")
welcome_compiled = Kernels("welcome", "compiled")

pytest.importorskip("numba")

SLOTS = 8


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 4)), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_few_newcomers_are_seated_as_all_others_are(pools: list[tuple[int, int]], seed: int) -> None:
    dice = np.random.default_rng(seed)
    sizes = np.array([size for _, size in pools])
    stop = np.cumsum(sizes)
    start, pool_type = stop - sizes, np.array([kind for kind, _ in pools])
    devices, nodes = int(stop[-1]), np.arange(len(pools))
    # Slots from 4 on run already; of some devices only the old owner is still there.
    owner = dice.choice([c.FREE, c.FREE, c.FREE, 4, 5], devices).astype(np.int32)
    held = np.where(dice.random(devices) < 0.3, dice.choice([c.FREE, 6], devices), owner).astype(np.int32)
    usable, index = dice.random(devices) < 0.8, np.zeros(devices, np.int32)
    ints = np.zeros((c.RANK + 1, SLOTS), np.int64)
    ints[c.NUMBER, :4] = dice.permutation(4)
    ints[c.MIN], ints[c.STEP], ints[c.MILLI] = 1, 1, c.WHOLE
    slots = dice.permutation(4)[: dice.integers(1, 5)]
    at = np.arange(len(slots))
    said = np.zeros((7, len(slots)), np.int64)
    said[1], said[2] = dice.integers(1, 3, len(slots)), 1
    assert welcome_compiled.are_few_newcomers(said, slots, at, ints)
    mine, my_index, reached = owner.copy(), index.copy(), said[2].copy()
    welcome_compiled.seat_newcomers(
        said, slots, at, reached, ints, mine, my_index, held, usable, start, stop, pool_type
    )

    by_number = at[np.argsort(ints[c.NUMBER][slots])]
    some, one, zero = slots[by_number], np.ones(len(slots), np.int64), np.zeros(len(slots), np.int64)
    node_zeros, free = np.zeros(len(pools), np.int64), np.full(len(pools), 1 << 50)
    seated = place_compiled.seat(
        owner, index, node_zeros, node_zeros.copy(), free, free.copy(), held, index.copy(), usable, start, stop, nodes,
        pool_type, node_zeros.copy(), node_zeros.copy(), some, said[1][by_number], one, one, one, one, zero, zero,
    )  # fmt: skip
    assert reached[by_number].tolist() == seated.tolist()
    assert mine.tolist() == owner.tolist()
    assert my_index.tolist() == index.tolist()
