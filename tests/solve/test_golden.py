"""Every LP policy reaches Gavel's optimum, which an independent solver confirmed, on Gavel's own data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from levada.solve.allox import assign
from levada.solve.finish_time import finish_time, makespan
from levada.solve.interior import (
    finish_time_interior,
    leximin_interior,
    makespan_interior,
    max_min_interior,
    searched,
    total_interior,
)
from levada.solve.interior_packed import (
    finish_time_packed_interior,
    leximin_packed_interior,
    makespan_packed_interior,
    max_min_packed_interior,
)
from levada.solve.leximin import hierarchical, leximin
from levada.solve.max_min import max_min
from levada.solve.nash import nash, strategy_proof
from levada.solve.packed import (
    finish_time_packed,
    leximin_packed,
    makespan_packed,
    max_min_packed,
    total_packed,
)
from levada.solve.problem import Solution, problem
from levada.solve.total import total
from tests.solve.cases import GOLDEN, Case, case, check, pairs_from_table, pairs_of

pytestmark = pytest.mark.usefixtures("both_methods")

EXACT = 1e-6
PLAIN = [(case(data), data["policies"]) for data in GOLDEN["instances"]]
PACKED = [
    (case(data), mode, pairs_of(data["pairs"][mode]), policies)
    for data in GOLDEN["packed_instances"]
    for mode, policies in data["policies"].items()
]
STEPS = [
    (case(step), name, rows[at])
    for sequence in GOLDEN["sequences"]
    for at, step in enumerate(sequence["steps"])
    for name, rows in sequence["policies"].items()
    if name.startswith("finish_time")
]
plain = pytest.mark.parametrize(("given", "policies"), PLAIN, ids=[given.name for given, _ in PLAIN])
packed = pytest.mark.parametrize(
    ("given", "mode", "pairs", "policies"), PACKED, ids=[f"{row[0].name}-{row[1]}" for row in PACKED]
)


def agrees(solution: Solution, policy: dict[str, Any]) -> None:
    """The optimum is Gavel's; where Gavel ended short of it, the independent one."""
    best = policy["objective"].get("independent_optimum", policy["objective"]["value"])
    assert solution.level == pytest.approx(best, rel=EXACT)
    assert solution.bound == pytest.approx(best, rel=EXACT)


@plain
def test_max_min(given: Case, policies: dict[str, Any]) -> None:
    for name, rate in (("max_min_fairness_perf", given.rate), ("max_min_fairness", np.ones_like(given.rate))):
        asked = given.problem(rate)
        agrees(check(asked, max_min(asked)), policies[name])
        agrees(check(asked, max_min_interior(asked)), policies[name])


@plain
def test_interior_shares_are_gavels(given: Case, policies: dict[str, Any]) -> None:
    """The path ends where that of Gavel's solver ended, but for rounding; where a job cannot run it gets nothing.

    Shares of a trillionth count: where many have next to nothing, they decide who fills what is left.
    """
    alike = given.problem(np.ones_like(given.rate))
    for name, solution in (
        ("max_min_fairness_perf", max_min_interior(given.problem())),
        ("max_min_fairness", max_min_interior(alike)),
        ("max_sum_throughput_perf", total_interior(given.problem())),
        ("min_total_duration_perf", makespan_interior(given.problem(), given.steps)),
    ):
        theirs = np.array(policies[name]["x"])
        counts = (given.rate > 0) & (np.maximum(theirs, solution.share) > 1e-11)
        assert solution.share[counts] == pytest.approx(theirs[counts], rel=1e-2, abs=1e-13)
        assert solution.share[counts] == pytest.approx(theirs[counts], abs=1e-7)


@plain
def test_interior_shares_of_filling_are_gavels(given: Case, policies: dict[str, Any]) -> None:
    alike = given.problem(np.ones_like(given.rate))
    for name, solution in (
        ("max_min_fairness_water_filling_perf", leximin_interior(given.problem())),
        ("max_min_fairness_water_filling", leximin_interior(alike)),
    ):
        if "error" not in policies[name]:
            theirs = np.array(policies[name]["x"])
            assert solution.share[given.rate > 0] == pytest.approx(theirs[given.rate > 0], abs=1e-6)


@plain
def test_leximin(given: Case, policies: dict[str, Any]) -> None:
    for name, rate in (("_perf", given.rate), ("", np.ones_like(given.rate))):
        policy = policies[f"max_min_fairness_water_filling{name}"]
        if "error" in policy:
            continue
        asked = given.problem(rate)
        found = check(asked, leximin(asked))
        agrees(found, policy)
        agrees(check(asked, leximin_interior(asked)), policy)
        assert found.levels is not None
        assert np.sort(found.levels) == pytest.approx(policy["independent_sorted_levels"], rel=EXACT)


@plain
def test_finish_time(given: Case, policies: dict[str, Any]) -> None:
    for name, rate in (("finish_time_fairness_perf", given.rate), ("finish_time_fairness", given.agnostic)):
        asked = given.problem(rate)
        columns = given.steps, given.elapsed, given.ideal(rate)
        agrees(check(asked, finish_time(asked, *columns)), policies[name])
        agrees(check(asked, finish_time_interior(asked, *columns)), policies[name])


@plain
def test_interior_shares_of_ratios_are_gavels(given: Case, policies: dict[str, Any]) -> None:
    for name, rate in (("finish_time_fairness_perf", given.rate), ("finish_time_fairness", given.agnostic)):
        found = finish_time_interior(given.problem(rate), given.steps, given.elapsed, given.ideal(rate))
        distance = np.abs(found.share - np.array(policies[name]["x"]))[given.rate > 0]
        assert (name, distance.max()) < (name, 1e-2)
        assert (name, distance.mean()) < (name, 1e-4)


@plain
def test_makespan(given: Case, policies: dict[str, Any]) -> None:
    for name, rate in (("min_total_duration_perf", given.rate), ("min_total_duration", given.agnostic)):
        asked = given.problem(rate)
        agrees(check(asked, makespan(asked, given.steps)), policies[name])
        assert searched(makespan(asked, given.steps).level) == pytest.approx(policies[name]["T_found"], rel=1e-12)
        inside = check(asked, makespan_interior(asked, given.steps))
        assert inside.level <= policies[name]["T_found"] * (1 + EXACT)


@plain
def test_total(given: Case, policies: dict[str, Any]) -> None:
    asked = given.problem()
    for name, cost, need in (
        ("max_sum_throughput_perf", None, None),
        ("max_sum_throughput_normalized_by_cost_perf", given.cost, None),
        ("max_sum_throughput_normalized_by_cost_perf_SLOs", given.cost, given.need),
    ):
        for solver in (total, total_interior):
            found = check(asked, solver(asked, cost, need))
            agrees(found, policies[name])
            if need is not None:
                assert found.levels is not None
                assert (found.levels >= need * (1 - EXACT)).all()


@plain
def test_allox(given: Case, policies: dict[str, Any]) -> None:
    policy = policies["allox"]
    if "skipped" in policy:
        pytest.skip(policy["skipped"])
    with np.errstate(divide="ignore"):
        queues = assign(given.steps[:, None] / given.rate, given.capacity.astype(int))
    assert queues.cost + given.elapsed.sum() == pytest.approx(policy["objective"]["value"], rel=1e-9)


@plain
def test_strategy_proof(given: Case, policies: dict[str, Any]) -> None:
    policy = policies.get("max_min_fairness_strategy_proof_perf", {"error": "too large for Gavel"})
    if "error" in policy:
        pytest.skip("Gavel has no answer")
    asked = given.problem()
    best, found = check(asked, nash(asked)), check(asked, strategy_proof(asked))
    agrees(best, policy)
    assert found.levels is not None
    assert best.levels is not None
    # The optimum is flat, so the mean is known far better than the levels that the discounts come from.
    assert found.levels / best.levels == pytest.approx(policy["discount_factors"], rel=1e-3)


@packed
def test_packed(given: Case, mode: str, pairs: Any, policies: dict[str, Any]) -> None:
    asked = given.problem()
    # Gavel divides packed rates by the weight here, but not those of the equal share.
    distorted = problem(given.rate / given.weight[:, None], given.capacity, scale=given.scale)
    twos, rate = pairs
    by_weight = rate / given.weight[twos][:, None, :]
    for name, solution in (
        ("max_min_fairness_packed", max_min_packed(asked, twos, rate)),
        ("max_min_fairness_water_filling_packed", leximin_packed(asked, twos, rate)),
        ("min_total_duration_packed", makespan_packed(asked, twos, rate, given.steps)),
        (
            "finish_time_fairness_packed",
            finish_time_packed(distorted, twos, by_weight, given.steps, given.elapsed, given.ideal(given.rate)),
        ),
        (
            "max_sum_throughput_normalized_by_cost_packed_SLOs",
            total_packed(asked, twos, rate, given.cost, given.need),
        ),
    ):
        check(asked, solution)
        if "error" not in policies[name]:
            agrees(solution, policies[name])
        if "independent_sorted_levels" in policies[name]:
            assert solution.levels is not None
            expected = policies[name]["independent_sorted_levels"]
            assert np.sort(solution.levels) == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize(("given", "name", "policy"), STEPS, ids=[f"{row[0].name}-{row[1]}" for row in STEPS])
def test_sequence(given: Case, name: str, policy: dict[str, Any]) -> None:
    rate = given.agnostic if name == "finish_time_fairness" else given.rate
    asked = problem(rate, given.capacity, scale=given.scale)
    ideal = given.ideal(rate, policy["iso_cum"])
    if name.endswith("packed"):
        twos, together = pairs_from_table(given)
        by_weight = together / given.weight[twos][:, None, :]
        asked = problem(rate / given.weight[:, None], given.capacity, scale=given.scale)
        found = finish_time_packed(asked, twos, by_weight, given.steps, given.elapsed, ideal)
    else:
        found = finish_time(asked, given.steps, given.elapsed, ideal)
    agrees(check(asked, found), policy)


@pytest.mark.parametrize("sequence", GOLDEN["sequences"], ids=[row["id"] for row in GOLDEN["sequences"]])
def test_allox_goes_on(sequence: dict[str, Any]) -> None:
    """Jobs that run keep their GPU; the others are assigned anew to what is free."""
    kept: dict[int, list[float]] = {}
    for step, policy in zip(sequence["steps"], sequence["policies"]["allox"], strict=True):
        given = case(step)
        ids = [job["id"] for job in step["jobs"]]
        holds = np.array([kept.get(job, [0.0] * len(given.capacity)) for job in ids])
        waits = ~holds.any(axis=1)
        free = (given.capacity - holds.sum(axis=0)).astype(int)
        assert [waits.sum(), free.sum() * waits.sum()] == policy["allox_shape"]
        with np.errstate(divide="ignore"):
            queues = assign((given.steps[:, None] / given.rate)[waits], free)
        waited = given.elapsed[waits][queues.gpu_type >= 0].sum()
        assert queues.cost + waited == pytest.approx(policy["objective"]["value"], rel=1e-9)
        kept = dict(zip(ids, policy["x"], strict=True))
        kept = {job: row for job, row in kept.items() if max(row) == 1.0}


@pytest.mark.parametrize("data", GOLDEN["hierarchical"], ids=[data["id"] for data in GOLDEN["hierarchical"]])
def test_hierarchy(data: dict[str, Any]) -> None:
    given = case(data)
    entity = np.zeros(len(given.rate), int)
    entities = list(data["entities"].values())
    for number, group in enumerate(entities, 1):
        entity[group["jobs"]] = number
    weights = np.array([0.0, *(group["weight"] for group in entities)])
    fifo = np.array([False, *(group["reweighting_policy"] == "fifo" for group in entities)])
    for name, rate in (("_perf", given.rate), ("", np.ones_like(given.rate))):
        policy = data["policies"][f"max_min_fairness_water_filling{name}"]
        asked = problem(rate, given.capacity, scale=given.scale, weight=given.weight, entity=entity)
        found = check(asked, hierarchical(asked, weights, fifo))
        assert found.levels is not None
        sums = np.bincount(entity, found.levels)[1:]
        assert sums == pytest.approx(list(policy["entity_sum_normalized"].values()), rel=EXACT)
        assert found.levels == pytest.approx(policy["normalized_effective_throughput"], rel=EXACT, abs=1e-8)


@packed
def test_interior_shares_of_pairs_are_gavels(given: Case, mode: str, pairs: Any, policies: dict[str, Any]) -> None:
    if mode != "same_sf":
        pytest.skip("pairs of different scale never run, but Gavel's solver has seen them")
    asked = given.problem()
    filled = leximin_packed(asked, *pairs).levels
    assert filled is not None
    twos, rate = pairs
    distorted = problem(given.rate / given.weight[:, None], given.capacity, scale=given.scale)
    ratios = (twos, rate / given.weight[twos][:, None, :], given.steps, given.elapsed, given.ideal(given.rate))
    for name, found in (
        ("max_min_fairness_packed", max_min_packed_interior(asked, *pairs)),
        ("max_min_fairness_water_filling_packed", leximin_packed_interior(asked, *pairs, filled)),
        ("min_total_duration_packed", makespan_packed_interior(asked, *pairs, given.steps)),
        ("finish_time_fairness_packed", finish_time_packed_interior(distorted, *ratios)),
    ):
        check(asked, found)
        if "error" in policies[name]:
            continue
        if name != "min_total_duration_packed":  # where any time within 5 % of the least will do
            agrees(found, policies[name])
        assert found.pairs is not None
        assert found.pair_share is not None
        mine = {str(job): share for job, share in enumerate(found.share)}
        mine |= {str((int(a), int(b))): share for (a, b), share in zip(found.pairs, found.pair_share, strict=True)}
        rows, nothing = policies[name]["x_rows"], np.zeros(len(given.types))
        # Two jobs that reach nothing together never run, whatever share they have.
        runs = {str((int(a), int(b))): both.any(axis=1) for (a, b), both in zip(twos, rate, strict=True)}
        distance = [
            (mine.get(key, nothing) - np.array(rows.get(key, nothing))) * runs.get(key, 1.0)
            for key in mine.keys() | rows.keys()
        ]
        # Gavel's rates have single precision here, and so does what its programs of water-filling hold on to.
        near = 1e-2 if "filling" in name else 1e-5
        assert (name, np.abs(distance).max()) < (name, near)
        assert (name, np.abs(distance).mean()) < (name, near / 10)
