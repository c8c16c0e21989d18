"""No order of tasks, threads and timers makes the server start a worker twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interleavings.scenario import SeedRunner

#: 2,000 seeds, in parts for pytest-xdist.
_PARTS, _SEEDS = 40, 50


@pytest.fixture(scope="module")
def runner() -> Iterator[SeedRunner]:
    made = SeedRunner()
    yield made
    made.close()


@pytest.mark.parametrize("part", range(_PARTS))
def test_no_order_starts_anything_twice(part: int, runner: SeedRunner) -> None:
    """Kills, stops and freezes of the server and ends of jobs at any moment, with delayed and repeated reports."""
    for seed in range(part * _SEEDS, (part + 1) * _SEEDS):
        outcome = runner.run_seed(seed)
        assert outcome.faults == [], f"seed {seed}:\n" + "\n".join(outcome.log)


def test_a_seed_repeats_its_order(runner: SeedRunner) -> None:
    first: list[str] = []
    second: list[str] = []
    other: list[str] = []
    runner.run_seed(3, first)
    runner.run_seed(3, second)
    runner.run_seed(4, other)
    assert first == second
    assert len(first) > 100
    assert first != other
