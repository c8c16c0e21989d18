"""`explain`: why a job is pending or has its size, who uses the rest, and remedies."""

from __future__ import annotations

from levada.core import events as ev
from levada.core.cluster import Cluster, Device, Foreign, Node
from levada.core.job import Preemptible
from levada.core.queue import Queue
from levada.engine import Engine, Options
from levada.perf import JobSpeed, TableModel
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld, faulty_world

MIXED = (Node.of("a", {"a100": 4}), Node.of("v", {"v100": 4}))


def explained(system: FaultyWorld, name: str) -> tuple[str, tuple[str, ...]]:
    """The reason text and the remedies of a job."""
    explanation = system.engine.explain(name)
    return explanation.reason.text, explanation.would_help


def crowd(nodes: tuple[Node, ...], *jobs: dict[str, object], **options: object) -> FaultyWorld:
    """A settled world with these nodes and jobs."""
    system = FaultyWorld(nodes=nodes, **options)
    for fields in jobs:
        system.submit(**fields)
        system.calm()
    return system


def test_explain_of_a_running_job_names_users_of_the_rest_and_remedies() -> None:
    system = crowd((Node.of("n", {"v100": 8}),), {"min": 1, "max": 6}, {"min": 2}, {"min": 2})
    text, helps = explained(system, "j1")
    assert text == "Has 4 of at most 6 workers. 8 v100 GPUs: 4 used by 2 other jobs, 0 free."
    assert helps == ("2 more v100 GPUs (0 free now).",)


def test_explain_reports_a_job_at_its_maximum() -> None:
    system = crowd((Node.of("n", {"v100": 8}),), {"min": 1, "max": 6}, {})
    assert explained(system, "j1") == ("Has 6 workers, the most that it may have.", ())
    assert explained(system, "j2") == ("Has 1 worker, the most that it may have.", ())


def test_explain_reports_the_next_retry_of_a_failed_start() -> None:
    system = FaultyWorld(nodes=(Node.of("n", {"v100": 4}),))
    system.submit(min=1)
    while not system.ops:
        system.think()
    system.carry_out(fail=True)
    system.deliver()
    text, helps = explained(system, "j1")
    assert text == "Start, resize or stop failed; retrying after a backoff (attempt 1). Next retry in 5 s."
    assert helps == ()


def test_explain_reports_how_long_a_guard_lasts() -> None:
    system = crowd((Node.of("n", {"v100": 4}),), {"min": 2, "max": 4}, min_run_s=60.0)
    system.submit(min=2)
    system.calm()
    system.pass_time(60.0)
    system.calm()
    assert system.sizes() == {"j1": 2, "j2": 2}
    system.finish(1)
    system.pass_time(12.5)
    state = state_of(system.engine)
    state.options = Options(cooldown_s=30.0)
    text, _ = explained(system, "j1")
    assert "Not resized for another 18 s" in text


def test_explain_names_idle_types_and_why_they_are_unusable() -> None:
    one, other = {"min": 1, "max": 4, "gpu_types": ("a100",)}, {"min": 2, "gpu_types": ("a100",)}
    system = crowd(MIXED, one, other)
    text, helps = explained(system, "j1")
    assert "4 v100 GPUs are free, but it may not use that type." in text
    assert helps == ("2 more a100 GPUs (0 free now).", "v100 in its list of GPU types.")


def test_explain_names_the_queue_that_limits_a_job() -> None:
    system = FaultyWorld(nodes=(Node.of("n", {"v100": 8}),))
    system.set_queues((Queue(name="lab", limit={"v100": 3}), Queue(name="own", per_user_limit={"v100": 2})))
    system.submit(min=1, max=8, queue="lab")
    system.submit(min=1, max=8, queue="own", entity="ann")
    system.calm()
    text, helps = explained(system, "j1")
    assert "Queue lab uses 3 of 3 v100 GPUs allowed." in text
    assert "A larger limit of its queue, or another queue." in helps
    assert "Queue own allows 2 v100 GPUs per user." in explained(system, "j2")[0]
    system.set_queues((Queue(name="lab", limit={"v100": 3}), Queue(name="own", per_user_total=3)))
    system.calm()
    assert "Queue own allows 3 GPUs of all types per user." in explained(system, "j2")[0]


def test_explain_reports_no_gain_or_no_more_by_policy() -> None:
    system = crowd((Node.of("n", {"v100": 8}),), {"min": 2, "max": 6})
    flat = TableModel([JobSpeed(job=0, speedup={1: 1.0, 2: 1.5, 3: 1.5, 6: 1.5})])
    system.engine = Engine(
        cluster=Cluster(nodes=tuple(system.nodes.values())), policy="elastic-tiresias", perf=flat, options=Options()
    )
    system.truth, system.jobs_made = {}, 0
    system.submit(min=2, max=6, desired=2)
    system.calm()
    assert system.sizes() == {"j1": 2}
    system.pass_time(100.0)
    system.calm()
    assert "More workers are not expected to make it faster." in explained(system, "j1")[0]
    system = faulty_world(8, policy="fifo")
    system.submit(min=2, max=6)
    system.calm()
    text, helps = explained(system, "j1")
    assert "fifo gives it no more." in text
    assert helps == ()


def test_explain_reports_why_a_protected_job_is_unchanged() -> None:
    system = crowd(
        (Node.of("n", {"v100": 4}),),
        {"min": 3},
        {"min": 1, "max": 4, "preemptible": Preemptible.AUTO, "resizes_in_place": False},
    )
    system.finish(0)
    system.calm()
    assert system.sizes() == {"j2": 1}
    assert "it has not saved a checkpoint yet" in explained(system, "j2")[0]
    system.users("update", 1, min=2, max=2)
    system.calm()
    text = explained(system, "j2")[0]
    assert "Its user set 2 workers, it has 1: not resized yet, because it would have to restart" in text


def test_explain_reports_a_pending_change_by_the_user() -> None:
    system = crowd((Node.of("n", {"v100": 4}),), {"min": 1, "max": 4}, min_run_s=60.0)
    system.users("update", 0, min=2, max=2)
    assert explained(system, "j1")[0].endswith("Its user set 2 workers, it has 4: the next decision resizes it.")
    system.think()
    assert explained(system, "j1")[0].endswith("it has 4: resize in progress.")


def test_explain_names_the_jobs_that_use_the_room() -> None:
    broken = (*(Device(id=str(n), type="v100") for n in range(5)), Device(id="5", type="v100", healthy=False))
    system = crowd((Node(name="n", devices=broken),), {"min": 2}, {"min": 1})
    system.tell(ev.ForeignAppeared(at=system.now, foreign=(Foreign(id="f", node="n", devices=("4",)),)))
    system.submit(min=2)
    system.calm()
    text, helps = explained(system, "j3")
    assert text == (
        "Needs 2 GPUs; 1 v100 free. 6 v100 GPUs: 3 used by 2 jobs, 1 foreign or reserved, 1 out of service, 1 free."
    )
    assert helps == ("1 more v100 GPU (1 free now).",)


def test_explain_reports_a_worker_too_large_for_any_node() -> None:
    system = crowd((Node.of("n", {"v100": 4}, cpu=8000), Node.of("m", {"v100": 2}, cpu=4000)), {"milli": 20_000})
    text, helps = explained(system, "j1")
    assert text == "Can never start: one worker needs 20 GPUs, the largest node has 4."
    assert helps == ("Workers of at most 4 GPUs of an allowed type, or a larger node.",)
    system.submit(cpu=9000)
    assert explained(system, "j2")[0] == "Can never start: one worker needs 9 cores, the largest node has 8."
    system.submit(min=9)
    text, helps = explained(system, "j3")
    assert text == "Can never start: needs at least 9 workers, the cluster can hold 6."
    assert helps == ("A minimum of at most 6 workers, or more or larger nodes.",)


def test_explain_names_the_dependencies_of_a_job() -> None:
    system = crowd((Node.of("n", {"v100": 4}),), {}, {}, {"after": ("j1", "j2")})
    assert explained(system, "j3")[0] == "Waiting for j1 and j2 to succeed."
    system.finish(0)
    system.calm()
    assert explained(system, "j3")[0] == "Waiting for j2 to succeed."


def test_explain_says_how_to_resume_a_suspended_job() -> None:
    system = crowd((Node.of("n", {"v100": 4}),), {})
    system.users("suspend", 0)
    system.calm()
    assert explained(system, "j1") == ("Suspended by its user; `levada resume` continues it.", ("Resume it.",))


def test_explain_names_an_idle_type_that_is_not_worth_a_restart() -> None:
    nodes = (Node.of("a", {"a100": 4}), Node.of("v", {"v100": 3}))
    system = crowd(nodes, {"min": 2, "max": 4}, {"min": 2, "max": 2, "gpu_types": ("a100",)})
    assert system.sizes() == {"j1": 2, "j2": 2}
    assert (
        "3 v100 GPUs are free, but it moves to another type only if that is at least 2 times as fast."
        in explained(system, "j1")[0]
    )
