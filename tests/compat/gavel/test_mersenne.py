"""Mersenne against Python's own generator: same seed, same draws, same state."""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.compat.gavel.mersenne import Mersenne

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
def test_draws_equal_those_of_python(seed: int, draws: list[Draw]) -> None:
    mersenne, python = Mersenne(seed), random.Random(seed)
    assert [draw(mersenne) for draw in draws] == [draw(python) for draw in draws]
    assert mersenne.getstate() == python.getstate()[1]


@pytest.mark.parametrize("seed", [0, 7, 2**35])
def test_draws_across_many_state_blocks_equal_those_of_python(seed: int) -> None:
    mersenne, python = Mersenne(seed), random.Random(seed)
    assert [mersenne.random() for _ in range(5000)] == [python.random() for _ in range(5000)]


@given(seed=SEEDS, before=st.integers(0, 1300))
def test_a_copy_is_independent_and_continues_equally(seed: int, before: int) -> None:
    first = Mersenne(seed)
    for _ in range(before):
        first.getrandbits(32)
    second = first.copy()
    expected = [first.random() for _ in range(700)]
    assert [second.random() for _ in range(700)] == expected
    assert second.getstate() == first.getstate()


@given(seed=SEEDS, before=st.integers(0, 1300))
def test_a_state_survives_encoding(seed: int, before: int) -> None:
    first = Mersenne(seed)
    for _ in range(before):
        first.getrandbits(32)
    written = msgspec.msgpack.encode(first.getstate())
    second = Mersenne(0)
    second.setstate(msgspec.msgpack.decode(written))
    assert [second.random() for _ in range(700)] == [first.random() for _ in range(700)]


def test_a_state_of_python_is_accepted() -> None:
    python = random.Random(3)
    python.random()
    mersenne = Mersenne(0)
    mersenne.setstate(python.getstate()[1])
    assert mersenne.random() == python.random()


def test_impossible_draws_and_states_are_rejected() -> None:
    rng = Mersenne(1)
    for impossible in (
        lambda: rng.randrange(0),
        lambda: rng.choice([]),
        lambda: rng.sample([1, 2], 3),
        lambda: rng.setstate((1, 2)),
    ):
        with pytest.raises(ValueError):
            impossible()
