"""Policies of Gavel's paper only: shortest job first, strategy-proof, placement."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.errors import BadInput
from levada.perf.profiles import ProfileModel, Profiles
from levada.policies import registry
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.max_min import MaxMinFairnessPerf
from levada.policies.gavel.placement import Placed, fewest_nodes, rates_by_placement
from levada.policies.gavel.shortest_job_first import ShortestJobFirst, ShortestJobFirstPerf
from levada.policies.gavel.strategy_proof import StrategyProof, StrategyProofPerf
from tests.builders import cluster, job, world
from tests.policies.gavel.instances import by_name, moment

TYPES = {"v100": 1, "k80": 2}


# --- shortest job first ----------------------------------------------------------------------------------------------


def test_shortest_job_first_by_the_fastest_type() -> None:
    #                        10 s       2 s         5 s        50 s
    instance = moment([[10.0, 1.0], [10.0, 9.0], [4.0, 20.0], [1.0, 1.0]], TYPES, steps=[100.0, 20.0, 100.0, 50.0])
    shares, _ = ShortestJobFirstPerf().shares(instance, instance.perf, None)
    # The second is first, on its fastest type; the third is faster on the other; the first finds only that one left.
    assert by_name(instance, shares.share) == [{"k80": 1.0}, {"v100": 1.0}, {"k80": 1.0}, {}]


def test_shortest_job_first_without_knowing_how_types_differ() -> None:
    # As on the reference type the first is the shortest, though it is slow on the other; preferences choose the type.
    instance = moment([[10.0, 0.1], [5.0, 500.0], [5.0, 5.0]], TYPES, steps=[10.0, 50.0, 5000.0])
    shares, _ = ShortestJobFirst().shares(instance, instance.perf, None)
    assert by_name(instance, shares.share) == [{"v100": 1.0}, {"k80": 1.0}, {"k80": 1.0}]


def test_a_job_that_does_not_fit_is_passed_over() -> None:
    instance = moment([[9.0, 9.0], [1.0, 1.0]], {"v100": 2, "k80": 2}, scale=[4, 2], steps=[1.0, 1000.0])
    shares, _ = ShortestJobFirstPerf().shares(instance, instance.perf, None)
    assert by_name(instance, shares.share) == [{}, {"v100": 1.0}]


# --- strategy-proof --------------------------------------------------------------------------------------------------

RATES = st.lists(st.lists(st.floats(0.5, 20.0), min_size=2, max_size=2), min_size=2, max_size=4)


@given(rates=RATES, row=st.integers(0, 3), lie=st.lists(st.floats(0.5, 20.0), min_size=2, max_size=2))
def test_nobody_gains_by_lying(rates: list[list[float]], row: int, lie: list[float]) -> None:
    row %= len(rates)
    gpus = {"v100": 1, "k80": 1}

    def reached(messages: list[list[float]]) -> float:
        instance = moment(messages, gpus)
        shares, _ = StrategyProofPerf().shares(instance, instance.perf, None)
        return float(shares.share[row, 1:] @ np.array(rates[row]))

    honest = reached(rates)
    assert reached([lie if i == row else rate for i, rate in enumerate(rates)]) <= honest * (1 + 1e-5)


def test_strategy_proof_without_knowing_how_types_differ() -> None:
    instance = moment([[1.0, 9.0], [9.0, 1.0]], {"v100": 1, "k80": 1})
    shares, _ = StrategyProof().shares(instance, instance.perf, None)
    assert shares.share.sum(axis=1) == pytest.approx([1.0, 1.0], rel=1e-6)
    assert shares.objective == pytest.approx(1.0, rel=1e-6)


# --- placement -------------------------------------------------------------------------------------------------------


def spread_out(*nodes: dict[str, int]) -> Instance:
    """Two jobs of 4 GPUs; spread over nodes, one keeps its speed, one has a tenth."""
    model = ProfileModel(
        Profiles(
            workloads=("chatty", "quiet"),
            types=("v100", "k80"),
            sizes=(1, 4),
            alone=np.array([[[1.0, 10.0], [0.8, 8.0]]] * 2),
            spread=np.array([[[1.0, 1.0], [0.8, 0.8]], [[1.0, 10.0], [0.8, 8.0]]]),
        ),
    )
    jobs = [job("c", min=4, workload="chatty"), job("q", min=4, workload="quiet")]
    created = world(cluster(*nodes), *jobs)
    model.attach(tuple(created.workloads), tuple(created.inventory.types))
    snap = created.snapshot(0.0)
    model.bind(snap.jobs.number, snap.jobs.workload)
    return Instance(snap, model)


def test_fewest_nodes() -> None:
    instance = spread_out({"v100": 2}, {"v100": 3}, {"v100": 1}, {"k80": 4}, {"k80": 8})
    v100, k80 = instance.names.index("v100"), instance.names.index("k80")
    assert fewest_nodes(instance)[:, v100].tolist() == [2, 2]
    assert fewest_nodes(instance)[:, k80].tolist() == [1, 1]
    assert fewest_nodes(spread_out({"v100": 2}))[:, v100].tolist() == [0, 0]


def test_a_job_larger_than_a_node_has_its_rate_when_spread() -> None:
    instance = spread_out({"v100": 2}, {"v100": 2}, {"k80": 4})
    v100, k80 = instance.names.index("v100"), instance.names.index("k80")
    assert instance.rate[:, v100].tolist() == [10.0, 10.0]
    seen = rates_by_placement(instance)
    assert seen.rate[:, v100].tolist() == [1.0, 10.0]
    assert seen.rate[:, k80].tolist() == [8.0, 8.0]
    assert instance.rate[:, v100].tolist() == [10.0, 10.0]


def test_placement_sends_jobs_where_they_fit() -> None:
    instance = spread_out({"v100": 2}, {"v100": 2}, {"k80": 4})
    v100, k80 = instance.names.index("v100"), instance.names.index("k80")
    policy = MaxMinFairnessPerf()
    blind, _ = policy.shares(instance, instance.perf, None)
    placed, _ = Placed(policy).shares(instance, instance.perf, None)
    assert blind.share[0, v100] == pytest.approx(blind.share[1, v100])
    assert placed.share[0, k80] == pytest.approx(1.0)
    assert placed.share[1, v100] == pytest.approx(1.0)


def test_placement_is_an_option_of_policies_that_know_types() -> None:
    assert isinstance(registry.make("max_min_fairness_perf", {"placement": True}).policy, Placed)  # type: ignore[attr-defined]
    for name, value, text in (
        ("max_min_fairness_perf", 1, "options.placement: must be true or false"),
        ("max_min_fairness", True, "options.placement: unknown option"),
    ):
        with pytest.raises(BadInput) as refused:
            registry.make(name, {"placement": value})
        assert str(refused.value.faults[0]).startswith(text)
