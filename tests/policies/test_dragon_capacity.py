"""Incrementally updated sums equal recomputed ones."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from levada.core.cluster import Cluster, Node
from levada.core.types import WHOLE
from levada.policies.dragon.capacity import FreeCapacity
from levada.tables.cluster_state import ClusterState

NODES, EACH = 12, 4


@given(st.data())
def test_what_many_workers_give_back_is_counted_as_if_by_counting_recomputed(data: st.DataObject) -> None:
    nodes = [Node.of(f"n{i}", {"a100": 2, "v100": 2}, cpu=16_000, memory=1 << 16) for i in range(NODES)]
    inventory = ClusterState(Cluster(nodes=tuple(nodes))).inventory
    part = st.sampled_from([0, 0, 250, WHOLE])
    milli = np.array(data.draw(st.lists(part, min_size=NODES * EACH, max_size=NODES * EACH)))
    cpu, memory = np.full(NODES, 1000), np.full(NODES, 1024)
    capacity = FreeCapacity(inventory, cpu, memory, milli, np.full(NODES * EACH, 8192))
    capacity.tagged = True
    capacity.exclusion[:] = 7
    chosen = np.array(data.draw(st.lists(st.integers(0, NODES * EACH - 1), unique=True)), np.int64)
    chosen = chosen[milli[chosen] < WHOLE]
    whose = inventory.node_of[chosen]
    item = np.ones(len(chosen), np.int64)
    capacity.release(whose, 500 * item, 64 * item, chosen, WHOLE - milli[chosen], 0 * item)

    recomputed = capacity.copy()
    recomputed.rebuild()
    assert (capacity.milli[chosen] == WHOLE).all()
    assert capacity.cpu.sum() == 1000 * NODES + 500 * len(chosen)
    for name in ("fresh", "idle", "tightness"):
        assert getattr(capacity, name).tolist() == getattr(recomputed, name).tolist(), name
    touched = np.isin(inventory.node_of, whose) & (capacity.milli == WHOLE)
    assert (capacity.exclusion == np.where(touched, 0, 7)).all()
