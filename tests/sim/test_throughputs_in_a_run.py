"""Profiles in engine and simulation: jobs end when the throughput table says."""

import numpy as np
import pytest

from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Node
from levada.core.events import JobsSubmitted
from levada.core.job import Job
from levada.engine import Engine
from levada.perf import Beliefs, Online, ProfileModel
from levada.sim import Costs, Simulation
from levada.sim.catalogue import catalogue
from tests.engine.engine_state import state_of

LM, A3C = "LM (batch size 80)", "A3C"
CLUSTER = Cluster(nodes=(Node.of("n", {"v100": 4}), Node.of("m", {"k80": 4})))


def attach(model, engine):
    """Bind *model* to the names of the engine's cluster."""
    engine.attach(model)
    return model


def alone(workload, gpu_type, size):
    table = catalogue()
    return table.alone[table.position(workload), table.types.index(gpu_type), table.sizes.index(size)]


def test_jobs_end_when_the_catalogue_says():
    belief = ProfileModel(catalogue())
    engine = Engine(cluster=CLUSTER, perf=belief, policy="fifo")
    attach(belief, engine)
    world = Simulation(engine, belief, Costs(start_s=20.0))
    world.submit(
        JobBatch.of(
            [
                Job(id="a", submitted=0.0, min=4, max=4, steps=1e5, workload=LM, gpu_types=("v100",)),
                Job(id="b", submitted=5.0, min=1, max=1, steps=1e4, workload=A3C, gpu_types=("k80",)),
            ]
        )
    )
    world.run()
    ends = dict(zip(world.ended.id, world.ended.finished, strict=True))
    assert ends == {
        "a": pytest.approx(20.0 + 1e5 / alone(LM, "v100", 4)),
        "b": pytest.approx(25.0 + 1e4 / alone(A3C, "k80", 1)),
    }


def test_a_belief_learns_speeds_that_differ_from_the_table():
    engine = Engine(cluster=CLUSTER, perf=Online(ProfileModel(catalogue())), policy="fifo")
    belief = attach(state_of(engine).perf, engine)
    job = Job(id="a", submitted=0.0, min=2, max=2, steps=1e6, workload=LM, gpu_types=("v100",))

    class Half(Beliefs):
        """Half the speeds of the catalogue."""

        def rates(self, numbers, gpu_types, workers):
            return np.array([alone(LM, "v100", size) / 2 for size in workers])

    world = Simulation(engine, Half())
    world.submit(JobBatch.of([job]))
    # Progress is reported at events, so other jobs must arrive.
    others = [Job(id=f"o{n}", submitted=600.0 * n, min=8, max=8, workload="x") for n in range(1, 30)]
    world.submit(JobBatch.of(others))
    world.run(until=18_000.0)
    engine.learn()
    v100 = np.array(state_of(engine).world.inventory.types.find("v100"))
    believed = float(belief.rates(np.array(0), v100, np.array(2)))
    assert believed == pytest.approx(alone(LM, "v100", 2) / 2, rel=0.05)


def test_a_fork_has_its_own_names():
    belief = ProfileModel(catalogue())
    engine = Engine(cluster=CLUSTER, perf=belief, policy="fifo")
    attach(belief, engine)
    twin = engine.fork()
    attach(state_of(twin).perf, twin)
    arrival = Job(id="a", submitted=0.0, min=1, max=1, workload=LM)
    twin.handle(JobsSubmitted(at=0.0, jobs=JobBatch.of([arrival])))
    engine.handle(JobsSubmitted(at=0.0, jobs=JobBatch.of([Job(id="b", submitted=0.0, min=1, max=1, workload="x")])))
    assert state_of(twin).perf.known(np.array([0])).tolist() == [True]
    assert state_of(engine).perf.known(np.array([0])).tolist() == [False]
