"""Failed solves and invalid input give feasible shares and an alarm."""

from __future__ import annotations

import numpy as np
import pytest

from levada.compat.gavel.solver.interior import (
    finish_time_interior,
    leximin_interior,
    makespan_interior,
    max_min_interior,
    total_interior,
)
from levada.compat.gavel.solver.interior_packed import leximin_packed_interior, max_min_packed_interior
from levada.solve.fallback import find_violation, with_fallback
from levada.solve.finish_time import finish_time, makespan
from levada.solve.highs import Lp, LpModel, NoSolution
from levada.solve.leximin import hierarchical, leximin
from levada.solve.max_min import max_min
from levada.solve.max_throughput import total
from levada.solve.nash import nash, strategy_proof
from levada.solve.packed import (
    finish_time_packed,
    hierarchical_packed,
    leximin_packed,
    makespan_packed,
    max_min_packed,
    total_packed,
)
from levada.solve.problem import ShareProblem, Solution, problem

NO_PAIRS = np.zeros((0, 2), int)


def every_solver(instance: ShareProblem) -> dict[str, Solution]:
    """The solutions of all solvers."""
    jobs, types = instance.jobs, len(instance.capacity)
    ones, rates = np.ones(jobs), np.zeros((0, types, 2))
    return {
        "max_min": max_min(instance),
        "leximin": leximin(instance),
        "hierarchical": hierarchical(instance, np.ones(3)),
        "finish_time": finish_time(instance, ones, ones, ones),
        "makespan": makespan(instance, ones),
        "total": total(instance, np.ones(types), 0.0 * ones),
        "nash": nash(instance),
        "strategy_proof": strategy_proof(instance),
        "max_min_packed": max_min_packed(instance, NO_PAIRS, rates),
        "leximin_packed": leximin_packed(instance, NO_PAIRS, rates),
        "hierarchical_packed": hierarchical_packed(instance, NO_PAIRS, rates, np.ones(3)),
        "finish_time_packed": finish_time_packed(instance, NO_PAIRS, rates, ones, ones, ones),
        "makespan_packed": makespan_packed(instance, NO_PAIRS, rates, ones),
        "total_packed": total_packed(instance, NO_PAIRS, rates),
        "max_min_interior": max_min_interior(instance),
        "leximin_interior": leximin_interior(instance),
        "total_interior": total_interior(instance),
        "makespan_interior": makespan_interior(instance, ones),
        "finish_time_interior": finish_time_interior(instance, ones, ones, ones),
        "max_min_packed_interior": max_min_packed_interior(instance, NO_PAIRS, rates),
    }


EDGES = {
    "no job": problem(np.zeros((0, 2)), [1, 1]),
    "no GPU": problem([[1.0, 2.0]], [0, 0]),
    "no usable type": problem([[0.0, 0.0], [0.0, 0.0]], [1, 1]),
    "its only type has no GPU": problem([[0.0, 1.0], [1.0, 1.0]], [1, 0]),
    "one job, one type": problem([[3.0]], [1]),
    "wider than the cluster": problem([[3.0, 1.0]], [2, 1], scale=[64]),
    "eight equal types": problem(np.ones((3, 8)), np.ones(8)),
    "weights far apart": problem([[1.0, 2.0], [2.0, 1.0]], [1, 1], weight=[1e-3, 1e3]),
    "rates far apart": problem([[1e-6, 2e-6], [2e6, 1e6]], [1, 1]),
}


@pytest.mark.usefixtures("both_methods")
@pytest.mark.parametrize("instance", EDGES.values(), ids=EDGES)
def test_empty_and_degenerate_problems_are_solved_without_an_alarm(instance: ShareProblem) -> None:
    for name, solution in every_solver(instance).items():
        assert (name, solution.alarm, find_violation(instance, solution)) == (name, "", "")
        assert solution.share.shape == (instance.jobs, len(instance.capacity))
        if np.isfinite(solution.bound):
            assert (name, solution.level) == (name, pytest.approx(solution.bound, rel=1e-6, abs=1e-9))
        idle = (np.where(instance.capacity > 0, instance.rate, 0.0) == 0).all(axis=1)
        assert not solution.share[idle].any()


@pytest.mark.parametrize(
    ("instance", "alarm"),
    [
        (problem([[np.nan, 1.0], [1.0, 1.0]], [1, 1]), "1 rates are negative or not finite: set to 0"),
        (problem([[-1.0, 1.0], [1.0, np.inf]], [1, 1]), "2 rates are negative or not finite: set to 0"),
        (problem([[1.0, 1.0]], [1, np.nan]), "1 capacities are negative or not finite: set to 0"),
        (problem([[1.0, 1.0]], [1, 1], weight=[0.0]), "1 weights or scales are not positive: these jobs get nothing"),
    ],
)
def test_invalid_numbers_are_replaced_and_reported(instance: ShareProblem, alarm: str) -> None:
    for solution in every_solver(instance).values():
        assert solution.alarm == alarm
        assert np.isfinite(solution.share).all()


def test_a_solver_that_raises_returns_equal_shares() -> None:
    @with_fallback
    def fails(problem: ShareProblem) -> Solution:
        raise NoSolution("no basis")

    instance = problem([[1.0, 0.0], [1.0, 1.0]], [1, 2], scale=[1, 2])
    solution = fails(instance)
    assert solution.method == "equal"
    assert solution.alarm == "fails failed; using equal shares: NoSolution: no basis"
    assert solution.share.tolist() == [[1 / 3, 0.0], [0.25, 0.5]]
    assert find_violation(instance, solution) == ""


@pytest.mark.parametrize(
    ("share", "why"),
    [
        ([[0.6, 0.6]], "the shares of a job exceed 1"),
        ([[0.9, 0.0]], "shares exceed the capacity"),
        ([[-0.1, 0.0]], "negative shares"),
        ([[np.nan, 0.0]], "shares are not finite"),
    ],
)
def test_an_infeasible_solution_is_replaced(share: list[list[float]], why: str) -> None:
    @with_fallback
    def lies(problem: ShareProblem) -> Solution:
        return Solution(share=np.array(share), level=9.0, bound=9.0, prices=np.zeros(2), method="lies")

    solution = lies(problem([[1.0, 1.0]], [1, 4], scale=[2]))
    assert solution.method == "equal"
    assert solution.alarm == f"lies failed; using equal shares: {why}"


def program(**changes: np.ndarray) -> Lp:
    """max x, x <= 1."""
    columns = {
        "cost": np.ones(1),
        "lower": np.zeros(1),
        "upper": np.full(1, np.inf),
        "row_lower": np.full(1, -np.inf),
        "row_upper": np.ones(1),
        "start": np.array([0, 1]),
        "index": np.array([0]),
        "value": np.ones(1),
    }
    return Lp(**(columns | changes))


def test_highs_distinguishes_optimal_infeasible_and_unbounded() -> None:
    model = LpModel(program())
    for again in (model, LpModel(program(), model.basis())):
        answer = again.solve()
        assert answer is not None
        assert (answer.value, answer.x.tolist(), answer.dual.tolist()) == (1.0, [1.0], [1.0])
    assert LpModel(program(row_lower=np.full(1, 2.0), row_upper=np.full(1, 3.0), upper=np.ones(1))).solve() is None
    with pytest.raises(NoSolution, match="HiGHS ended with"):
        LpModel(program(row_upper=np.full(1, np.inf))).solve()
    with pytest.raises(NoSolution, match="rejected"):
        LpModel(program(index=np.array([7])))


def test_highs_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    max_min(problem([[1.0, 2.0]], [1, 1]))
    LpModel(program()).solve()
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_a_diverging_path_returns_an_optimal_vertex(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = problem([[4.0, 2.0], [1.0, 1.0], [9.0, 1.0]], [1.0, 1.0], scale=np.array([1.0, 2.0, 1.0]))
    pairs, together = np.array([[0, 2]]), np.array([[[3.0, 6.0], [1.0, 0.5]]])
    monkeypatch.setattr("levada.compat.gavel.solver.selfdual._MAX_STEPS", 0)
    monkeypatch.setattr("levada.compat.gavel.kernels.selfdual._MAX_STEPS", 0)
    water_fill = leximin_packed(instance, pairs, together)
    assert water_fill.levels is not None
    for solution, optimum, inside in (
        (max_min_interior(instance), max_min(instance), True),
        (total_interior(instance), total(instance), True),
        (leximin_interior(instance), leximin(instance), False),
        (max_min_packed_interior(instance, pairs, together), max_min_packed(instance, pairs, together), False),
        (leximin_packed_interior(instance, pairs, together, water_fill.levels), water_fill, False),
    ):
        # If there is no interior point to use instead, an alarm reports the vertex.
        assert (solution.alarm == "") is inside
        assert solution.level == pytest.approx(optimum.level, rel=1e-6)
