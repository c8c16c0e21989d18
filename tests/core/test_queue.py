"""Division of capacity among queues."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.core.names import Names
from levada.core.queue import Queue, QueueTree, divide
from tests.strategies import TYPES, queue_trees

THOUSANDTHS = st.integers(0, 12000)
WEIGHTS = st.sampled_from([0.1, 0.2, 0.5, 1.0, 2.0, 3.0])


@given(THOUSANDTHS, st.lists(st.tuples(THOUSANDTHS, THOUSANDTHS, WEIGHTS), max_size=6))
def test_divide_conserves_the_amount_and_respects_guarantees(
    amount: int, members: list[tuple[int, int, float]]
) -> None:
    demand, sure, weight = ([member[i] for member in members] for i in range(3))
    parts = divide(amount, demand, sure, weight)
    assert parts == divide(amount, demand, sure, weight)
    assert all(0 <= part <= wanted for part, wanted in zip(parts, demand, strict=True))
    # All capacity in demand is divided, and never more than exists.
    assert sum(parts) == min(amount, sum(demand))
    claims = [min(pair) for pair in zip(demand, sure, strict=True)]
    if sum(claims) <= amount:
        assert all(part >= claim for part, claim in zip(parts, claims, strict=True))
    else:
        assert all(part <= claim for part, claim in zip(parts, claims, strict=True))


@pytest.mark.parametrize(
    ("amount", "demand", "sure", "weight", "expected"),
    [
        (8000, [8000, 8000], [0, 0], [1.0, 1.0], [4000, 4000]),
        (9000, [9000, 9000], [0, 0], [2.0, 1.0], [6000, 3000]),
        (8000, [8000, 2000], [0, 0], [1.0, 3.0], [6000, 2000]),
        (8000, [8000, 8000], [2000, 0], [1.0, 1.0], [5000, 3000]),
        (8000, [4000, 4000, 4000], [4000, 4000, 4000], [1.0, 1.0, 1.0], [3000, 3000, 2000]),
        (4000, [8000, 8000], [3000, 3000], [1.0, 9.0], [2000, 2000]),
        (7000, [8000, 8000], [0, 0], [1.0, 1.0], [4000, 3000]),
        (1000, [500, 8000], [0, 0], [1.0, 1.0], [500, 500]),
    ],
)
def test_divide_matches_examples(
    amount: int, demand: list[int], sure: list[int], weight: list[float], expected: list[int]
) -> None:
    assert divide(amount, demand, sure, weight) == expected


@given(queue_trees(2), st.data())
def test_shares_respect_demand_capacity_limits_and_guarantees(queues: tuple[Queue, ...], data: st.DataObject) -> None:
    tree, types = QueueTree(queues), Names(["cpu", *TYPES[:2]])
    shape = (len(tree.values), 3)
    gpus = st.integers(0, 12).map(lambda n: n * 500)
    demand = np.array(data.draw(st.lists(gpus, min_size=shape[0] * 3, max_size=shape[0] * 3)), np.int64).reshape(shape)
    capacity = np.array(data.draw(st.lists(gpus, min_size=3, max_size=3)), np.int64)
    shares = tree.shares(capacity, demand, types)
    assert (shares == tree.shares(capacity, demand, types)).all()
    assert (shares >= 0).all()
    assert (shares <= demand).all()
    assert (shares.sum(axis=0) <= capacity).all()

    queue, kind = np.indices(shape)
    use = tree.usage(queue.ravel(), kind.ravel(), shares.ravel(), 3)
    limit, sure = tree.limits(types), tree.guarantees(types)
    most = np.where(np.array([q.borrow for q in tree.values])[:, None], limit, np.minimum(limit, sure))
    assert (use <= most).all()

    # Work-conserving: no queue below its limit has a demand for the rest.
    left = capacity - shares.sum(axis=0)
    for number in range(shape[0]):
        room = (most - use)[tree.lineage(number)].min(axis=0)
        assert ((left == 0) | (room == 0) | (shares[number] == demand[number])).all()

    # If all guarantees fit, every queue gets its demand up to its guarantee.
    for number in tree.roots:
        wants = tree.usage(queue.ravel(), kind.ravel(), demand.ravel(), 3)[number]
        held_back = any(q.limit or not q.borrow for q in tree.values)
        fits = np.minimum(sure, limit)[tree.roots].sum(axis=0) <= capacity
        if not held_back:
            assert (use[number] >= np.minimum(wants, sure[number]))[fits].all()


def test_a_child_gets_its_guarantee_within_its_parent() -> None:
    tree = QueueTree(
        [
            Queue(name="lab"),
            Queue(name="vision", parent="lab", guaranteed={"v100": 4}),
            Queue(name="text", parent="lab", weight=9.0),
            Queue(name="guests", weight=9.0),
        ]
    )
    demand = np.array([[0, 0], [0, 8000], [0, 8000], [0, 8000], [0, 0]])
    shares = tree.shares(np.array([0, 8000]), demand, Names(["cpu", "v100"]))
    assert shares[1, 1] == 4000
    assert shares.sum() == 8000


def test_use_of_hidden_jobs_counts_against_limit_and_guarantee() -> None:
    tree = QueueTree([Queue(name="a", guaranteed={"v100": 4}, limit={"v100": 6}), Queue(name="b")])
    demand = np.array([[0, 8000], [0, 8000], [0, 0]])
    outside = np.array([[0, 4000], [0, 0], [0, 0]])
    shares = tree.shares(np.array([0, 8000]), demand, Names(["cpu", "v100"]), outside)
    assert shares[:, 1].tolist() == [2000, 6000, 0]
