"""Algebra of symmetric cones: identities at interior points."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.compat.gavel.solver.symmetric import (
    Rows,
    Scaling,
    depth,
    inverse_step,
    level_weight,
    product,
    quotient,
    unit,
    unweighted,
)
from levada.core.types import Floats
from levada.solve.highs import NoSolution

seeds = st.integers(0, 10_000)


def interior_rows(rng: np.random.Generator, rows: int = 4) -> Rows:
    return random_rows(rng, rows)._replace(
        x=rng.uniform(0.1, 2.0, (rows, 3)),
        cap=rng.uniform(0.1, 2.0, 3),
        time=rng.uniform(0.1, 2.0, rows),
        level=rng.uniform(0.1, 2.0, (1, rows)),
        cone=cones(rng, rows),
    )


def cones(rng: np.random.Generator, rows: int) -> Floats:
    points = rng.normal(size=(3, rows))
    points[0] = np.hypot(points[1], points[2]) + rng.uniform(0.1, 2.0, rows)
    return points


def random_rows(rng: np.random.Generator, rows: int = 4) -> Rows:
    return Rows(*(rng.normal(size=shape) for shape in ((rows, 3), 3, rows, (1, rows), (3, rows))))


def assert_equal(a: Rows, b: Rows) -> None:
    for left, right in zip(a, b, strict=True):
        assert left == pytest.approx(right, rel=1e-8, abs=1e-9)


@given(seeds)
def test_scaling_maps_both_points_to_the_same_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    s, z = interior_rows(rng), interior_rows(rng)
    scale = Scaling(s, z)
    assert_equal(scale(z), scale.lam)
    assert_equal(scale(scale(z)), s)
    assert_equal(unweighted(z, scale.weight(0.0)), s)


@given(seeds)
def test_product_inverts_quotient(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = random_rows(rng), interior_rows(rng)
    assert_equal(product(quotient(a, b), b), a)
    assert_equal(product(a, unit(a)), a)


@given(seeds)
def test_a_step_of_maximal_length_ends_on_the_boundary(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lam, step = cones(rng, 20), rng.normal(size=(3, 20))
    rate = inverse_step(lam, step)
    leaves_cone = rate > 1e-6
    reached = lam[:, leaves_cone] + step[:, leaves_cone] / rate[leaves_cone]
    assert depth(reached) == pytest.approx(0.0, abs=1e-6 * (1 + np.abs(reached).max(initial=0.0)))
    assert (depth(lam[:, ~leaves_cone] + 1e3 * step[:, ~leaves_cone]) > -1e-1).all()


def test_scaling_of_two_units_is_the_identity() -> None:
    one = unit(random_rows(np.random.default_rng(0)))
    assert_equal(Scaling(one, one)(one), one)
    assert_equal(unweighted(one, level_weight(one, 0.0)), one)


def test_a_point_outside_the_cone_has_no_scaling() -> None:
    one = unit(random_rows(np.random.default_rng(0)))
    with pytest.raises(NoSolution):
        Scaling(one, one.times(-1.0)._replace(x=one.x, cap=one.cap, time=one.time, level=one.level))
