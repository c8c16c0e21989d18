"""Every registered policy through engine and placement: no rejected decision.

The engine asks I1 to I5 and I12 to I14 of each decision before it counts, `Chaos` I1, I4, I6, I9, I11 and I12 of the state
after each event, and what really runs is compared with what the engine holds. So a law that a policy breaks shows here
as a rejection or as a broken state, whatever kind of job or cluster brought it about.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levada.core import codec
from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.cluster import Node
from levada.core.commands import Decide
from levada.core.job import Job, ParameterServers, Preemptible
from levada.core.queue import Queue
from levada.engine import run_policy
from levada.policies import registry
from tests.engine.faulty_world import FaultyWorld

QUEUES = (
    Queue(name="x", guaranteed={"v100": 2}, limit={"v100": 5, "a100": 3}),
    Queue(name="y", weight=2.0, parent="x", limit={"v100": 3}),
    Queue(name="z", guaranteed={"a100": 2}, borrow=False),
)


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Node, ...]:
    shapes = st.fixed_dictionaries({}, optional={"v100": st.integers(1, 8), "a100": st.integers(1, 4)})
    return tuple(
        Node.of(f"n{i}", draw(shapes), gpu_memory=16384, cpu=draw(st.sampled_from([None, 8000, 32000])))
        for i in range(draw(st.integers(1, 4)))
    )


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    created = []
    for i in range(draw(st.integers(1, 8))):
        low, step = draw(st.integers(1, 4)), draw(st.sampled_from([1, 1, 2]))
        high = low + step * draw(st.integers(0, 4))
        servers = draw(st.sampled_from([None, None, ParameterServers(replicas=1, cpu=1000, memory=512)]))
        created.append(
            Job(
                id=f"j{i}",
                submitted=0.0,
                min=low,
                max=high,
                step=step,
                desired=draw(st.integers(low, high)),
                milli=draw(st.sampled_from([1000, 1000, 1000, 2000, 500, 334, 0])),
                gpu_memory=draw(st.sampled_from([0, 4096, 9000])),
                cpu=draw(st.sampled_from([0, 1000, 3000])),
                gpu_types=draw(st.sampled_from([(), ("v100",), ("a100", "v100"), ("k80", "a100")])),
                servers=servers,
                queue=draw(st.sampled_from(["default", "x", "y", "z"])),
                steps=draw(st.sampled_from([None, 10.0, 1000.0])),
                preemptible=draw(st.sampled_from(Preemptible.numbers())),
                resizes_in_place=draw(st.booleans()),
                workload=draw(st.sampled_from(["a", "b"])),
            )
        )
    return created


def through_a_day(policy: str, cluster: tuple[Node, ...], wanted: list[Job], queues: tuple[Queue, ...]) -> FaultyWorld:
    """Jobs come in two waves, a serving pod comes and goes, some jobs finish."""
    system = FaultyWorld(policy=policy, nodes=cluster)
    system.set_queues(queues)
    half = len(wanted) // 2
    for wave in (wanted[:half], wanted[half:]):
        if wave:
            system.tell(ev.JobsSubmitted(at=system.now, jobs=JobBatch.of(wave)))
        system.calm()
        for _ in range(3):
            system.pass_time(35.0)
            system.calm()
    system.foreign("web", milli=1000, serving=True, cpu=500)
    system.calm()
    system.pass_time(65.0)
    system.foreign_gone("web")
    system.calm()
    for number in sorted(system.truth)[:2]:
        if number not in system.truth:
            continue  # stopped for others meanwhile
        system.finish(number)
        system.pass_time(70.0)
        system.calm()
    return system


@pytest.mark.parametrize("queues", [(), QUEUES], ids=["alone", "queued"])
@pytest.mark.parametrize("policy", registry.names())
@given(cluster=nodes(), wanted=jobs())
@settings(max_examples=6, deadline=None)
def test_no_decision_of_a_policy_breaks_a_rule(
    policy: str, queues: tuple[Queue, ...], cluster: tuple[Node, ...], wanted: list[Job]
) -> None:
    system = through_a_day(policy, cluster, wanted, queues)
    assert system.engine.query.last_rejection == ""
    assert all(system.why(system.engine.query.ids[n]) != "rejected" for n in system.active())


@pytest.mark.parametrize("policy", registry.names())
@given(cluster=nodes(), wanted=jobs())
@settings(max_examples=5, deadline=None)
def test_the_same_day_twice_is_the_same_to_the_byte(policy: str, cluster: tuple[Node, ...], wanted: list[Job]) -> None:
    def story() -> list[bytes]:
        system = FaultyWorld(policy=policy, nodes=cluster)
        answers: list[bytes] = []
        commands = system.engine.handle(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of(wanted)))
        for at in (0.0, 40.0, 80.0):
            commands += system.engine.handle(ev.Tick(at=at))
            for command in [command for command in commands if isinstance(command, Decide)]:
                decided: Any = run_policy(command, at)
                answers.append(codec.encode(ev.Decided(at=at, revision=decided.revision, decision=decided.decision)))
                commands = system.engine.handle(decided)
        return answers

    assert story() == story()
