"""What `explain` tells: why a job waits or has its size, who has the rest, and what would help."""

from __future__ import annotations

from levada.core import events as ev
from levada.core.cluster import Cluster, Device, Foreign, Node
from levada.core.job import Preemptible
from levada.core.queue import Queue
from levada.engine import Engine, Options
from levada.perf import JobSpeed, TableModel
from tests.engine.chaos import Chaos, desk
from tests.engine.inspect import state_of

MIXED = (Node.of("a", {"a100": 4}), Node.of("v", {"v100": 4}))


def told(chaos: Chaos, name: str) -> tuple[str, tuple[str, ...]]:
    """Its reason in words, and what would help."""
    found = chaos.engine.explain(name)
    return found.reason.text, found.would_help


def crowd(nodes: tuple[Node, ...], *jobs: dict[str, object], **options: object) -> Chaos:
    """These jobs on these nodes, all that can run running."""
    chaos = Chaos(nodes=nodes, **options)
    for fields in jobs:
        chaos.submit(**fields)
        chaos.calm()
    return chaos


def test_a_running_job_is_told_who_has_the_rest_and_what_would_help() -> None:
    chaos = crowd((Node.of("n", {"v100": 8}),), {"min": 1, "max": 6}, {"min": 2}, {"min": 2})
    text, helps = told(chaos, "j1")
    assert text == "It runs. It has 4 of at most 6 workers. Of the 8 v100 GPUs 2 other jobs have 4 and none is free."
    assert helps == ("2 more v100 GPUs (0 free now).",)


def test_a_job_with_all_it_may_have_is_told_so() -> None:
    chaos = crowd((Node.of("n", {"v100": 8}),), {"min": 1, "max": 6}, {})
    assert told(chaos, "j1") == ("It runs. It has 6 workers, the most that it may have.", ())
    assert told(chaos, "j2") == ("It runs. It has 1 worker, the most that it may have.", ())


def test_a_job_that_is_left_alone_is_told_for_how_long() -> None:
    chaos = crowd((Node.of("n", {"v100": 4}),), {"min": 2, "max": 4}, min_run_s=60.0)
    chaos.submit(min=2)
    chaos.calm()
    chaos.pass_time(60.0)
    chaos.calm()
    assert chaos.sizes() == {"j1": 2, "j2": 2}
    chaos.finish(1)
    chaos.pass_time(12.5)
    state = state_of(chaos.engine)
    state.options = Options(cooldown_s=30.0)
    text, _ = told(chaos, "j1")
    assert "left alone for 18 s more" in text


def test_idle_types_are_named_with_why_they_are_of_no_use() -> None:
    one, other = {"min": 1, "max": 4, "gpu_types": ("a100",)}, {"min": 2, "gpu_types": ("a100",)}
    chaos = crowd(MIXED, one, other)
    text, helps = told(chaos, "j1")
    assert "4 v100 GPUs are free, but it may not use that type." in text
    assert helps == ("2 more a100 GPUs (0 free now).", "v100 among its GPU types.")


def test_a_queue_that_keeps_a_job_small_is_named() -> None:
    chaos = Chaos(nodes=(Node.of("n", {"v100": 8}),))
    chaos.set_queues((Queue(name="lab", limit={"v100": 3}), Queue(name="own", per_user_limit={"v100": 2})))
    chaos.submit(min=1, max=8, queue="lab")
    chaos.submit(min=1, max=8, queue="own", entity="ann")
    chaos.calm()
    text, helps = told(chaos, "j1")
    assert "Its queue lab may have 3 v100 GPUs and has 3." in text
    assert "A larger limit of its queue, or another queue." in helps
    assert "One user may have 2 v100 GPUs in queue own." in told(chaos, "j2")[0]
    chaos.set_queues((Queue(name="lab", limit={"v100": 3}), Queue(name="own", per_user_total=3)))
    chaos.calm()
    assert "One user may have 3 GPUs of all types in queue own." in told(chaos, "j2")[0]


def test_a_job_that_would_not_gain_or_whose_policy_gives_no_more_is_told_so() -> None:
    chaos = crowd((Node.of("n", {"v100": 8}),), {"min": 2, "max": 6})
    flat = TableModel([JobSpeed(job=0, speedup={1: 1.0, 2: 1.5, 3: 1.5, 6: 1.5})])
    chaos.engine = Engine(
        cluster=Cluster(nodes=tuple(chaos.nodes.values())), policy="elastic-tiresias", perf=flat, options=Options()
    )
    chaos.truth, chaos.jobs_made = {}, 0
    chaos.submit(min=2, max=6, desired=2)
    chaos.calm()
    assert chaos.sizes() == {"j1": 2}
    chaos.pass_time(100.0)
    chaos.calm()
    assert "more workers would not make it faster" in told(chaos, "j1")[0]
    chaos = desk(8, policy="fifo")
    chaos.submit(min=2, max=6)
    chaos.calm()
    text, helps = told(chaos, "j1")
    assert "fifo has given it no more." in text
    assert helps == ()


def test_a_protected_job_is_told_why_it_stays_as_it_is() -> None:
    chaos = crowd(
        (Node.of("n", {"v100": 4}),),
        {"min": 3},
        {"min": 1, "max": 4, "preemptible": Preemptible.AUTO, "resizes_in_place": False},
    )
    chaos.finish(0)
    chaos.calm()
    assert chaos.sizes() == {"j2": 1}
    assert "it has not saved a checkpoint yet" in told(chaos, "j2")[0]
    chaos.users("update", 1, min=2, max=2)
    chaos.calm()
    assert (
        "Its user set 2 workers, it has 1: not changed yet, because a change would be a restart" in told(chaos, "j2")[0]
    )


def test_a_change_by_its_user_is_told_before_it_is_made() -> None:
    chaos = crowd((Node.of("n", {"v100": 4}),), {"min": 1, "max": 4}, min_run_s=60.0)
    chaos.users("update", 0, min=2, max=2)
    assert told(chaos, "j1")[0].endswith("Its user set 2 workers, it has 4: the next decision changes it.")
    chaos.think()
    assert told(chaos, "j1")[0].endswith("it has 4: it is being changed.")


def test_a_job_that_waits_for_room_is_told_who_has_it() -> None:
    broken = (*(Device(id=str(n), type="v100") for n in range(5)), Device(id="5", type="v100", healthy=False))
    chaos = crowd((Node(name="n", devices=broken),), {"min": 2}, {"min": 1})
    chaos.tell(ev.ForeignAppeared(at=chaos.now, foreign=(Foreign(id="f", node="n", devices=("4",)),)))
    chaos.submit(min=2)
    chaos.calm()
    text, helps = told(chaos, "j3")
    assert text == (
        "Not enough is free for it. Of the 6 v100 GPUs 2 jobs have 3, others use or keep 1, 1 is out of service and "
        "1 is free."
    )
    assert helps == ("1 more v100 GPU (1 free now).",)


def test_a_worker_too_large_for_any_node_is_told_so() -> None:
    chaos = crowd((Node.of("n", {"v100": 4}, cpu=8000), Node.of("m", {"v100": 2}, cpu=4000)), {"milli": 20_000})
    text, helps = told(chaos, "j1")
    assert text == (
        "No state of this cluster could hold its minimum. One worker takes 20 GPUs, and the largest node has 4 of a "
        "type it may use."
    )
    assert helps == ("Workers that take no more than 4 of a type it may use, or a larger node.",)
    chaos.submit(cpu=9000)
    assert "One worker takes 9 cores, and the largest node has 8." in told(chaos, "j2")[0]
    chaos.submit(min=9)
    text, helps = told(chaos, "j3")
    assert text == "No state of this cluster could hold its minimum (6 workers at most)."
    assert helps == ("A minimum of at most 6 workers, or more or larger nodes.",)


def test_a_job_that_comes_after_others_is_told_their_names() -> None:
    chaos = crowd((Node.of("n", {"v100": 4}),), {}, {}, {"after": ("j1", "j2")})
    assert told(chaos, "j3")[0].endswith("2 to go. It waits for j1 and j2.")
    chaos.finish(0)
    chaos.calm()
    assert told(chaos, "j3")[0].endswith("1 to go. It waits for j2.")


def test_a_suspended_job_is_told_what_to_do() -> None:
    chaos = crowd((Node.of("n", {"v100": 4}),), {})
    chaos.users("suspend", 0)
    chaos.calm()
    assert told(chaos, "j1") == ("Its user has suspended it.", ("Resume it.",))


def test_a_type_that_is_idle_but_not_worth_a_restart_is_named() -> None:
    nodes = (Node.of("a", {"a100": 4}), Node.of("v", {"v100": 3}))
    chaos = crowd(nodes, {"min": 2, "max": 4}, {"min": 2, "max": 2, "gpu_types": ("a100",)})
    assert chaos.sizes() == {"j1": 2, "j2": 2}
    assert "3 v100 GPUs are free, but it goes there only if that makes it 2 times as fast." in told(chaos, "j1")[0]
