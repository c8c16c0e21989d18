"""Whatever keeps a GPU from a job, the job is told so, under every policy."""

from __future__ import annotations

import pytest

from levada.core import events as ev
from levada.core.cluster import Cluster, Device, Foreign, Node
from levada.core.job import Preemptible
from levada.core.queue import Queue
from levada.engine import Engine, Options
from levada.policies import registry
from tests.engine.chaos import Chaos

NODES = (Node.of("a", {"v100": 4}), Node.of("b", {"a100": 2}))


@pytest.mark.parametrize("how", ["cordoned", "foreign", "protected", "unhealthy"])
@pytest.mark.parametrize("policy", registry.names())
def test_a_job_whose_gpus_are_out_of_reach_waits_for_room(policy: str, how: str) -> None:
    chaos = Chaos(policy=policy, nodes=NODES)
    chaos.submit(gpu_types=("v100",), steps=1e9)
    chaos.calm()
    if how == "cordoned":
        chaos.cordon("b", True)
    elif how == "foreign":
        chaos.tell(ev.ForeignAppeared(at=chaos.now, foreign=(Foreign(id="f", node="b", milli=2000),)))
    elif how == "protected":
        chaos.submit(min=2, gpu_types=("a100",), preemptible=Preemptible.NEVER, steps=1e9)
    else:
        broken = tuple(Device(id=str(place), type="a100", healthy=False) for place in range(2))
        chaos.tell(ev.NodesChanged(at=chaos.now, nodes=(Node(name="b", devices=broken),)))
    chaos.calm()
    chaos.submit(gpu_types=("a100",), max=2, steps=1e9)
    chaos.calm()
    assert chaos.why(f"j{chaos.jobs_made}") == "capacity"


def with_queues(policy: str, *queues: Queue) -> Chaos:
    """Four GPUs and these queues."""
    chaos = Chaos(policy=policy, nodes=NODES[:1])
    chaos.engine = Engine(
        cluster=Cluster(nodes=NODES[:1]),
        policy=policy,
        queues=queues,
        options=Options(rate_limit_s=0.0, min_run_s=0.0, cooldown_s=0.0),
    )
    return chaos


def let_rounds_pass(chaos: Chaos) -> None:
    """Policies with rounds look at who has come at the next one."""
    for _ in range(4):
        chaos.calm()
        chaos.pass_time(400.0)
    chaos.calm()


@pytest.mark.parametrize("policy", registry.names())
def test_a_job_whose_queue_may_not_borrow_waits_for_its_queue(policy: str) -> None:
    chaos = with_queues(policy, Queue(name="x"), Queue(name="y", borrow=False))
    chaos.submit(min=4, queue="x", steps=1e9)
    chaos.submit(min=1, max=2, queue="y", steps=1e9)
    let_rounds_pass(chaos)
    assert chaos.why("j2") == "queue-share"


@pytest.mark.parametrize("policy", sorted(set(registry.names()) - {"dragon-compat"}))
def test_what_was_borrowed_is_given_back_to_a_guarantee(policy: str) -> None:
    # dragon-compat starts jobs as the original did, which knew no queues.
    chaos = with_queues(policy, Queue(name="x", guaranteed={"v100": 4}), Queue(name="y"))
    chaos.submit(min=1, queue="y", steps=1e9)
    let_rounds_pass(chaos)
    assert chaos.sizes() == {"j1": 1}
    chaos.submit(min=4, queue="x", steps=1e9)
    let_rounds_pass(chaos)
    assert chaos.sizes() == {"j1": 0, "j2": 4}
    assert chaos.why("j1") == "queue-share"
