"""`levada demo`: one realistic day of jobs on a small mixed cluster.

The first jobs show one of each kind that the engine treats differently; the others are drawn from a few workloads. At
noon a serving pod requests two GPUs for an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Foreign, Node
from levada.core.job import Job, ParameterServers, Phase, Preemptible
from levada.core.types import WHOLE
from levada.engine import Engine
from levada.engine.explain import Explanation
from levada.perf import JobSpeed, TableModel
from levada.policies.protocol import AnyPolicy
from levada.sim.serving import ServingInterval
from levada.sim.simulation import Segment, Simulation

HOUR = 3600.0
CORE = 1000
GIB = 1024

CLUSTER = Cluster(
    nodes=(
        Node.of("a1", {"a100": 4}, gpu_memory=40 * GIB, cpu=48 * CORE, memory=384 * GIB),
        Node.of("a2", {"a100": 4}, gpu_memory=40 * GIB, cpu=48 * CORE, memory=384 * GIB),
        Node.of("mix", {"a100": 2, "v100": 2}, gpu_memory=32 * GIB, cpu=48 * CORE, memory=384 * GIB),
        Node.of("v1", {"v100": 4}, gpu_memory=16 * GIB, cpu=32 * CORE, memory=256 * GIB),
        Node.of("v2", {"v100": 4}, gpu_memory=16 * GIB, cpu=32 * CORE, memory=256 * GIB),
        Node.of("cpu", {}, cpu=64 * CORE, memory=256 * GIB),
    )
)

SERVING = Foreign(id="serving", milli=2 * WHOLE, gpu_type="a100", cpu=4 * CORE, serving=True, created=12 * HOUR)

#: The simulation ends after two days, even if the policy leaves jobs waiting.
END_S = 48 * HOUR


class Workload(msgspec.Struct, frozen=True):
    """Speed of a workload: steps per second of one worker, and the speed-up per doubling of workers."""

    a100: float
    v100: float
    doubling: float


WORKLOADS: Mapping[str, Workload] = {
    "resnet50": Workload(2.0, 1.0, 1.9),
    "bert": Workload(2.4, 1.0, 1.8),
    "gpt2": Workload(2.8, 1.0, 1.7),
    "vit": Workload(2.0, 0.9, 1.85),
    "gnn": Workload(1.3, 1.0, 1.4),
    # Only in the showcase jobs.
    "prepare": Workload(1.0, 1.0, 1.9),
    "notebook": Workload(1.0, 1.0, 1.0),
    "wide-deep": Workload(1.5, 1.0, 1.6),
}


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a job."""

    job: Job
    note: str
    phase: str
    waited_s: float
    ran_s: float
    gpu_seconds: float
    resizes: int
    moves: int
    #: None if it has not ended.
    ended: float | None
    segments: tuple[Segment, ...]


class DaySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of the day."""

    policy: str
    seed: int
    jobs: tuple[JobSummary, ...]
    served: tuple[ServingInterval, ...]
    #: GPUs by type.
    gpus: Mapping[str, int]
    until: float
    decisions: int
    #: The time with the most GPUs requested by pending jobs, and why one of them was pending.
    busiest: float
    explained: Explanation | None
    #: Why the last rejected decision of the policy was rejected; "" if none was.
    rejection: str


def jobs_of_the_day(count: int, seed: int) -> list[tuple[Job, str]]:
    """Return *count* jobs in the order of submission, each with a note on what is special about it."""
    rng = np.random.default_rng(seed)
    drawn = [*_showcase(), *(_drawn(rng) for _ in range(max(0, count - len(_showcase()))))][:count]
    drawn.sort(key=lambda pair: pair[0].submitted)
    width = max(2, len(str(count)))
    return [(msgspec.structs.replace(job, id=f"j{i:0{width}}"), note) for i, (job, note) in enumerate(drawn, 1)]


def _showcase() -> list[tuple[Job, str]]:
    def job(hour: float, workload: str, hours: float, **fields: Any) -> Job:
        # *hours*: of one worker on a v100.
        steps = round(hours * HOUR * WORKLOADS[workload].v100)
        resources = {"cpu": 2 * CORE, "memory": 8 * GIB, **fields}
        return Job(id="", submitted=hour * HOUR, workload=workload, steps=steps, **resources)

    servers = ParameterServers(replicas=2, cpu=4 * CORE, memory=16 * GIB)
    half = {"milli": 500, "gpu_memory": 8 * GIB}
    return [
        (job(0.5, "bert", 30, min=4, max=4), "rigid"),
        (job(1.0, "prepare", 9, milli=0, cpu=8 * CORE, min=2, max=6), "CPU only"),
        (job(2.0, "wide-deep", 22, min=2, max=6, servers=servers, gpu_types=("v100",)), "2 parameter servers"),
        (job(8.5, "notebook", 3, gpu_types=("v100",), **half), "half a GPU"),
        (job(9.0, "notebook", 4.5, gpu_types=("v100",), **half), "half a GPU"),
        (job(10.0, "vit", 14, min=2, max=4, preemptible=Preemptible.NEVER, gpu_types=("a100",)), "never preempted"),
        (job(12.5, "gpt2", 45, min=8, max=8, gpu_types=("a100",)), "rigid"),
        (job(7.0, "resnet50", 70, min=2, max=10, resizes_in_place=False), "resizes by restart"),
    ]


def _drawn(rng: np.random.Generator) -> tuple[Job, str]:
    """Draw a job; most arrive in working hours."""
    names = list(WORKLOADS)[:5]
    workload = names[int(rng.integers(len(names)))]
    hour = float(np.clip(rng.normal(14.0, 4.0), 0.1, 21.0))
    least = int(rng.choice([1, 1, 2, 2, 4]))
    most = least * int(rng.choice([1, 2, 4]))
    hours = float(np.clip(rng.lognormal(1.2, 0.7), 0.5, 12.0)) * least
    types: tuple[str, ...] = (("a100", "v100"), ("v100", "a100"), ())[int(rng.integers(3))]
    job = Job(
        id="",
        submitted=round(hour * HOUR / 60) * 60.0,
        min=least,
        max=most,
        cpu=2 * CORE,
        memory=8 * GIB,
        gpu_types=types,
        workload=workload,
        steps=round(hours * HOUR * WORKLOADS[workload].v100),
    )
    return job, ""


def truth(jobs: list[Job], types: Callable[[str], int]) -> TableModel:
    """Return the true speeds, which the engine has to learn. Jobs are numbered in this order."""
    speeds = []
    for number, job in enumerate(jobs):
        kind = WORKLOADS[job.workload]
        curve = {size: kind.doubling ** float(np.log2(size)) for size in range(1, max(job.max, 2) + 1)}
        rates = {types("a100"): kind.a100, types("v100"): kind.v100}
        speeds.append(JobSpeed(job=number, speedup=curve, throughput={0: 1.0} if job.milli == 0 else rates))
    return TableModel(speeds)


class _BusiestTime:
    """Records the time with the most GPUs requested by pending jobs, and explains the one that waited longest."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.requested, self.at = 0, 0.0
        self.explained: Explanation | None = None

    def observe(self) -> None:
        query, jobs = self._engine.query, self._engine.query.jobs
        slots = jobs.order
        pending = slots[(jobs.phase[slots] == Phase.PENDING) & (jobs.count[slots] == 0)]
        requested = int((jobs.min[pending] * jobs.milli[pending]).sum())
        # Until the state is settled, a new job may not have been considered yet.
        if requested > self.requested and query.is_settled:
            self.requested, self.at = requested, query.now
            self.explained = self._engine.explain(query.job_id(int(jobs.number[pending[0]])))


def simulate_day(
    policy: str,
    *,
    count: int = 30,
    seed: int = 0,
    make_policy: Callable[[str, Mapping[str, Any]], AnyPolicy],
) -> DaySummary:
    """Simulate the day under *policy*; deterministic for policy, count and seed."""
    described = jobs_of_the_day(count, seed)
    jobs = [job for job, _ in described]
    engine = Engine(cluster=CLUSTER, policy=policy, seed=seed, make_policy=make_policy)
    cluster = engine.query.cluster
    busiest = _BusiestTime(engine)
    world = Simulation(engine, truth(jobs, cluster.types.find), after_each=busiest.observe)
    if jobs:
        world.submit(JobBatch.of(jobs))
    world.serve(SERVING, SERVING.created, HOUR)
    world.run(END_S)
    last = max([segment.end for segment in world.segments], default=0.0)
    return DaySummary(
        policy=engine.query.policy.name,
        seed=seed,
        jobs=_summaries(world, described),
        served=tuple(world.pods.served),
        gpus={
            name: int(np.count_nonzero(cluster.type_of == number))
            for number, name in enumerate(cluster.types)
            if (cluster.type_of == number).any()
        },
        until=max(last, 24 * HOUR),
        decisions=world.decisions,
        busiest=busiest.at,
        explained=busiest.explained,
        rejection=engine.query.last_rejection,
    )


def _summaries(world: Simulation, described: list[tuple[Job, str]]) -> tuple[JobSummary, ...]:
    facts: dict[str, dict[str, Any]] = {}
    ended = world.ended
    for row, name in enumerate(ended.id):
        facts[name] = {
            "phase": Phase.label(int(ended.phase[row])),
            "waited_s": ended.waiting_s[row],
            "ran_s": ended.running_s[row],
            "gpu_seconds": ended.gpu_seconds[row],
            "resizes": ended.resizes[row],
            "moves": ended.moves[row],
            "ended": ended.finished[row],
        }
    for job, _ in described:
        if (active := world.engine.query.job(job.id)) is not None:
            facts[job.id] = {
                "phase": Phase.label(active.phase),
                "waited_s": active.waiting_s,
                "ran_s": active.running_s,
                "gpu_seconds": active.gpu_seconds,
                "resizes": active.resizes,
                "moves": active.moves,
                "ended": None,
            }
    return tuple(
        JobSummary(
            job=job,
            note=note,
            segments=tuple(segment for segment in world.segments if segment.job == job.id),
            **facts[job.id],
        )
        for job, note in described
    )
