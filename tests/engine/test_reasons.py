"""Every policy reports the right reason for a pending job."""

from __future__ import annotations

import pytest

from levada.core import events as ev
from levada.core.cluster import Cluster, Device, Foreign, Node
from levada.core.job import Preemptible
from levada.core.queue import Queue
from levada.engine import Engine, Options
from levada.policies import registry
from tests.engine.faulty_world import FaultyWorld

NODES = (Node.of("a", {"v100": 4}), Node.of("b", {"a100": 2}))


@pytest.mark.parametrize("how", ["cordoned", "foreign", "protected", "unhealthy"])
@pytest.mark.parametrize("policy", registry.names())
def test_a_job_whose_gpus_are_unavailable_waits_for_capacity(policy: str, how: str) -> None:
    system = FaultyWorld(policy=policy, nodes=NODES)
    system.submit(gpu_types=("v100",), steps=1e9)
    system.calm()
    if how == "cordoned":
        system.cordon("b", True)
    elif how == "foreign":
        system.tell(ev.ForeignAppeared(at=system.now, foreign=(Foreign(id="f", node="b", milli=2000),)))
    elif how == "protected":
        system.submit(min=2, gpu_types=("a100",), preemptible=Preemptible.NEVER, steps=1e9)
    else:
        broken = tuple(Device(id=str(place), type="a100", healthy=False) for place in range(2))
        system.tell(ev.NodesChanged(at=system.now, nodes=(Node(name="b", devices=broken),)))
    system.calm()
    system.submit(gpu_types=("a100",), max=2, steps=1e9)
    system.calm()
    assert system.why(f"j{system.jobs_made}") == "capacity"


def with_queues(policy: str, *queues: Queue) -> FaultyWorld:
    """A world with four GPUs and these queues."""
    system = FaultyWorld(policy=policy, nodes=NODES[:1])
    system.engine = Engine(
        cluster=Cluster(nodes=NODES[:1]),
        policy=policy,
        queues=queues,
        options=Options(rate_limit_s=0.0, min_run_s=0.0, cooldown_s=0.0),
    )
    return system


def let_rounds_pass(system: FaultyWorld) -> None:
    """Advance to the next round, in which policies with rounds see new jobs."""
    for _ in range(4):
        system.calm()
        system.pass_time(400.0)
    system.calm()


@pytest.mark.parametrize("policy", registry.names())
def test_a_job_whose_queue_may_not_borrow_waits_for_its_queue(policy: str) -> None:
    system = with_queues(policy, Queue(name="x"), Queue(name="y", borrow=False))
    system.submit(min=4, queue="x", steps=1e9)
    system.submit(min=1, max=2, queue="y", steps=1e9)
    let_rounds_pass(system)
    assert system.why("j2") == "queue-share"


@pytest.mark.parametrize("policy", sorted(set(registry.names()) - {"dragon-compat"}))
def test_borrowed_gpus_are_reclaimed_for_a_guarantee(policy: str) -> None:
    # dragon-compat starts jobs like the original, which has no queues.
    system = with_queues(policy, Queue(name="x", guaranteed={"v100": 4}), Queue(name="y"))
    system.submit(min=1, queue="y", steps=1e9)
    let_rounds_pass(system)
    assert system.sizes() == {"j1": 1}
    system.submit(min=4, queue="x", steps=1e9)
    let_rounds_pass(system)
    assert system.sizes() == {"j1": 0, "j2": 4}
    assert system.why("j1") == "queue-share"
