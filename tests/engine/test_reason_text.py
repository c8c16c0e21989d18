"""Reason texts of lists, events and the API: the cause with its numbers."""

from __future__ import annotations

from levada.core.cluster import Node
from levada.core.job import Preemptible
from levada.core.queue import Queue
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld, faulty_world

MIXED = (Node.of("a", {"a100": 1}), Node.of("v", {"v100": 2}))


def text(system: FaultyWorld, name: str) -> str:
    """The reason text of a job."""
    return system.engine.query.reason(name).text


def full(*nodes: Node, **fields: object) -> FaultyWorld:
    """A settled world with these nodes and a job."""
    system = FaultyWorld(nodes=nodes)
    system.submit(**fields)
    system.calm()
    return system


def test_the_capacity_reason_names_needed_and_free_gpus() -> None:
    system = full(*MIXED, min=1, gpu_types=("v100",))
    system.submit(min=2)
    system.submit(min=2, gpu_types=("v100", "a100"))
    system.calm()
    assert text(system, "j1") == ""
    assert text(system, "j2") == "Needs 2 GPUs; 1 a100 free, 1 v100 free."
    assert text(system, "j3") == "Needs 2 GPUs; 1 v100 free, 1 a100 free."
    system.finish(0)
    system.think()
    assert text(system, "j2") == "Starting 2 workers."
    assert text(system, "j3") == "Needs 2 GPUs; 0 v100 free, 1 a100 free."


def test_the_capacity_reason_of_a_cpu_job_names_cores() -> None:
    system = full(Node.of("n", {}, cpu=4000), milli=0, cpu=3000)
    system.submit(milli=0, cpu=2000)
    system.calm()
    assert text(system, "j2") == "Needs 2 cores; 1 free."


def test_the_capacity_reason_reports_free_gpus_without_free_cores() -> None:
    system = full(Node.of("n", {"v100": 4}, cpu=4000), cpu=3000)
    system.submit(cpu=2000)
    system.calm()
    assert (
        text(system, "j2")
        == "Fragmented: needs 1 worker of 1 GPU with 2 cores, which the nodes cannot hold now; 3 v100 free."
    )


def test_the_fragmentation_reason_says_that_no_node_fits() -> None:
    system = full(Node.of("n", {"v100": 3}), Node.of("m", {"v100": 3}), milli=2000, preemptible=Preemptible.NEVER)
    system.submit(milli=2000, min=2)
    system.calm()
    assert text(system, "j2") == "Fragmented: needs 2 workers of 2 GPUs, which the nodes cannot hold now; 4 v100 free."


def test_the_reason_of_a_new_job_says_when_the_next_decision_is() -> None:
    system = FaultyWorld(nodes=MIXED, rate_limit_s=5.0)
    system.submit(min=1)
    system.calm()
    system.submit(min=1)
    assert text(system, "j2").startswith("Queued; ")
    system.calm()
    system.users("suspend", 1)
    system.calm()
    assert text(system, "j2") == "Suspended by its user; `levada resume` continues it."
    system.users("resume", 1)
    assert text(system, "j2").startswith("Resumed; ")


def test_quota_reasons_name_queue_user_and_numbers() -> None:
    system = FaultyWorld(nodes=(Node.of("n", {"v100": 8}),))
    queues = (
        Queue(name="lab", limit={"v100": 3}),
        Queue(name="own", per_user_total=4),
        Queue(name="poor", guaranteed={"v100": 1}, borrow=False),
    )
    system.set_queues(queues)
    for queue, entity, size in (("lab", "", 2), ("own", "ann", 3), ("lab", "", 2), ("own", "ann", 2), ("poor", "", 1)):
        system.submit(min=size, queue=queue, entity=entity)
        system.calm()
    system.submit(min=1, queue="poor")
    system.calm()
    system.submit(min=4, queue="lab")
    system.submit(min=5, queue="own", entity="ann")
    system.calm()
    assert text(system, "j3") == "Queue lab uses 2 of 3 v100 GPUs allowed; the job needs 2."
    assert text(system, "j4") == "ann uses 3 of 4 GPUs allowed per user in queue own; the job needs 2."
    assert text(system, "j6") == "Queue poor may use 0 more v100 GPUs now; the job needs 1."
    assert text(system, "j7") == "Can never start: needs at least 4 workers, the limit of queue lab allows 3."
    assert text(system, "j8") == "Can never start: needs at least 5 workers, the limit per user of queue own allows 4."


def test_the_dependency_reason_names_the_failed_job() -> None:
    system = full(Node.of("n", {"v100": 4}))
    system.submit()
    system.submit(after=("j1", "j2"))
    system.calm()
    assert text(system, "j3") == "Waiting for j1 and j2 to succeed."
    system.users("cancel", 0)
    system.calm()
    assert text(system, "j3") == "Depends on j1, which was cancelled: cancel and resubmit."
    twin = system.engine.fork()
    assert twin.query.reason("j3").text == text(system, "j3")
    system.users("cancel", 2)
    system.calm()
    assert state_of(system.engine).unmet == {}


def test_the_resize_reason_names_both_sizes() -> None:
    system = full(Node.of("n", {"v100": 4}), min=1, max=4)
    assert system.sizes() == {"j1": 4}
    system.submit(min=2)
    system.think()
    assert text(system, "j1") == "Resizing from 4 to 2 workers without a restart."


def test_the_retry_reason_names_the_retry_count() -> None:
    system = faulty_world(4)
    system.submit(min=2, retries=3)
    system.calm()
    system.break_job(0)
    assert text(system, "j1") == "Failed; restarting from its checkpoint (retry 1 of 3)."
