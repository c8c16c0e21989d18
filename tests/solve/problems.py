"""Strategies: problems with ties, zeros, extreme weights, empty types and jobs that cannot run."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from levada.solve.problem import ShareProblem, problem

whole_rates = st.sampled_from([0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 5.0, 8.0])
#: A limited ratio: the error of one program per job is its tolerance times this ratio.
any_rates = st.floats(0.25, 16.0) | st.just(0.0)
usual_weights = st.sampled_from([1.0, 1.0, 1.0, 2.0, 5.0])
any_weights = st.sampled_from([1e-3, 0.1, 1.0, 1.0, 5.0, 1e3])
capacities = st.sampled_from([0.0, 1.0, 2.0, 3.0, 8.0, 64.0])


@st.composite
def problems(
    draw: st.DrawFn, most_jobs: int = 7, most_types: int = 4, weights: st.SearchStrategy[float] = usual_weights
) -> ShareProblem:
    """A problem with groups of equal jobs."""
    types = draw(st.integers(1, most_types))
    rates = draw(st.sampled_from([whole_rates, any_rates]))
    kinds = draw(
        st.lists(
            st.tuples(st.lists(rates, min_size=types, max_size=types), st.sampled_from([1.0, 1.0, 2.0, 4.0]), weights),
            min_size=1,
            max_size=4,
        )
    )
    jobs = draw(st.lists(st.sampled_from(kinds), max_size=most_jobs))
    capacity = draw(st.lists(capacities, min_size=types, max_size=types))
    return problem(
        np.array([rate for rate, _, _ in jobs]).reshape(-1, types),
        capacity,
        scale=[scale for _, scale, _ in jobs],
        weight=[weight for _, _, weight in jobs],
    )
