"""A fork shares nothing that changes: what-if answers leave the engine as it was, to the byte."""

from __future__ import annotations

import random
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
from tests.engine.chaos import Chaos
from tests.engine.contents import changed, contents
from tests.engine.inspect import state_of
from tests.engine.machine import NODES, one_step

#: Long enough that jobs run, end, wait, are resized and report.
STEPS = 60


def profiles() -> Profiles:
    """Two measured workloads on two types, at two sizes, with a hole that a completion fills."""
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


def walked(policy: str, estimator: str, seed: int) -> tuple[Chaos, random.Random]:
    """An engine in the middle of a busy day."""
    rng = random.Random(f"{policy} {estimator} {seed}")
    chaos = Chaos(nodes=NODES)
    options = Options(rate_limit_s=0.0, min_run_s=0.0, cooldown_s=0.0, op_timeout_s=60.0)
    cluster = state_of(chaos.engine).world.inventory.node_values
    chaos.engine = Engine(policy=policy, options=options, perf=ESTIMATORS[estimator](), seed=seed)
    chaos.tell(ev.NodesAdded(at=0.0, nodes=tuple(cluster)))
    go_on(chaos, rng)
    return chaos, rng


def go_on(chaos: Chaos, rng: random.Random) -> None:
    for _ in range(STEPS):
        one_step(chaos, rng, (state_of(chaos.engine).policy_named,))
        running = [number for number in chaos.truth if number in chaos.engine.query.ids]
        if running and rng.random() < 0.3:
            number = rng.choice(running)
            slot = state_of(chaos.engine).world.table.find(np.array([number]))
            steps = state_of(chaos.engine).world.table.steps_done[slot] + rng.randint(1, 50)
            chaos.tell(ev.Progress(at=chaos.now, number=np.array([number]), steps=steps))


def twin_of(chaos: Chaos) -> Chaos:
    """The same world around a fork of the engine."""
    twin = Chaos.__new__(Chaos)
    copied = (list, dict, set)
    twin.__dict__.update({k: v.copy() if isinstance(v, copied) else v for k, v in chaos.__dict__.items()})
    twin.engine = chaos.engine.fork()
    return twin


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("policy", registry.names())
def test_what_a_fork_does_changes_nothing_of_its_parent(policy: str, estimator: str) -> None:
    chaos, rng = walked(policy, estimator, seed=1)
    before = contents(chaos.engine)
    twin = twin_of(chaos)
    assert not changed(before, contents(chaos.engine)), "making a fork changes nothing"
    go_on(twin, rng)
    forecast(chaos.engine.fork(), chaos.now, None)
    more = [Job(id=f"new{n}", submitted=chaos.now, min=1, max=4, steps=100.0, workload="w3") for n in range(3)]
    forecast(chaos.engine.fork(), chaos.now, None, jobs=more, policy="srjf")
    assert not changed(before, contents(chaos.engine))


@pytest.mark.parametrize("policy", registry.names())
def test_what_an_engine_does_changes_nothing_of_its_fork(policy: str) -> None:
    chaos, rng = walked(policy, "online", seed=2)
    fork = chaos.engine.fork()
    before = contents(fork)
    go_on(chaos, rng)
    assert not changed(before, contents(fork))


@pytest.mark.parametrize("policy", registry.names())
def test_a_fork_goes_on_as_its_parent_does(policy: str) -> None:
    """Also what is still to be learned is learned at the same moments, and so gives the same bytes."""
    chaos, rng = walked(policy, "online", seed=3)
    twin, same = twin_of(chaos), random.Random()
    same.setstate(rng.getstate())
    go_on(chaos, rng)
    go_on(twin, same)
    world, other = state_of(chaos.engine).world, state_of(twin.engine).world
    assert world.table.ints.tobytes() == other.table.ints.tobytes()
    assert world.table.floats.tobytes() == other.table.floats.tobytes()
    assert world.held.owner.tobytes() == other.held.owner.tobytes()


@pytest.mark.parametrize("policy", registry.names())
def test_a_policy_does_not_write_into_the_state_it_is_given(policy: str) -> None:
    chaos, _ = walked(policy, "online", seed=4)
    again = chaos.engine.fork().handle(ev.OptionsChanged(at=chaos.now, options={"rate_limit_s": 1.0}))
    questions = [*chaos.thoughts, *(command for command in again if isinstance(command, Decide))]
    states = [question.state for question in questions]
    before = contents([chaos.engine, states])
    for question in questions:
        question.policy.decide(question.snapshot, question.perf.copy(), question.state)
    assert not changed(before, contents([chaos.engine, states]))


def test_a_job_that_never_reports_has_no_measured_speed_after_a_forecast() -> None:
    chaos = Chaos(nodes=NODES)
    chaos.submit(min=1, max=1, workload="silent", steps=100.0)
    chaos.calm()
    for _ in range(3):
        forecast(chaos.engine.fork(), chaos.now, None)
        chaos.pass_time(30.0)
        chaos.tell(ev.JobsSubmitted(at=chaos.now, jobs=JobBatch.of([Job(id=f"x{chaos.now}", submitted=chaos.now)])))
        chaos.calm()
    state = state_of(chaos.engine)
    assert not state.beliefs().known(np.array([0]))[0]
    assert state.beliefs().points(state.world.workloads.find("silent")) == []


def test_a_reader_sees_lessons_that_the_engine_has_not_taken_yet() -> None:
    chaos = Chaos(nodes=NODES)
    chaos.submit(min=1, max=1, workload="w", steps=1e6)
    chaos.calm()
    for steps in (100.0, 200.0, 300.0):
        chaos.pass_time(10.0)
        chaos.tell(ev.Progress(at=chaos.now, number=np.array([0]), steps=np.array([steps])))
    state = state_of(chaos.engine)
    before = contents(state)
    assert state.beliefs().known(np.array([0]))[0]
    assert not changed(before, contents(state))


def test_lessons_do_not_pile_up_while_no_decision_is_due() -> None:
    chaos = Chaos(nodes=NODES)
    chaos.submit(min=1, max=1, workload="w", steps=1e9)
    chaos.calm()
    for step in range(3000):
        chaos.engine.handle(ev.Progress(at=chaos.now + step, number=np.array([0]), steps=np.array([float(step)])))
    assert len(state_of(chaos.engine).lessons) < 1100
