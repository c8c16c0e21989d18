"""`bench solve` solves what the policies solve, on the documented population."""

import numpy as np
import pytest

from levada.errors import BadInput
from levada.plugins import find_policy
from levada.policies.catalog import POLICIES
from levada.policies.gavel.finish_time_fairness import Account, FinishTimeState
from levada.sim.catalogue import catalogue
from levada.sim.solver_bench import BenchSettings, measure
from levada.sim.solver_bench.population import Population, capacity_of, replace_jobs
from levada.sim.solver_bench.programs import PROGRAMS, BenchModel
from levada.sim.solver_bench.whole_policies import PolicyBench


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_reaches_the_objective_of_its_policy(name: str) -> None:
    population = Population(catalogue(), 3, seed=1)
    jobs = population.draw(40)
    capacity = capacity_of(jobs, 3, load=2.0, gpus=None)
    model = BenchModel(PROGRAMS[name], population, jobs, capacity)
    # In rounds these two compute other shares than in `levada allocate`.
    options = {"shares": "leximin"} if name in ("max_min_fairness_perf", "max_min_fairness_packed") else {}
    whole = PolicyBench(find_policy(name, options).policy, population, jobs, capacity, 0)  # type: ignore[attr-defined]
    if name.startswith("finish_time"):
        # A new policy has no history; the population has one.
        instance = whole._instance
        accounts = {
            int(number): Account(isolated_s=float(elapsed), rate=0.0, steps=0.0)
            for number, elapsed in zip(instance.number, instance.elapsed, strict=True)
        }
        whole._state = FinishTimeState(accounts=accounts)
    assert model.solve() == pytest.approx(whole.solve(), rel=1e-6)
    rows = population.draw_leaving(40)
    new = population.draw(len(rows))
    after = replace_jobs(jobs, rows, new)
    model.change(after, rows, new)
    assert model.solve() == pytest.approx(BenchModel(PROGRAMS[name], population, after, capacity).solve(), rel=1e-6)


def test_shares_of_the_population() -> None:
    jobs = Population(catalogue(), 3, seed=0).draw(20_000)
    parts = [float((jobs.scale == size).mean()) for size in (1, 2, 4, 8)]
    assert parts == pytest.approx([0.70, 0.10, 0.15, 0.05], abs=0.01)
    assert float((jobs.weight == 5.0).mean()) == pytest.approx(0.2, abs=0.01)
    assert set(jobs.weight.tolist()) == {1.0, 5.0}
    assert (jobs.rate.max(axis=1) > 0).all()
    capacity = capacity_of(jobs, 3, load=4.0, gpus=None)
    assert jobs.scale.sum() / capacity.sum() == pytest.approx(4.0, rel=1e-3)
    assert capacity_of(jobs, 3, load=4.0, gpus=300).tolist() == [100.0, 100.0, 100.0]


def test_two_percent_are_replaced() -> None:
    population = Population(catalogue(), 2, seed=0)
    jobs = population.draw(500)
    rows = population.draw_leaving(500)
    assert len(rows) == len(set(rows.tolist())) == 10
    after = replace_jobs(jobs, rows, population.draw(10))
    stay = np.setdiff1d(np.arange(500), rows)
    assert np.array_equal(after.rate[stay], jobs.rate[stay])
    assert not np.array_equal(after.steps_left[rows], jobs.steps_left[rows])


@pytest.mark.parametrize("record", [record for record in POLICIES if record.shares], ids=lambda record: record.name)
def test_every_share_policy_is_measured(record: object) -> None:
    name: str = record.name  # type: ignore[attr-defined]
    (figures,) = measure(BenchSettings(policy=name, load=1.5), catalogue(), [12])
    assert (figures.policy, figures.jobs) == (name, 12)
    assert 1 <= figures.classes <= 12
    assert min(figures.build_s, figures.cold_s, figures.solve_s) > 0


@pytest.mark.parametrize(
    ("settings", "sizes", "fault"),
    [
        (BenchSettings(policy="fifo"), [4], "fifo solves nothing"),
        (BenchSettings(policy="max_min_fairnes"), [4], "max_min_fairness"),
        (BenchSettings(policy="max_min_fairness", types=4), [4], "--types must be from 1 to 3"),
        (BenchSettings(policy="max_min_fairness", load=0.0), [4], "--load must be a number above 0"),
        (BenchSettings(policy="max_min_fairness", gpus=2), [4], "--gpus must be at least 3"),
        (BenchSettings(policy="max_min_fairness"), [0], "--jobs must be at least 1"),
    ],
)
def test_bad_settings_are_rejected(settings: BenchSettings, sizes: list[int], fault: str) -> None:
    with pytest.raises(BadInput, match=fault):
        measure(settings, catalogue(), sizes)
