"""What `bench solve` times is what the policies solve, on the crowd that it says it draws."""

import numpy as np
import pytest

from levada.errors import BadInput
from levada.plugins import find_policy
from levada.policies.gavel.finish_time_fairness import Account, FinishTimeState
from levada.policies.table import POLICIES
from levada.sim.catalogue import catalogue
from levada.sim.solving import Asked, measure
from levada.sim.solving.crowd import Crowd, capacity_of, replaced
from levada.sim.solving.programs import PROGRAMS, Model
from levada.sim.solving.whole import Asked as Whole


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_reaches_what_its_policy_reaches(name: str) -> None:
    crowd = Crowd(catalogue(), 3, seed=1)
    jobs = crowd.draw(40)
    capacity = capacity_of(jobs, 3, load=2.0, gpus=None)
    model = Model(PROGRAMS[name], crowd, jobs, capacity)
    # Rounds ask these two for other shares than `levada allocate` does.
    fair = {"shares": "leximin"} if name in ("max_min_fairness_perf", "max_min_fairness_packed") else {}
    whole = Whole(find_policy(name, fair).policy, crowd, jobs, capacity, 0)  # type: ignore[attr-defined]
    if name.startswith("finish_time"):
        # Whoever is asked for the first time knows nothing of the past; the crowd has one.
        instance = whole._instance
        accounts = {
            int(number): Account(isolated_s=float(elapsed), rate=0.0, steps=0.0)
            for number, elapsed in zip(instance.number, instance.elapsed, strict=True)
        }
        whole._state = FinishTimeState(accounts=accounts)
    assert model.solve() == pytest.approx(whole.solve(), rel=1e-6)
    rows = crowd.leavers(40)
    new = crowd.draw(len(rows))
    after = replaced(jobs, rows, new)
    model.change(after, rows, new)
    assert model.solve() == pytest.approx(Model(PROGRAMS[name], crowd, after, capacity).solve(), rel=1e-6)


def test_the_crowd_is_mixed_as_it_should_be() -> None:
    jobs = Crowd(catalogue(), 3, seed=0).draw(20_000)
    parts = [float((jobs.scale == size).mean()) for size in (1, 2, 4, 8)]
    assert parts == pytest.approx([0.70, 0.10, 0.15, 0.05], abs=0.01)
    assert float((jobs.weight == 5.0).mean()) == pytest.approx(0.2, abs=0.01)
    assert set(jobs.weight.tolist()) == {1.0, 5.0}
    assert (jobs.rate.max(axis=1) > 0).all()
    capacity = capacity_of(jobs, 3, load=4.0, gpus=None)
    assert jobs.scale.sum() / capacity.sum() == pytest.approx(4.0, rel=1e-3)
    assert capacity_of(jobs, 3, load=4.0, gpus=300).tolist() == [100.0, 100.0, 100.0]


def test_two_in_a_hundred_are_replaced() -> None:
    crowd = Crowd(catalogue(), 2, seed=0)
    jobs = crowd.draw(500)
    rows = crowd.leavers(500)
    assert len(rows) == len(set(rows.tolist())) == 10
    after = replaced(jobs, rows, crowd.draw(10))
    stay = np.setdiff1d(np.arange(500), rows)
    assert np.array_equal(after.rate[stay], jobs.rate[stay])
    assert not np.array_equal(after.steps_left[rows], jobs.steps_left[rows])


@pytest.mark.parametrize("record", [record for record in POLICIES if record.shares], ids=lambda record: record.name)
def test_every_share_policy_is_measured(record: object) -> None:
    name: str = record.name  # type: ignore[attr-defined]
    (figures,) = measure(Asked(policy=name, load=1.5), catalogue(), [12])
    assert (figures.policy, figures.jobs) == (name, 12)
    assert 1 <= figures.classes <= 12
    assert min(figures.build_s, figures.cold_s, figures.solve_s) > 0


@pytest.mark.parametrize(
    ("asked", "sizes", "fault"),
    [
        (Asked(policy="fifo"), [4], "fifo solves nothing"),
        (Asked(policy="max_min_fairnes"), [4], "max_min_fairness"),
        (Asked(policy="max_min_fairness", types=4), [4], "--types must be from 1 to 3"),
        (Asked(policy="max_min_fairness", load=0.0), [4], "--load must be a number above 0"),
        (Asked(policy="max_min_fairness", gpus=2), [4], "--gpus must be at least 3"),
        (Asked(policy="max_min_fairness"), [0], "--jobs must be at least 1"),
    ],
)
def test_what_cannot_be_measured(asked: Asked, sizes: list[int], fault: str) -> None:
    with pytest.raises(BadInput, match=fault):
        measure(asked, catalogue(), sizes)
