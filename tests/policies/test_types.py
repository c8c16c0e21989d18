"""The GPU type of a job on a mixed cluster: preference, speed, free fraction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from levada.core.decision import Decision
from levada.perf.table_model import JobSpeed, PairSpeed, TableModel
from levada.policies import registry
from levada.policies.catalog import POLICIES
from levada.policies.queued import queued
from levada.tables.cluster_state import ClusterState
from tests import kernel_modes
from tests.builders import cluster, job, world

#: Policies to which all types are alike; all others compare speeds.
BLIND = [
    *("fifo", "elastic-fifo", "tiresias", "dragon", "dragon-compat"),
    *("max_min_fairness", "max_min_fairness_water_filling", "max_min_fairness_strategy_proof"),
    *("finish_time_fairness", "min_total_duration", "shortest_job_first", "isolated", "gandiva", "gavel-fifo"),
]
#: Steps per second on the first, second and third type of the cluster: the slowest comes first, also by name.
SLOW_FIRST = (1.0, 4.0, 9.0)
NAMES = ("c", "m", "x")


def speeds(there: ClusterState, rates: tuple[float, ...]) -> TableModel:
    """Every job has these rates by type, and half of them beside another."""
    by_type = dict(enumerate(rates, start=1))
    numbers = sorted(there.ids)
    return TableModel(
        [JobSpeed(job=number, throughput=by_type) for number in numbers],
        [
            PairSpeed(a=a, b=b, throughput={kind: (rate / 2, rate / 2) for kind, rate in by_type.items()})
            for b in numbers
            for a in numbers[:b]
        ],
    )


def decide(name: str, there: ClusterState, perf: TableModel, in_queues: bool = False) -> Decision:
    policy: Any = registry.make(name)
    if in_queues:
        policy = queued(policy)
    return policy.decide(there.snapshot(0.0), perf, policy.initial(0))[0]


@pytest.mark.parametrize("name", registry.names())
def test_equal_jobs_on_an_idle_mixed_cluster_are_never_all_on_the_slowest_type(name: str) -> None:
    jobs = [job(f"j{at}", float(at), steps=1000.0, deadline=1e9) for at in range(3)]
    there = world(cluster(*({kind: 4} for kind in NAMES)), *jobs)
    result = decide(name, there, speeds(there, SLOW_FIRST))
    kinds = [NAMES[int(kind) - 1] for kind in result.type]
    if name == "dragon-compat":
        assert kinds[:1] == ["c"], "it starts one job at a time"
        return
    assert (result.count == 1).all(), "there is room for all"
    if name == "gavel-fifo":
        assert kinds == ["m", "m", "c"], "drawn at random, with this seed"
    elif name in BLIND:
        assert sorted(kinds) == ["c", "m", "x"], "each takes the type with the largest free part"
    else:
        assert kinds == ["x", "x", "x"], "all fit on the fastest"


@pytest.mark.parametrize("name", ["fifo", "elastic-fifo", "tiresias", "dragon", "shortest_job_first"])
def test_the_free_part_counts_and_not_how_many_are_free(name: str) -> None:
    """Types of 2, 8 and 4 fill up evenly."""
    jobs = [job(f"j{at}", float(at), steps=1000.0) for at in range(7)]
    there = world(cluster({"c": 2}, {"m": 8}, {"x": 4}), *jobs)
    result = decide(name, there, speeds(there, SLOW_FIRST))
    assert np.bincount(result.type, minlength=4).tolist() == [0, 1, 4, 2]


@pytest.mark.parametrize("name", [*(item.name for item in POLICIES if not item.shares), "shortest_job_first"])
def test_the_order_of_types_that_a_user_named_comes_first(name: str) -> None:
    there = world(cluster(*({kind: 4} for kind in NAMES)), job("j", steps=1000.0, gpu_types=("m", "c", "x")))
    result = decide(name, there, speeds(there, SLOW_FIRST))
    assert result.type.tolist() == [2]


@pytest.mark.parametrize("name", ["srjf", "elastic-srjf", "elastic-tiresias", "ffdl", "afs-l"])
def test_where_nothing_is_known_of_speeds_free_room_counts(name: str) -> None:
    jobs = [job(f"j{at}", float(at), steps=1000.0) for at in range(3)]
    there = world(cluster(*({kind: 4} for kind in NAMES)), *jobs)
    assert sorted(decide(name, there, TableModel([])).type.tolist()) == [1, 2, 3]


@pytest.mark.parametrize("name", ["srjf", "elastic-srjf", "elastic-tiresias", "ffdl", "afs-l"])
def test_nobody_is_sent_where_it_makes_no_progress(name: str) -> None:
    there = world(cluster({"c": 4}, {"m": 1}), *(job(f"j{at}", float(at), steps=9.0) for at in range(2)))
    result = decide(name, there, speeds(there, (0.0, 1.0)))
    assert sorted(zip(result.type.tolist(), result.count.tolist(), strict=True)) == [(-1, 0), (2, 1)]


class Named:
    """One cluster with its jobs, made as often as there are names for its types."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.gpus = draw(st.lists(st.integers(1, 6), min_size=2, max_size=3))
        #: Binary fractions, and some that are equal.
        self.rates = tuple(draw(st.sampled_from([0.5, 1.0, 2.0, 4.0])) for _ in self.gpus)
        kinds = st.lists(st.integers(0, len(self.gpus) - 1), unique=True, max_size=2)
        self.jobs = [
            (
                draw(st.integers(1, 2)),
                draw(st.integers(0, 3)),
                draw(kinds) if draw(st.integers(0, 3)) == 0 else [],
                draw(st.sampled_from([60.0, 480.0, 4000.0])),
            )
            for _ in range(draw(st.integers(1, 8)))
        ]

    def world(self, names: tuple[str, ...]) -> ClusterState:
        jobs = (
            job(f"j{at}", float(at), min=least, max=least + more, gpu_types=tuple(names[k] for k in kinds), steps=steps)
            for at, (least, more, kinds, steps) in enumerate(self.jobs)
        )
        nodes = ({name: count} for name, count in zip(names, self.gpus, strict=False))
        return world(cluster(*nodes), *jobs)


@pytest.mark.parametrize("name", registry.names())
@settings(max_examples=20)
@given(scene=st.composite(Named)(), in_queues=st.booleans())
def test_names_of_types_do_not_matter(name: str, scene: Named, in_queues: bool) -> None:
    """The same cluster with other type names: the same decision, in both kernels."""
    result = []
    before = kernel_modes.active()
    try:
        for kernels in ("interpreted", "compiled"):
            kernel_modes.use(kernels)
            for names in (("c", "m", "x"), ("zz", "k80", "a"), ("m", "zz", "b")):
                there = scene.world(names)
                decision = decide(name, there, speeds(there, scene.rates), in_queues)
                result.append((decision.type.tolist(), decision.count.tolist(), decision.reason.tolist()))
    finally:
        kernel_modes.use(before)
    note(f"{result}")
    assert result[:3] == [result[0]] * 3
    assert result[3:] == [result[3]] * 3
