"""Whatever goes wrong, shares come out that can be run, and an alarm that says what it was."""

from __future__ import annotations

import numpy as np
import pytest

from levada.solve.finish_time import finish_time, makespan
from levada.solve.highs import Lp, Model, NoAnswer
from levada.solve.interior import (
    finish_time_interior,
    leximin_interior,
    makespan_interior,
    max_min_interior,
    total_interior,
)
from levada.solve.interior_packed import leximin_packed_interior, max_min_packed_interior
from levada.solve.leximin import hierarchical, leximin
from levada.solve.max_min import max_min
from levada.solve.nash import nash, strategy_proof
from levada.solve.packed import (
    finish_time_packed,
    hierarchical_packed,
    leximin_packed,
    makespan_packed,
    max_min_packed,
    total_packed,
)
from levada.solve.problem import Problem, Solution, problem
from levada.solve.safe import broken, safe
from levada.solve.total import total

NO_PAIRS = np.zeros((0, 2), int)


def every_solver(asked: Problem) -> dict[str, Solution]:
    """The answers of all."""
    jobs, types = asked.jobs, len(asked.capacity)
    ones, rates = np.ones(jobs), np.zeros((0, types, 2))
    return {
        "max_min": max_min(asked),
        "leximin": leximin(asked),
        "hierarchical": hierarchical(asked, np.ones(3)),
        "finish_time": finish_time(asked, ones, ones, ones),
        "makespan": makespan(asked, ones),
        "total": total(asked, np.ones(types), 0.0 * ones),
        "nash": nash(asked),
        "strategy_proof": strategy_proof(asked),
        "max_min_packed": max_min_packed(asked, NO_PAIRS, rates),
        "leximin_packed": leximin_packed(asked, NO_PAIRS, rates),
        "hierarchical_packed": hierarchical_packed(asked, NO_PAIRS, rates, np.ones(3)),
        "finish_time_packed": finish_time_packed(asked, NO_PAIRS, rates, ones, ones, ones),
        "makespan_packed": makespan_packed(asked, NO_PAIRS, rates, ones),
        "total_packed": total_packed(asked, NO_PAIRS, rates),
        "max_min_interior": max_min_interior(asked),
        "leximin_interior": leximin_interior(asked),
        "total_interior": total_interior(asked),
        "makespan_interior": makespan_interior(asked, ones),
        "finish_time_interior": finish_time_interior(asked, ones, ones, ones),
        "max_min_packed_interior": max_min_packed_interior(asked, NO_PAIRS, rates),
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
@pytest.mark.parametrize("asked", EDGES.values(), ids=EDGES)
def test_edges_are_ordinary_problems(asked: Problem) -> None:
    for name, solution in every_solver(asked).items():
        assert (name, solution.alarm, broken(asked, solution)) == (name, "", "")
        assert solution.share.shape == (asked.jobs, len(asked.capacity))
        if np.isfinite(solution.bound):
            assert (name, solution.level) == (name, pytest.approx(solution.bound, rel=1e-6, abs=1e-9))
        idle = (np.where(asked.capacity > 0, asked.rate, 0.0) == 0).all(axis=1)
        assert not solution.share[idle].any()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (problem([[np.nan, 1.0], [1.0, 1.0]], [1, 1]), "1 rates are no numbers from 0 upwards: taken as 0"),
        (problem([[-1.0, 1.0], [1.0, np.inf]], [1, 1]), "2 rates are no numbers from 0 upwards: taken as 0"),
        (problem([[1.0, 1.0]], [1, np.nan]), "1 capacities are no numbers from 0 upwards: taken as 0"),
        (problem([[1.0, 1.0]], [1, 1], weight=[0.0]), "1 weights or scales are not above 0: these jobs get nothing"),
    ],
)
def test_numbers_that_cannot_be_are_left_out_and_told(asked: Problem, said: str) -> None:
    for solution in every_solver(asked).values():
        assert solution.alarm == said
        assert np.isfinite(solution.share).all()


def test_a_solver_that_raises_ends_in_an_equal_share() -> None:
    @safe
    def fails(problem: Problem) -> Solution:
        raise NoAnswer("the moon is full")

    asked = problem([[1.0, 0.0], [1.0, 1.0]], [1, 2], scale=[1, 2])
    found = fails(asked)
    assert found.how == "equal"
    assert found.alarm == "fails failed, so all share equally: NoAnswer: the moon is full"
    assert found.share.tolist() == [[1 / 3, 0.0], [0.25, 0.5]]
    assert broken(asked, found) == ""


@pytest.mark.parametrize(
    ("share", "why"),
    [
        ([[0.6, 0.6]], "a job got more than all of the time"),
        ([[0.9, 0.0]], "more GPUs given than there are"),
        ([[-0.1, 0.0]], "shares below 0"),
        ([[np.nan, 0.0]], "shares are no numbers"),
    ],
)
def test_an_answer_that_cannot_be_run_is_not_given(share: list[list[float]], why: str) -> None:
    @safe
    def lies(problem: Problem) -> Solution:
        return Solution(share=np.array(share), level=9.0, bound=9.0, prices=np.zeros(2), how="lies")

    found = lies(problem([[1.0, 1.0]], [1, 4], scale=[2]))
    assert found.how == "equal"
    assert found.alarm == f"lies failed, so all share equally: {why}"


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


def test_highs_tells_an_optimum_from_none_and_from_no_end() -> None:
    model = Model(program())
    for again in (model, Model(program(), model.basis())):
        answer = again.solve()
        assert answer is not None
        assert (answer.value, answer.x.tolist(), answer.dual.tolist()) == (1.0, [1.0], [1.0])
    assert Model(program(row_lower=np.full(1, 2.0), row_upper=np.full(1, 3.0), upper=np.ones(1))).solve() is None
    with pytest.raises(NoAnswer, match="HiGHS ended with"):
        Model(program(row_upper=np.full(1, np.inf))).solve()
    with pytest.raises(NoAnswer, match="does not take"):
        Model(program(index=np.array([7])))


def test_highs_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    max_min(problem([[1.0, 2.0]], [1, 1]))
    Model(program()).solve()
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_a_path_that_ends_nowhere_costs_no_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = problem([[4.0, 2.0], [1.0, 1.0], [9.0, 1.0]], [1.0, 1.0], scale=np.array([1.0, 2.0, 1.0]))
    pairs, together = np.array([[0, 2]]), np.array([[[3.0, 6.0], [1.0, 0.5]]])
    monkeypatch.setattr("levada.solve.selfdual._STEPS", 0)
    monkeypatch.setattr("levada.kernels.selfdual._STEPS", 0)
    filled = leximin_packed(asked, pairs, together)
    assert filled.levels is not None
    for found, best, inside in (
        (max_min_interior(asked), max_min(asked), True),
        (total_interior(asked), total(asked), True),
        (leximin_interior(asked), leximin(asked), False),
        (max_min_packed_interior(asked, pairs, together), max_min_packed(asked, pairs, together), False),
        (leximin_packed_interior(asked, pairs, together, filled.levels), filled, False),
    ):
        # Where there is no middle to take instead, a corner is told of.
        assert (found.alarm == "") is inside
        assert found.level == pytest.approx(best.level, rel=1e-6)
