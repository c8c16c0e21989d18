"""The simulation: true speeds, operation costs, and reports to the engine."""

import math
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from levada.core import events as ev
from levada.core.assignment import MILLI, SLOT
from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Foreign, Node
from levada.core.decision import PLACE_COLUMNS, Decision, decision
from levada.core.job import Job
from levada.core.types import PACKED, WHOLE
from levada.engine import Engine, Options
from levada.engine import engine as engine_module
from levada.engine.faults import EngineFault
from levada.perf import Beliefs, Floats, Ints, JobSpeed, PairSpeed, TableModel
from levada.policies.protocol import NO_GUARDS, Cadence, Guards, Needs
from levada.sim import Costs, Simulation
from levada.sim.failures import FailureRates, NodeFailures
from levada.tables.snapshot import Snapshot

V100 = 1  #: the number of the first GPU type
LINEAR = TableModel(())  #: one step per second and worker


def simulation(jobs: list[Job], *, gpus: int = 4, truth: Beliefs = LINEAR, **fields: Any) -> Simulation:
    """A simulation of these jobs on one node."""
    cluster = Cluster(nodes=(Node.of("n", {"v100": gpus}, cpu=8_000),))
    world = Simulation(Engine(cluster=cluster, **fields), truth, Costs(start_s=20.0, resize_s=5.0, stop_s=10.0))
    world.submit(JobBatch.of(jobs))
    return world


def ends(world: Simulation) -> dict[str, float]:
    return dict(zip(world.ended.id, world.ended.finished, strict=True))


def test_the_truth_determines_the_length_of_a_job() -> None:
    world = simulation([Job(id="a", submitted=100.0, min=2, max=2, steps=1000.0)])
    world.run()
    assert ends(world) == {"a": 100.0 + 20.0 + 1000.0 / 2}
    (segment,) = world.segments
    assert (segment.begin, segment.end, segment.workers, segment.nodes) == (120.0, 620.0, 2, ("n",))


def test_speed_follows_the_size_and_resizing_costs_time() -> None:
    truth = TableModel([JobSpeed(job=0, speedup={1: 1.0, 4: 2.0}, throughput={V100: 10.0})])
    jobs = [
        Job(id="a", submitted=0.0, min=1, max=4, steps=40_000.0),
        Job(id="b", submitted=600.0, min=3, steps=50.0, max=3),
    ]
    world = simulation(jobs, truth=truth, policy="elastic-fifo")
    world.run()
    sizes = [(segment.workers, segment.end - segment.begin) for segment in world.segments if segment.job == "a"]
    assert [workers for workers, _ in sizes] == [4, 1, 4]
    speed = {4: 20.0, 1: 10.0}
    assert sum(speed[workers] * seconds for workers, seconds in sizes) == pytest.approx(40_000.0)
    assert ends(world)["b"] < ends(world)["a"]


@pytest.mark.parametrize(("in_place", "pause_s"), [(True, 5.0), (False, 10.0 + 20.0)])
def test_a_resize_that_is_not_in_place_is_a_stop_and_a_start(in_place: bool, pause_s: float) -> None:
    jobs = [
        Job(id="a", submitted=0.0, min=1, max=4, steps=40_000.0, resizes_in_place=in_place),
        Job(id="b", submitted=600.0, min=3, steps=50.0, max=3),
    ]
    world = simulation(jobs, policy="elastic-fifo")
    world.run()
    first, second, *_ = (segment for segment in world.segments if segment.job == "a")
    assert second.begin - first.end == pause_s


def test_preempted_work_is_not_lost() -> None:
    jobs = [
        Job(id="late", submitted=50.0, min=4, max=4, steps=1000.0),
        Job(id="early", submitted=0.0, min=4, max=4, steps=4000.0),
    ]
    world = simulation(sorted(jobs, key=lambda job: job.submitted), policy="srjf")
    world.run()
    ran = sum(segment.end - segment.begin for segment in world.segments if segment.job == "early")
    assert ran == pytest.approx(1000.0)


def test_workers_without_a_gpu_make_progress() -> None:
    world = simulation([Job(id="a", submitted=0.0, milli=0, cpu=2_000, min=2, max=2, steps=100.0)])
    world.run()
    assert ends(world) == {"a": 70.0}


def test_a_job_of_unknown_length_keeps_running() -> None:
    world = simulation([Job(id="a", submitted=0.0)])
    world.run(until=10_000.0)
    assert not world.ended
    assert world.now <= 10_000.0
    assert all(math.isfinite(segment.end) for segment in world.segments)


def test_training_shrinks_for_serving_and_grows_back() -> None:
    world = simulation([Job(id="a", submitted=0.0, min=1, max=4, steps=40_000.0)], policy="elastic-fifo")
    world.serve(Foreign(id="pod", milli=2_000, gpu_type="v100", serving=True, created=1_000.0), 1_000.0, 600.0)
    world.run()
    (served,) = world.pods.served
    assert 1_000.0 < served.begin < 1_060.0
    assert served.end - served.begin == 600.0
    assert [segment.workers for segment in world.segments] == [4, 2, 4]
    during = [s for s in world.segments if s.begin < served.end and s.end > served.begin]
    assert all(segment.workers <= 2 for segment in during)


class ShareFirstGpu:
    """Places all jobs on the first GPU; two jobs share it."""

    name: ClassVar[str] = "share-first-gpu"
    needs: ClassVar[Needs] = Needs.NOTHING
    cadence: ClassVar[Cadence] = Cadence()
    guards: ClassVar[Guards] = NO_GUARDS
    by_node: ClassVar[bool] = True

    def initial(self, seed: int) -> None:
        return None

    def decide(self, snap: Snapshot, perf: Any, state: None) -> tuple[Decision, None]:
        jobs = len(snap)
        places = np.zeros((PLACE_COLUMNS, jobs), np.int64)
        places[SLOT], places[MILLI] = np.arange(jobs), PACKED if jobs > 1 else WHOLE
        ones = np.ones(jobs, np.int64)
        return decision(snap, ones * V100, ones, places=places, placed=np.arange(jobs)), None


def test_packed_jobs_have_their_pair_rates_and_their_own_rates_when_alone() -> None:
    truth = TableModel(
        [JobSpeed(job=0, throughput={V100: 10.0}), JobSpeed(job=1, throughput={V100: 4.0})],
        [PairSpeed(a=0, b=1, throughput={V100: (6.0, 3.0)})],
    )
    cluster = Cluster(nodes=(Node.of("n", {"v100": 1}),))
    engine = Engine(
        cluster=cluster,
        policy="x",
        make_policy=lambda name, options: ShareFirstGpu(),
        options=Options(rate_limit_s=0.0),
    )
    world = Simulation(engine, truth, Costs(start_s=0.0, resize_s=0.0, stop_s=0.0))
    jobs = [Job(id="a", submitted=0.0, steps=1600.0), Job(id="b", submitted=100.0, steps=1000.0)]
    world.submit(JobBatch.of(jobs))
    world.run()
    # Until 100 s the first job makes 1000 steps alone, then 600 packed; the second makes 300 packed and 700 alone.
    assert ends(world) == {"a": pytest.approx(200.0), "b": pytest.approx(200.0 + 700.0 / 4.0)}
    assert world.utilization.by_name() == {"v100": pytest.approx(375.0)}, "a shared GPU counts once"


def test_a_node_failure_stops_the_jobs_on_it() -> None:
    cluster = Cluster(nodes=tuple(Node.of(f"n{i}", {"v100": 1}) for i in range(2)))
    failures = FailureRates(every_s=400.0, repair_s=100.0, seed=3)
    world = Simulation(
        Engine(cluster=cluster, policy="fifo"),
        LINEAR,
        Costs(start_s=0.0, resize_s=0.0, stop_s=0.0),
        node_failures=NodeFailures(cluster, failures),
    )
    world.submit(JobBatch.of([Job(id=f"j{i}", submitted=0.0, steps=2000.0) for i in range(4)]))
    world.run(done=lambda: len(ends(world)) == 4)
    ran = {name: sum(s.end - s.begin for s in world.segments if s.job == name) for name in ends(world)}
    assert ran == {name: pytest.approx(2000.0) for name in ran}, "no step is lost or repeated"
    assert max(ends(world).values()) > 4000.0
    assert len(world.segments) > 4


class OnlyRates(Beliefs):
    """A user's model that defines only `rates`."""

    def rates(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        return 2.0 * sizes + 0.0 * (jobs + gpu_types)


@pytest.mark.parametrize("policy", ["fifo", "elastic-srjf", "ffdl", "afs-l", "max_min_fairness_packed"])
def test_a_model_needs_only_rates(policy: str) -> None:
    jobs = [Job(id=name, submitted=0.0, min=2, max=2, steps=400.0) for name in "abc"]
    world = simulation(jobs, policy=policy, truth=OnlyRates(), perf=OnlyRates())
    world.run(until=30.0)
    twin = world.engine.fork()
    assert twin.query.beliefs().restart_cost_s(0, 1, 2) == 0.0
    world.run()
    assert sorted(ends(world)) == ["a", "b", "c"]
    assert min(ends(world).values()) == pytest.approx(20.0 + 400.0 / 4.0)


def test_progress_is_reported_only_to_policies_that_need_it() -> None:
    reported: list[bool] = []

    class FixedModel(TableModel):
        """Learns nothing."""

    for policy in ("fifo", "srjf"):
        world = simulation([Job(id="a", submitted=0.0, steps=100.0)], policy=policy, perf=FixedModel(()))
        reported.append(bool(world._progress_reports()))
    assert reported == [False, True]


class ProgressPolicy(ShareFirstGpu):
    """Needs rough progress, wakes up every 15 minutes, and records the progress that it sees."""

    needs: ClassVar[Needs] = Needs.PROGRESS

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []

    def decide(self, snap: Snapshot, perf: Any, state: None) -> tuple[Decision, None]:
        self.seen += [(snap.now, float(steps)) for steps in snap.jobs.steps_done]
        result, state = super().decide(snap, perf, state)
        return msgspec.structs.replace(result, wake_at=snap.now + 900.0), state


def test_rough_progress_is_reported_every_hour() -> None:
    policy = ProgressPolicy()
    engine = Engine(
        cluster=Cluster(nodes=(Node.of("n", {"v100": 1}),)),
        policy="x",
        make_policy=lambda name, options: policy,
        options=Options(rate_limit_s=0.0),
        perf=TableModel(()),
    )
    truth = TableModel([JobSpeed(job=0, throughput={V100: 10.0})])
    world = Simulation(engine, truth, Costs(start_s=0.0, resize_s=0.0, stop_s=0.0))
    world.submit(JobBatch.of([Job(id="a", submitted=0.0, steps=100_000.0)]))
    world.run(done=lambda: bool(ends(world)))
    assert len(policy.seen) >= 11
    for now, steps in policy.seen:
        assert 10.0 * (now - 3600.0) <= steps <= 10.0 * now
    assert len({steps for _, steps in policy.seen}) <= 4


def test_runs_are_deterministic() -> None:
    jobs = [Job(id=f"j{i}", submitted=float(i * 37 % 11), min=1 + i % 2, max=4, steps=500.0 + i) for i in range(12)]
    first, second = (simulation(sorted(jobs, key=lambda job: (job.submitted, job.id))) for _ in range(2))
    first.run()
    second.run()
    assert first.segments == second.segments
    assert ends(first) == ends(second)
    assert len(ends(first)) == 12


@pytest.mark.parametrize("kind", [ev.JobsFinished, ev.Running, ev.Decided])
def test_an_engine_fault_ends_the_run(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    original = engine_module._HANDLERS[kind]

    def broken(engine: Engine, event: Any) -> None:
        original(engine, event)
        raise ZeroDivisionError("a bug")

    monkeypatch.setitem(engine_module._HANDLERS, kind, broken)
    world = simulation([Job(id="a", submitted=0.0, steps=10.0)])
    with pytest.raises(EngineFault, match=f"{kind.__name__}.* at .*: ZeroDivisionError: a bug"):
        world.run()
