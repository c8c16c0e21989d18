"""Solve with one method, to compare it with the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from levada.solve import price
from levada.solve.problem import Solution


@contextmanager
def highs_only() -> Iterator[None]:
    """No price method proves anything while this is entered, so that HiGHS is asked."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("max_level", "leximin", "efficient", "least_ratio"):
            patch.setattr(price, name, lambda *_: None)
        yield


def by_both(solver: Callable[[], Solution]) -> tuple[Solution, Solution]:
    """What prices find (or HiGHS in their place), and what HiGHS finds."""
    found = solver()
    with highs_only():
        return found, solver()
