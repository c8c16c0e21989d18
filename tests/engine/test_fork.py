"""A fork shares no mutable state: what-if queries do not change the engine."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.commands import Decide
from levada.core.job import Job
from levada.engine import Engine, Options
from levada.live.forecast import forecast
from levada.perf import Completed, Estimator, JobSpeed, Online, ProfileModel, Profiles, TableModel
from levada.policies import registry
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld
from tests.engine.object_contents import contents, differences
from tests.engine.random_walk import NODES, one_step

#: Enough steps for jobs to run, end, wait, resize and report.
STEPS = 60


def profiles() -> Profiles:
    """Two measured workloads on two types, at two sizes, with one missing value."""
    alone = np.array([[[1.0, 1.8], [2.0, 3.5]], [[3.0, 5.0], [np.nan, 9.0]]])
    together = np.where(np.isnan(alone[:, None]), 0.0, 0.6 * alone[:, None]).repeat(2, axis=1).transpose(2, 3, 0, 1)
    return Profiles(workloads=("w1", "w2"), types=("v100", "a100"), sizes=(1, 2), alone=alone, together=together.copy())


ESTIMATORS: dict[str, Callable[[], Any]] = {
    "estimator": Estimator,
    "profiles": lambda: ProfileModel(profiles()),
    "completed": lambda: Completed(profiles(), np.random.default_rng(1)),
    "online": lambda: Online(ProfileModel(profiles())),
    "table": lambda: TableModel([JobSpeed(job=number, throughput={1: 2.0, 2: 3.0}) for number in range(60)]),
}


def walked(policy: str, estimator: str, seed: int) -> tuple[FaultyWorld, random.Random]:
    """An engine with jobs in all phases."""
    rng = random.Random(f"{policy} {estimator} {seed}")
    system = FaultyWorld(nodes=NODES)
    options = Options(rate_limit_s=0.0, min_run_s=0.0, cooldown_s=0.0, op_timeout_s=60.0)
    cluster = state_of(system.engine).world.inventory.node_values
    system.engine = Engine(policy=policy, options=options, perf=ESTIMATORS[estimator](), seed=seed)
    system.tell(ev.NodesAdded(at=0.0, nodes=tuple(cluster)))
    go_on(system, rng)
    return system, rng


def go_on(system: FaultyWorld, rng: random.Random) -> None:
    for _ in range(STEPS):
        one_step(system, rng, (state_of(system.engine).policy_named,))
        running = [number for number in system.truth if number in system.engine.query.ids]
        if running and rng.random() < 0.3:
            number = rng.choice(running)
            slot = state_of(system.engine).world.table.find(np.array([number]))
            steps = state_of(system.engine).world.table.steps_done[slot] + rng.randint(1, 50)
            system.tell(ev.Progress(at=system.now, number=np.array([number]), steps=steps))


def twin_of(system: FaultyWorld) -> FaultyWorld:
    """The same world around a fork of the engine."""
    twin = FaultyWorld.__new__(FaultyWorld)
    copied = (list, dict, set)
    twin.__dict__.update({k: v.copy() if isinstance(v, copied) else v for k, v in system.__dict__.items()})
    twin.engine = system.engine.fork()
    return twin


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("policy", registry.names())
def test_a_fork_does_not_change_its_parent(policy: str, estimator: str) -> None:
    system, rng = walked(policy, estimator, seed=1)
    before = contents(system.engine)
    twin = twin_of(system)
    assert not differences(before, contents(system.engine)), "a fork does not change the engine"
    go_on(twin, rng)
    forecast(system.engine.fork(), system.now, None)
    more = [Job(id=f"new{n}", submitted=system.now, min=1, max=4, steps=100.0, workload="w3") for n in range(3)]
    forecast(system.engine.fork(), system.now, None, jobs=more, policy="srjf")
    assert not differences(before, contents(system.engine))


@pytest.mark.parametrize("policy", registry.names())
def test_an_engine_does_not_change_its_fork(policy: str) -> None:
    system, rng = walked(policy, "online", seed=2)
    fork = system.engine.fork()
    before = contents(fork)
    go_on(system, rng)
    assert not differences(before, contents(fork))


@pytest.mark.parametrize("policy", registry.names())
def test_a_fork_behaves_like_its_parent(policy: str) -> None:
    """Pending observations are learned at the same moments, so the bytes are equal."""
    system, rng = walked(policy, "online", seed=3)
    twin, same = twin_of(system), random.Random()
    same.setstate(rng.getstate())
    go_on(system, rng)
    go_on(twin, same)
    world, other = state_of(system.engine).world, state_of(twin.engine).world
    assert world.table.ints.tobytes() == other.table.ints.tobytes()
    assert world.table.floats.tobytes() == other.table.floats.tobytes()
    assert world.held.owner.tobytes() == other.held.owner.tobytes()


@pytest.mark.parametrize("policy", registry.names())
def test_a_fork_is_freed_as_soon_as_it_is_dropped(policy: str) -> None:
    """A server forks in each turn and collects reference cycles only every few hours."""
    system, rng = walked(policy, "online", seed=5)
    gc.disable()
    try:
        twin = twin_of(system)
        go_on(twin, rng)
        table = weakref.ref(state_of(twin.engine).world.table)
        del twin
        assert table() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("policy", registry.names())
def test_a_policy_does_not_modify_its_input_state(policy: str) -> None:
    system, _ = walked(policy, "online", seed=4)
    again = system.engine.fork().handle(ev.OptionsChanged(at=system.now, options={"rate_limit_s": 1.0}))
    questions = [*system.thoughts, *(command for command in again if isinstance(command, Decide))]
    states = [question.state for question in questions]
    before = contents([system.engine, states])
    for question in questions:
        question.policy.decide(question.snapshot, question.perf.copy(), question.state)
    assert not differences(before, contents([system.engine, states]))


def test_a_job_that_never_reports_has_no_measured_speed_after_a_forecast() -> None:
    system = FaultyWorld(nodes=NODES)
    system.submit(min=1, max=1, workload="silent", steps=100.0)
    system.calm()
    for _ in range(3):
        forecast(system.engine.fork(), system.now, None)
        system.pass_time(30.0)
        system.tell(ev.JobsSubmitted(at=system.now, jobs=JobBatch.of([Job(id=f"x{system.now}", submitted=system.now)])))
        system.calm()
    state = state_of(system.engine)
    assert not state.beliefs().known(np.array([0]))[0]
    assert state.beliefs().points(state.world.workloads.find("silent")) == []


def test_a_query_includes_observations_that_are_not_learned_yet() -> None:
    system = FaultyWorld(nodes=NODES)
    system.submit(min=1, max=1, workload="w", steps=1e6)
    system.calm()
    for steps in (100.0, 200.0, 300.0):
        system.pass_time(10.0)
        system.tell(ev.Progress(at=system.now, number=np.array([0]), steps=np.array([steps])))
    state = state_of(system.engine)
    before = contents(state)
    assert state.beliefs().known(np.array([0]))[0]
    assert not differences(before, contents(state))


def test_observations_do_not_accumulate_without_decisions() -> None:
    system = FaultyWorld(nodes=NODES)
    system.submit(min=1, max=1, workload="w", steps=1e9)
    system.calm()
    for step in range(3000):
        system.engine.handle(ev.Progress(at=system.now + step, number=np.array([0]), steps=np.array([float(step)])))
    assert len(state_of(system.engine).lessons) < 1100
