"""The sums that a board keeps are those it would find by counting anew."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from levada.core.cluster import Cluster, Node
from levada.core.types import WHOLE
from levada.policies.dragon_board import Board
from levada.tables.world import World

NODES, EACH = 12, 4


@given(st.data())
def test_what_many_workers_give_back_is_counted_as_if_by_counting_anew(data: st.DataObject) -> None:
    nodes = [Node.of(f"n{i}", {"a100": 2, "v100": 2}, cpu=16_000, memory=1 << 16) for i in range(NODES)]
    inventory = World(Cluster(nodes=tuple(nodes))).inventory
    part = st.sampled_from([0, 0, 250, WHOLE])
    milli = np.array(data.draw(st.lists(part, min_size=NODES * EACH, max_size=NODES * EACH)))
    cpu, memory = np.full(NODES, 1000), np.full(NODES, 1024)
    board = Board(inventory, cpu, memory, milli, np.full(NODES * EACH, 8192))
    board.tagged = True
    board.exclusion[:] = 7
    chosen = np.array(data.draw(st.lists(st.integers(0, NODES * EACH - 1), unique=True)), np.int64)
    chosen = chosen[milli[chosen] < WHOLE]
    whose = inventory.node_of[chosen]
    each = np.ones(len(chosen), np.int64)
    board.give(whose, 500 * each, 64 * each, chosen, WHOLE - milli[chosen], 0 * each)

    anew = board.copy()
    anew.rebuild()
    assert (board.milli[chosen] == WHOLE).all()
    assert board.cpu.sum() == 1000 * NODES + 500 * len(chosen)
    for name in ("fresh", "idle", "tightness"):
        assert getattr(board, name).tolist() == getattr(anew, name).tolist(), name
    touched = np.isin(inventory.node_of, whose) & (board.milli == WHOLE)
    assert (board.exclusion == np.where(touched, 0, 7)).all()
