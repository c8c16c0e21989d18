"""Every LP policy reaches Gavel's optimum on Gavel's data, confirmed by an independent solver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from levada.compat.gavel.solver.interior import (
    finish_time_interior,
    leximin_interior,
    makespan_interior,
    max_min_interior,
    search_makespan,
    total_interior,
)
from levada.compat.gavel.solver.interior_packed import (
    finish_time_packed_interior,
    leximin_packed_interior,
    makespan_packed_interior,
    max_min_packed_interior,
)
from levada.solve.allox import assign
from levada.solve.finish_time import finish_time, makespan
from levada.solve.leximin import hierarchical, leximin
from levada.solve.max_min import max_min
from levada.solve.max_throughput import total
from levada.solve.nash import nash, strategy_proof
from levada.solve.packed import (
    finish_time_packed,
    leximin_packed,
    makespan_packed,
    max_min_packed,
    total_packed,
)
from levada.solve.problem import Solution, problem
from tests.solve.golden_cases import GOLDEN, GoldenCase, assert_feasible, build_case, pairs_from_table, pairs_of

pytestmark = pytest.mark.usefixtures("both_methods")

EXACT = 1e-6
PLAIN = [(build_case(data), data["policies"]) for data in GOLDEN["instances"]]
PACKED = [
    (build_case(data), mode, pairs_of(data["pairs"][mode]), policies)
    for data in GOLDEN["packed_instances"]
    for mode, policies in data["policies"].items()
]
STEPS = [
    (build_case(step), name, rows[at])
    for sequence in GOLDEN["sequences"]
    for at, step in enumerate(sequence["steps"])
    for name, rows in sequence["policies"].items()
    if name.startswith("finish_time")
]
plain = pytest.mark.parametrize(("case", "policies"), PLAIN, ids=[case.name for case, _ in PLAIN])
packed = pytest.mark.parametrize(
    ("case", "mode", "pairs", "policies"), PACKED, ids=[f"{row[0].name}-{row[1]}" for row in PACKED]
)


def assert_optimum(solution: Solution, policy: dict[str, Any]) -> None:
    """Assert that the solution has Gavel's optimum, or the independent one where Gavel ended short of it."""
    best = policy["objective"].get("independent_optimum", policy["objective"]["value"])
    assert solution.level == pytest.approx(best, rel=EXACT)
    assert solution.bound == pytest.approx(best, rel=EXACT)


@plain
def test_max_min_has_gavels_optimum(case: GoldenCase, policies: dict[str, Any]) -> None:
    for name, rate in (("max_min_fairness_perf", case.rate), ("max_min_fairness", np.ones_like(case.rate))):
        instance = case.problem(rate)
        assert_optimum(assert_feasible(instance, max_min(instance)), policies[name])
        assert_optimum(assert_feasible(instance, max_min_interior(instance)), policies[name])


@plain
def test_interior_shares_equal_gavels(case: GoldenCase, policies: dict[str, Any]) -> None:
    """The path ends at the point of Gavel's solver except for rounding; a job gets nothing where it cannot run.

    Shares of 1e-12 matter: if many jobs have almost nothing, such shares decide which job uses free capacity.
    """
    equal_rates = case.problem(np.ones_like(case.rate))
    for name, solution in (
        ("max_min_fairness_perf", max_min_interior(case.problem())),
        ("max_min_fairness", max_min_interior(equal_rates)),
        ("max_sum_throughput_perf", total_interior(case.problem())),
        ("min_total_duration_perf", makespan_interior(case.problem(), case.steps)),
    ):
        expected = np.array(policies[name]["x"])
        compared = (case.rate > 0) & (np.maximum(expected, solution.share) > 1e-11)
        assert solution.share[compared] == pytest.approx(expected[compared], rel=1e-2, abs=1e-13)
        assert solution.share[compared] == pytest.approx(expected[compared], abs=1e-7)


@plain
def test_interior_shares_of_water_filling_equal_gavels(case: GoldenCase, policies: dict[str, Any]) -> None:
    equal_rates = case.problem(np.ones_like(case.rate))
    for name, solution in (
        ("max_min_fairness_water_filling_perf", leximin_interior(case.problem())),
        ("max_min_fairness_water_filling", leximin_interior(equal_rates)),
    ):
        if "error" not in policies[name]:
            expected = np.array(policies[name]["x"])
            assert solution.share[case.rate > 0] == pytest.approx(expected[case.rate > 0], abs=1e-6)


@plain
def test_leximin_has_gavels_levels(case: GoldenCase, policies: dict[str, Any]) -> None:
    for name, rate in (("_perf", case.rate), ("", np.ones_like(case.rate))):
        policy = policies[f"max_min_fairness_water_filling{name}"]
        if "error" in policy:
            continue
        instance = case.problem(rate)
        solution = assert_feasible(instance, leximin(instance))
        assert_optimum(solution, policy)
        assert_optimum(assert_feasible(instance, leximin_interior(instance)), policy)
        assert solution.levels is not None
        assert np.sort(solution.levels) == pytest.approx(policy["independent_sorted_levels"], rel=EXACT)


@plain
def test_finish_time_has_gavels_optimum(case: GoldenCase, policies: dict[str, Any]) -> None:
    for name, rate in (("finish_time_fairness_perf", case.rate), ("finish_time_fairness", case.agnostic)):
        instance = case.problem(rate)
        columns = case.steps, case.elapsed, case.ideal(rate)
        assert_optimum(assert_feasible(instance, finish_time(instance, *columns)), policies[name])
        assert_optimum(assert_feasible(instance, finish_time_interior(instance, *columns)), policies[name])


@plain
def test_interior_shares_of_finish_time_equal_gavels(case: GoldenCase, policies: dict[str, Any]) -> None:
    for name, rate in (("finish_time_fairness_perf", case.rate), ("finish_time_fairness", case.agnostic)):
        solution = finish_time_interior(case.problem(rate), case.steps, case.elapsed, case.ideal(rate))
        distance = np.abs(solution.share - np.array(policies[name]["x"]))[case.rate > 0]
        assert (name, distance.max()) < (name, 1e-2)
        assert (name, distance.mean()) < (name, 1e-4)


@plain
def test_makespan_has_gavels_optimum(case: GoldenCase, policies: dict[str, Any]) -> None:
    for name, rate in (("min_total_duration_perf", case.rate), ("min_total_duration", case.agnostic)):
        instance = case.problem(rate)
        assert_optimum(assert_feasible(instance, makespan(instance, case.steps)), policies[name])
        assert search_makespan(makespan(instance, case.steps).level) == pytest.approx(
            policies[name]["T_found"], rel=1e-12
        )
        inside = assert_feasible(instance, makespan_interior(instance, case.steps))
        assert inside.level <= policies[name]["T_found"] * (1 + EXACT)


@plain
def test_total_throughput_has_gavels_optimum(case: GoldenCase, policies: dict[str, Any]) -> None:
    instance = case.problem()
    for name, cost, need in (
        ("max_sum_throughput_perf", None, None),
        ("max_sum_throughput_normalized_by_cost_perf", case.cost, None),
        ("max_sum_throughput_normalized_by_cost_perf_SLOs", case.cost, case.need),
    ):
        for solver in (total, total_interior):
            solution = assert_feasible(instance, solver(instance, cost, need))
            assert_optimum(solution, policies[name])
            if need is not None:
                assert solution.levels is not None
                assert (solution.levels >= need * (1 - EXACT)).all()


@plain
def test_allox_has_gavels_optimum(case: GoldenCase, policies: dict[str, Any]) -> None:
    policy = policies["allox"]
    if "skipped" in policy:
        pytest.skip(policy["skipped"])
    with np.errstate(divide="ignore"):
        queues = assign(case.steps[:, None] / case.rate, case.capacity.astype(int))
    assert queues.cost + case.elapsed.sum() == pytest.approx(policy["objective"]["value"], rel=1e-9)


@plain
def test_strategy_proof_has_gavels_discount_factors(case: GoldenCase, policies: dict[str, Any]) -> None:
    policy = policies.get("max_min_fairness_strategy_proof_perf", {"error": "too large for Gavel"})
    if "error" in policy:
        pytest.skip("Gavel has no answer")
    instance = case.problem()
    best, solution = assert_feasible(instance, nash(instance)), assert_feasible(instance, strategy_proof(instance))
    assert_optimum(best, policy)
    assert solution.levels is not None
    assert best.levels is not None
    # The optimum is flat: the mean is more precise than the levels that determine the discounts.
    assert solution.levels / best.levels == pytest.approx(policy["discount_factors"], rel=1e-3)


@packed
def test_packed_policies_have_gavels_optima(case: GoldenCase, mode: str, pairs: Any, policies: dict[str, Any]) -> None:
    instance = case.problem()
    # Gavel divides packed rates by the weight here, but not those of the equal share.
    distorted = problem(case.rate / case.weight[:, None], case.capacity, scale=case.scale)
    twos, rate = pairs
    by_weight = rate / case.weight[twos][:, None, :]
    for name, solution in (
        ("max_min_fairness_packed", max_min_packed(instance, twos, rate)),
        ("max_min_fairness_water_filling_packed", leximin_packed(instance, twos, rate)),
        ("min_total_duration_packed", makespan_packed(instance, twos, rate, case.steps)),
        (
            "finish_time_fairness_packed",
            finish_time_packed(distorted, twos, by_weight, case.steps, case.elapsed, case.ideal(case.rate)),
        ),
        (
            "max_sum_throughput_normalized_by_cost_packed_SLOs",
            total_packed(instance, twos, rate, case.cost, case.need),
        ),
    ):
        assert_feasible(instance, solution)
        if "error" not in policies[name]:
            assert_optimum(solution, policies[name])
        if "independent_sorted_levels" in policies[name]:
            assert solution.levels is not None
            expected = policies[name]["independent_sorted_levels"]
            assert np.sort(solution.levels) == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize(("case", "name", "policy"), STEPS, ids=[f"{row[0].name}-{row[1]}" for row in STEPS])
def test_finish_time_over_several_rounds_has_gavels_optima(case: GoldenCase, name: str, policy: dict[str, Any]) -> None:
    rate = case.agnostic if name == "finish_time_fairness" else case.rate
    instance = problem(rate, case.capacity, scale=case.scale)
    ideal = case.ideal(rate, policy["iso_cum"])
    if name.endswith("packed"):
        twos, together = pairs_from_table(case)
        by_weight = together / case.weight[twos][:, None, :]
        instance = problem(rate / case.weight[:, None], case.capacity, scale=case.scale)
        solution = finish_time_packed(instance, twos, by_weight, case.steps, case.elapsed, ideal)
    else:
        solution = finish_time(instance, case.steps, case.elapsed, ideal)
    assert_optimum(assert_feasible(instance, solution), policy)


@pytest.mark.parametrize("sequence", GOLDEN["sequences"], ids=[row["id"] for row in GOLDEN["sequences"]])
def test_allox_over_several_rounds_has_gavels_optima(sequence: dict[str, Any]) -> None:
    """Running jobs keep their GPU; pending jobs are assigned to free GPUs."""
    running: dict[int, list[float]] = {}
    for step, policy in zip(sequence["steps"], sequence["policies"]["allox"], strict=True):
        case = build_case(step)
        ids = [job["id"] for job in step["jobs"]]
        held = np.array([running.get(job, [0.0] * len(case.capacity)) for job in ids])
        pending = ~held.any(axis=1)
        free = (case.capacity - held.sum(axis=0)).astype(int)
        assert [pending.sum(), free.sum() * pending.sum()] == policy["allox_shape"]
        with np.errstate(divide="ignore"):
            queues = assign((case.steps[:, None] / case.rate)[pending], free)
        waited = case.elapsed[pending][queues.gpu_type >= 0].sum()
        assert queues.cost + waited == pytest.approx(policy["objective"]["value"], rel=1e-9)
        running = dict(zip(ids, policy["x"], strict=True))
        running = {job: row for job, row in running.items() if max(row) == 1.0}


@pytest.mark.parametrize("data", GOLDEN["hierarchical"], ids=[data["id"] for data in GOLDEN["hierarchical"]])
def test_hierarchy_has_gavels_levels(data: dict[str, Any]) -> None:
    case = build_case(data)
    entity = np.zeros(len(case.rate), int)
    entities = list(data["entities"].values())
    for number, group in enumerate(entities, 1):
        entity[group["jobs"]] = number
    weights = np.array([0.0, *(group["weight"] for group in entities)])
    fifo = np.array([False, *(group["reweighting_policy"] == "fifo" for group in entities)])
    for name, rate in (("_perf", case.rate), ("", np.ones_like(case.rate))):
        policy = data["policies"][f"max_min_fairness_water_filling{name}"]
        instance = problem(rate, case.capacity, scale=case.scale, weight=case.weight, entity=entity)
        solution = assert_feasible(instance, hierarchical(instance, weights, fifo))
        assert solution.levels is not None
        sums = np.bincount(entity, solution.levels)[1:]
        assert sums == pytest.approx(list(policy["entity_sum_normalized"].values()), rel=EXACT)
        assert solution.levels == pytest.approx(policy["normalized_effective_throughput"], rel=EXACT, abs=1e-8)


@packed
def test_interior_shares_of_pairs_equal_gavels(
    case: GoldenCase, mode: str, pairs: Any, policies: dict[str, Any]
) -> None:
    if mode != "same_sf":
        pytest.skip("Gavel's solver includes pairs of different scale, which never run")
    instance = case.problem()
    filled = leximin_packed(instance, *pairs).levels
    assert filled is not None
    twos, rate = pairs
    distorted = problem(case.rate / case.weight[:, None], case.capacity, scale=case.scale)
    ratios = (twos, rate / case.weight[twos][:, None, :], case.steps, case.elapsed, case.ideal(case.rate))
    for name, solution in (
        ("max_min_fairness_packed", max_min_packed_interior(instance, *pairs)),
        ("max_min_fairness_water_filling_packed", leximin_packed_interior(instance, *pairs, filled)),
        ("min_total_duration_packed", makespan_packed_interior(instance, *pairs, case.steps)),
        ("finish_time_fairness_packed", finish_time_packed_interior(distorted, *ratios)),
    ):
        assert_feasible(instance, solution)
        if "error" in policies[name]:
            continue
        if name != "min_total_duration_packed":  # Gavel accepts any makespan within 5 % of the optimum
            assert_optimum(solution, policies[name])
        assert solution.pairs is not None
        assert solution.pair_share is not None
        shares = {str(job): share for job, share in enumerate(solution.share)}
        shares |= {
            str((int(a), int(b))): share for (a, b), share in zip(solution.pairs, solution.pair_share, strict=True)
        }
        rows, nothing = policies[name]["x_rows"], np.zeros(len(case.types))
        # Pairs with rate 0 never run: their share is irrelevant.
        runs = {str((int(a), int(b))): both.any(axis=1) for (a, b), both in zip(twos, rate, strict=True)}
        distance = [
            (shares.get(key, nothing) - np.array(rows.get(key, nothing))) * runs.get(key, 1.0)
            for key in shares.keys() | rows.keys()
        ]
        # Gavel uses single precision here, also for the levels fixed by water-filling.
        tolerance = 1e-2 if "filling" in name else 1e-5
        assert (name, np.abs(distance).max()) < (name, tolerance)
        assert (name, np.abs(distance).mean()) < (name, tolerance / 10)
