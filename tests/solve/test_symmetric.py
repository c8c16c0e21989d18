"""The algebra of cones: what it says of itself, on points inside them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.core.types import Floats
from levada.solve.highs import NoAnswer
from levada.solve.symmetric import Rows, Scaling, depth, fall, level_weight, product, quotient, unit, unweighted

seeds = st.integers(0, 10_000)


def inside(rng: np.random.Generator, rows: int = 4) -> Rows:
    return anywhere(rng, rows)._replace(
        x=rng.uniform(0.1, 2.0, (rows, 3)),
        cap=rng.uniform(0.1, 2.0, 3),
        time=rng.uniform(0.1, 2.0, rows),
        level=rng.uniform(0.1, 2.0, (1, rows)),
        cone=cones(rng, rows),
    )


def cones(rng: np.random.Generator, rows: int) -> Floats:
    found = rng.normal(size=(3, rows))
    found[0] = np.hypot(found[1], found[2]) + rng.uniform(0.1, 2.0, rows)
    return found


def anywhere(rng: np.random.Generator, rows: int = 4) -> Rows:
    return Rows(*(rng.normal(size=shape) for shape in ((rows, 3), 3, rows, (1, rows), (3, rows))))


def same(a: Rows, b: Rows) -> None:
    for mine, theirs in zip(a, b, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-8, abs=1e-9)


@given(seeds)
def test_scaling_makes_both_points_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    s, z = inside(rng), inside(rng)
    scale = Scaling(s, z)
    same(scale(z), scale.ends)
    same(scale(scale(z)), s)
    same(unweighted(z, scale.weight(0.0)), s)


@given(seeds)
def test_what_is_divided_is_had_again_by_multiplying(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = anywhere(rng), inside(rng)
    same(product(quotient(a, b), b), a)
    same(product(a, unit(a)), a)


@given(seeds)
def test_a_step_ends_at_the_wall(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ends, step = cones(rng, 20), rng.normal(size=(3, 20))
    rate = fall(ends, step)
    goes = rate > 1e-6
    reached = ends[:, goes] + step[:, goes] / rate[goes]
    assert depth(reached) == pytest.approx(0.0, abs=1e-6 * (1 + np.abs(reached).max(initial=0.0)))
    assert (depth(ends[:, ~goes] + 1e3 * step[:, ~goes]) > -1e-1).all()


def test_where_both_points_are_the_unit_nothing_is_scaled() -> None:
    one = unit(anywhere(np.random.default_rng(0)))
    same(Scaling(one, one)(one), one)
    same(unweighted(one, level_weight(one, 0.0)), one)


def test_a_point_outside_has_no_scaling() -> None:
    one = unit(anywhere(np.random.default_rng(0)))
    with pytest.raises(NoAnswer):
        Scaling(one, one.times(-1.0)._replace(x=one.x, cap=one.cap, time=one.time, level=one.level))
