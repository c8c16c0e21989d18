"""Large inputs, which are processed in parts, give the same results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levada.perf.table_model import JobSpeed, TableModel
from levada.policies import ffdl, greedy_growth, registry
from levada.tables.cluster_state import ClusterState
from tests.builders import cluster, job, world


@st.composite
def long_ladders(draw: st.DrawFn) -> tuple[ClusterState, TableModel]:
    """Jobs with more sizes than a small table holds, some with constant gains."""
    created, speeds = [], []
    for i in range(draw(st.integers(1, 4))):
        least = draw(st.integers(1, 3))
        created.append(job(f"j{i}", float(i), min=least, max=80, steps=draw(st.sampled_from([40.0, 400.0]))))
        power = draw(st.sampled_from([0.5, 0.75, 1.0]))
        falling = {1: 1.0} | {n: round(n**power * 1024) / 1024 for n in (4, 16, 32, 64, 96)}
        speeds.append(JobSpeed(job=i, speedup=falling))
    return world(cluster(draw(st.integers(0, 120))), *created), TableModel(speeds)


@pytest.mark.parametrize("name", ["elastic-tiresias", "afs-l"])
@given(scene=long_ladders())
@settings(max_examples=30)
def test_ladders_in_pieces(name: str, scene: tuple[ClusterState, TableModel]) -> None:
    there, perf = scene
    policy = registry.make(name)
    answers = []
    with pytest.MonkeyPatch.context() as patch:
        for window in (128, 16):
            patch.setattr(greedy_growth, "MOST_SIZES", 0)
            patch.setattr(greedy_growth, "WINDOW", window)
            answers.append(policy.decide(there.snapshot(0.0), perf, policy.initial(0))[0].count.tolist())
    assert answers[0] == answers[1]


@given(scene=long_ladders())
@settings(max_examples=30)
def test_ffdl_by_gain_is_as_good_where_gains_fall(scene: tuple[ClusterState, TableModel]) -> None:
    there, perf = scene
    policy = registry.make("ffdl")
    sums = []
    with pytest.MonkeyPatch.context() as patch:
        for cells in (ffdl.CELLS, 0):
            patch.setattr(ffdl, "CELLS", cells)
            result, _ = policy.decide(there.snapshot(0.0), perf, policy.initial(0))
            sums.append(float(perf.speedups(result.number, np.array(1), result.count).sum()))
    assert sums[0] == pytest.approx(sums[1])
