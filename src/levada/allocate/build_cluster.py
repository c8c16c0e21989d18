"""The cluster, queues and jobs of a case as the columns that policies read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from levada.allocate.limits import size_faults
from levada.core import job as core_job
from levada.core import queue as core_queue
from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Node
from levada.core.job import Job, Phase
from levada.core.layout import NOT_ALLOWED
from levada.core.queue import Queue
from levada.core.reasons import Code
from levada.core.types import CPU_TYPE_NAME, Ints
from levada.errors import BadInput, Fault, did_you_mean
from levada.placement.placer import Packer
from levada.policies.registry import lookup
from levada.tables.cluster_state import ClusterState

if TYPE_CHECKING:
    from levada.allocate.case_file import Case, CaseCluster, CaseJob

#: The largest demand of all jobs together, in 1/1000ths: sums over jobs must fit into 64 bits.
MOST_ASKED = 10**15

_FIELDS = {"milli": "gpus_per_worker"}
_NOT_A_GPU = f"{CPU_TYPE_NAME!r} is reserved for workers without a GPU"


class CaseWorld(NamedTuple):
    """The cluster state, and the slots of the case's jobs in it."""

    world: ClusterState
    #: In the order of the case.
    slots: Ints


#: In cases these ignore priorities, like Voda's policies; a job's `priority` there is its Tiresias queue.
_BY_SUBMISSION = ("fifo", "elastic-fifo")


def faults_of(case: Case) -> list[Fault]:
    """The faults of *case* that its model does not check."""
    if too_large := size_faults(case):
        return too_large
    return [
        *_cluster_faults(case.cluster),
        *_job_faults(case),
        *(Fault(f"queues.{name}", text) for name, text in core_queue.faults_of(_queues(case))),
    ]


def build(
    case: Case, numbers: Mapping[str, int] | None = None, following: int = 0, *, by_age: bool = True
) -> CaseWorld:
    """The cluster state of a case; raises BadInput if running jobs do not fit.

    Jobs in *numbers* keep the number from an earlier case; the others get numbers from *following* on. *by_age*: derive
    `submitted` from `elapsed_s` where only the latter is given.
    """
    jobs, queues = _jobs(case, by_age), _queues(case)
    world = ClusterState(_cluster(case.cluster), queues)
    world.set_prices(case.cluster.prices)
    slots = _add_jobs(world, jobs, numbers or {}, following)
    for slot, job in zip(slots, case.jobs, strict=True):
        if job.first_started is not None:
            world.table.first_started[slot] = job.first_started
        for name, rate in (job.throughput or {}).items():
            if rate == 0 and (kind := world.inventory.types.find(name)) >= 0:
                world.table.preference[kind, slot] = NOT_ALLOWED
    _place_running(world, slots, case)
    return CaseWorld(world, slots)


def _cluster(cluster: CaseCluster) -> Cluster:
    if cluster.nodes is None:
        # Without nodes only sizes matter, so all GPUs of a type are on one node.
        return Cluster(nodes=tuple(Node.of(name, {name: count}) for name, count in (cluster.gpus or {}).items()))
    return Cluster(
        nodes=tuple(
            Node.of(
                node.name,
                node.gpus,
                gpu_memory=node.gpu_memory or 0,
                cpu=node.cpu,
                memory=node.memory,
                labels=node.labels,
            )
            for node in cluster.nodes
        )
    )


def _queues(case: Case) -> list[Queue]:
    return [Queue(name=name, **queue.model_dump()) for name, queue in case.queues.items()]


def _jobs(case: Case, by_age: bool = True) -> list[Job]:
    record = lookup(case.policy or "")
    by_priority = record is None or record.name not in _BY_SUBMISSION
    return [_job(job, case, by_age, by_priority) for job in case.jobs]


def _job(job: CaseJob, case: Case, by_age: bool, by_priority: bool) -> Job:
    submitted, now = job.submitted, case.now
    if by_age and job.elapsed_s is not None and "submitted" not in job.model_fields_set:
        submitted = now - job.elapsed_s
    return Job(
        id=job.id,
        submitted=submitted,
        min=job.min,
        max=job.max,
        desired=job.desired,
        step=job.step,
        milli=round(job.gpus_per_worker * 1000),
        gpu_memory=job.gpu_memory,
        cpu=job.cpu,
        memory=job.memory,
        gpu_types=tuple(job.gpu_types),
        # Rates in pairs may differ for each job.
        workload=job.id if case.pairs else "",
        queue=job.queue,
        entity=job.entity or "",
        priority=job.priority if by_priority else 0,
        weight=job.weight,
        deadline=None if job.deadline_s is None else now + job.deadline_s,
    )


def _add_jobs(world: ClusterState, jobs: list[Job], numbers: Mapping[str, int], following: int) -> Ints:
    """The slots of *jobs*. Numbers must ascend, so jobs that have one come first."""
    old = sorted((job for job in jobs if job.id in numbers), key=lambda job: numbers[job.id])
    # One batch per run of consecutive numbers, usually all of them.
    for _, run in groupby(enumerate(old), key=lambda pair: numbers[pair[1].id] - pair[0]):
        batch = [job for _, job in run]
        world.next_number = numbers[batch[0].id]
        world.add_jobs(JobBatch.of(batch))
    world.next_number = following
    new = sorted((job for job in jobs if job.id not in numbers), key=lambda job: job.submitted)
    if new:
        world.add_jobs(JobBatch.of(new))
    return world.table.find(np.array([world.numbers[job.id] for job in jobs], np.int64))


def _place_running(world: ClusterState, slots: Ints, case: Case) -> None:
    """Place running jobs: the case gives their workers, but not the devices."""
    sizes = [_running_size(job) for job in case.jobs]
    rows = np.array([i for i, (_, workers) in enumerate(sizes) if workers], np.int64)
    if not len(rows):
        return
    kind = np.array([world.inventory.types.find(sizes[i][0]) for i in rows], np.int64)
    count = np.array([sizes[i][1] for i in rows], np.int64)
    running, table = slots[rows], world.table
    placed = Packer().place(world, world.target, running, kind, count)
    if (placed < count).any():
        unplaced = rows[placed < count]
        raise BadInput(Fault(f"jobs[{i}].running", "the cluster has no room for it") for i in unplaced)
    world.held = world.target.copy()
    started = [case.jobs[i].first_started for i in rows]
    table.started[running] = [
        table.submitted[slots[i]] if at is None else at for i, at in zip(rows, started, strict=True)
    ]
    # The running time so far is unknown, so counters start now.
    table.since[running] = case.now
    table.type[running] = table.held_type[running] = kind
    table.count[running] = table.held[running] = table.observed[running] = count
    table.phase[running] = Phase.RUNNING
    table.reason[running] = Code.RUNS


def _running_size(job: CaseJob) -> tuple[str, int]:
    """The type and the number of workers that the job has now."""
    return next(((name, workers) for name, workers in (job.running or {}).items() if workers), ("", 0))


# ------------------------------------------------------------------------------------------------------------- faults


def _cluster_faults(cluster: CaseCluster) -> list[Fault]:
    if cluster.nodes is None:
        by_path = {"cluster.gpus": cluster.gpus or {}}
    else:
        by_path = {f"cluster.nodes[{i}].gpus": node.gpus for i, node in enumerate(cluster.nodes)}
    return [Fault(f"{path}.{CPU_TYPE_NAME}", _NOT_A_GPU) for path, gpus in by_path.items() if CPU_TYPE_NAME in gpus]


def _job_faults(case: Case) -> list[Fault]:
    jobs, faults, types = _jobs(case), [], gpu_types(case.cluster)
    for i, (job, written) in enumerate(zip(jobs, case.jobs, strict=True)):
        faults += [Fault(f"jobs[{i}].{_FIELDS.get(field, field)}", text) for field, text in core_job.faults_of(job)]
        if job.milli > 0 and CPU_TYPE_NAME in job.gpu_types:
            faults.append(Fault(f"jobs[{i}].gpu_types[{job.gpu_types.index(CPU_TYPE_NAME)}]", _NOT_A_GPU))
        name, workers = _running_size(written)
        if workers and not (job.min <= workers <= job.max and (workers - job.min) % job.step == 0):
            steps = f" in steps of {job.step}" if job.step > 1 else ""
            faults.append(Fault(f"jobs[{i}].running.{name}", f"must be {job.min} to {job.max}{steps}"))
        if workers and (name == CPU_TYPE_NAME) != (job.milli == 0):
            faults.append(
                Fault(f"jobs[{i}].running.{name}", f"use {CPU_TYPE_NAME!r} if and only if gpus_per_worker is 0")
            )
        elif workers and job.milli and (text := _cannot_run(written, name, types)):
            faults.append(Fault(f"jobs[{i}].running.{name}", text))
        faults += _speedup_faults(written.speedup or {}, f"jobs[{i}].speedup")
    if sum(job.max * max(job.milli, job.cpu, job.memory, job.gpu_memory) for job in jobs) > MOST_ASKED:
        faults.append(Fault("jobs", "request too much in total; lower max or the amounts per worker"))
    return faults


def gpu_types(cluster: CaseCluster) -> list[str]:
    """The GPU types of the cluster."""
    named = [cluster.gpus or {}, *(node.gpus for node in cluster.nodes or ())]
    return list(dict.fromkeys(name for gpus in named for name, count in gpus.items() if count))


def _cannot_run(job: CaseJob, name: str, types: list[str]) -> str:
    """Why a job cannot be running on the type *name*; empty if it can."""
    if name not in types:
        return "the cluster has no such GPU type" + did_you_mean(name, types)
    if job.gpu_types and name not in job.gpu_types:
        return f"is not among its gpu_types ({', '.join(job.gpu_types)})"
    return "cannot run there: its throughput is 0" if (job.throughput or {}).get(name) == 0 else ""


def _speedup_faults(speedup: Mapping[str, float], path: str) -> list[Fault]:
    one = speedup.get("1", 1.0)
    if one <= 0:
        return [Fault(f"{path}.1", "must be above 0")]
    faults = [Fault(f"{path}.{size}", "must be at least 0") for size, value in speedup.items() if value < 0]
    too_large = (size for size, value in speedup.items() if not math.isfinite(value / one))
    return faults + [Fault(f"{path}.{size}", "is too large relative to that of one worker") for size in too_large]
