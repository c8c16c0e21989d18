"""Mersenne against Python's own generator: same seed, same draws, same state."""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.core.mersenne import Mersenne

SEEDS = st.one_of(
    st.integers(0, 10_000),
    st.integers(-(2**40), 2**40),
    st.sampled_from([0, -1, 2**32 - 1, 2**32, 2**32 + 1, 2**64, -(2**33), 2**20000 + 5]),
)

Draw = Callable[[Any], Any]


def shuffled(rng: Any, size: int) -> list[int]:
    items = list(range(size))
    rng.shuffle(items)
    return items


DRAWS: st.SearchStrategy[Draw] = st.one_of(
    st.just(lambda rng: rng.random()),
    st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)).map(lambda ends: lambda rng: rng.uniform(*ends)),
    st.integers(1, 2**100).map(lambda stop: lambda rng: rng.randrange(stop)),
    st.integers(0, 200).map(lambda bits: lambda rng: rng.getrandbits(bits)),
    st.integers(1, 40).map(lambda size: lambda rng: rng.choice(range(size))),
    st.integers(0, 40).map(lambda size: lambda rng: shuffled(rng, size)),
    st.tuples(st.integers(0, 400), st.floats(0, 1)).map(
        lambda case: lambda rng: rng.sample(range(case[0]), int(case[0] * case[1]))
    ),
)


@given(seed=SEEDS, draws=st.lists(DRAWS, max_size=30))
def test_it_draws_what_python_draws(seed: int, draws: list[Draw]) -> None:
    ours, theirs = Mersenne(seed), random.Random(seed)
    assert [draw(ours) for draw in draws] == [draw(theirs) for draw in draws]
    assert ours.getstate() == theirs.getstate()[1]


@pytest.mark.parametrize("seed", [0, 7, 2**35])
def test_thousands_of_draws_cross_many_blocks(seed: int) -> None:
    ours, theirs = Mersenne(seed), random.Random(seed)
    assert [ours.random() for _ in range(5000)] == [theirs.random() for _ in range(5000)]


@given(seed=SEEDS, before=st.integers(0, 1300))
def test_a_copy_goes_on_by_itself(seed: int, before: int) -> None:
    first = Mersenne(seed)
    for _ in range(before):
        first.getrandbits(32)
    second = first.copy()
    expected = [first.random() for _ in range(700)]
    assert [second.random() for _ in range(700)] == expected
    assert second.getstate() == first.getstate()


@given(seed=SEEDS, before=st.integers(0, 1300))
def test_a_state_survives_being_written(seed: int, before: int) -> None:
    first = Mersenne(seed)
    for _ in range(before):
        first.getrandbits(32)
    written = msgspec.msgpack.encode(first.getstate())
    second = Mersenne(0)
    second.setstate(msgspec.msgpack.decode(written))
    assert [second.random() for _ in range(700)] == [first.random() for _ in range(700)]


def test_pythons_state_is_taken() -> None:
    theirs = random.Random(3)
    theirs.random()
    ours = Mersenne(0)
    ours.setstate(theirs.getstate()[1])
    assert ours.random() == theirs.random()


def test_what_cannot_be_drawn_is_refused() -> None:
    rng = Mersenne(1)
    for impossible in (
        lambda: rng.randrange(0),
        lambda: rng.choice([]),
        lambda: rng.sample([1, 2], 3),
        lambda: rng.setstate((1, 2)),
    ):
        with pytest.raises(ValueError):
            impossible()
