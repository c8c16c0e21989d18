"""Solve with the price method and with HiGHS, to compare both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from levada.solve import price
from levada.solve.problem import Solution


@contextmanager
def highs_only() -> Iterator[None]:
    """Disable the price method, so that HiGHS solves every problem."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("max_level", "leximin", "efficient", "least_ratio"):
            patch.setattr(price, name, lambda *_: None)
        yield


def solve_both_ways(solver: Callable[[], Solution]) -> tuple[Solution, Solution]:
    """The solutions of the price method (or its fallback to HiGHS) and of HiGHS."""
    solution = solver()
    with highs_only():
        return solution, solver()
