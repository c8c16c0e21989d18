"""The simulated world: what it takes from the truth, and what it tells the engine."""

import math
from typing import Any

import pytest

from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Foreign, Node
from levada.core.job import Job
from levada.engine import Engine
from levada.perf import JobSpeed, TableModel
from levada.sim import Costs, Simulation

V100 = 1  #: the number of the first GPU type
LINEAR = TableModel(())  #: one step per second and worker


def simulation(jobs: list[Job], *, gpus: int = 4, truth: TableModel = LINEAR, **fields: Any) -> Simulation:
    """A world with one node, in which these jobs will come."""
    cluster = Cluster(nodes=(Node.of("n", {"v100": gpus}, cpu=8_000),))
    world = Simulation(Engine(cluster=cluster, **fields), truth, Costs(start_s=20.0, resize_s=5.0, stop_s=10.0))
    world.submit(JobBatch.of(jobs))
    return world


def ends(world: Simulation) -> dict[str, float]:
    return {name: ended.finished for ended in world.ended for name in ended.id}


def test_a_job_takes_as_long_as_the_truth_says() -> None:
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


def test_a_job_of_unknown_length_runs_on() -> None:
    world = simulation([Job(id="a", submitted=0.0)])
    world.run(until=10_000.0)
    assert not world.ended
    assert world.now <= 10_000.0
    assert all(math.isfinite(segment.end) for segment in world.segments)


def test_training_gives_way_to_serving_and_grows_back() -> None:
    world = simulation([Job(id="a", submitted=0.0, min=1, max=4, steps=40_000.0)], policy="elastic-fifo")
    world.serve(Foreign(id="pod", milli=2_000, gpu_type="v100", serving=True, created=1_000.0), 1_000.0, 600.0)
    world.run()
    (served,) = world.pods.served
    assert 1_000.0 < served.begin < 1_060.0
    assert served.end - served.begin == 600.0
    assert [segment.workers for segment in world.segments] == [4, 2, 4]
    during = [s for s in world.segments if s.begin < served.end and s.end > served.begin]
    assert all(segment.workers <= 2 for segment in during)


def test_two_runs_are_the_same() -> None:
    jobs = [Job(id=f"j{i}", submitted=float(i * 37 % 11), min=1 + i % 2, max=4, steps=500.0 + i) for i in range(12)]
    first, second = (simulation(sorted(jobs, key=lambda job: (job.submitted, job.id))) for _ in range(2))
    first.run()
    second.run()
    assert first.segments == second.segments
    assert ends(first) == ends(second)
    assert len(ends(first)) == 12
