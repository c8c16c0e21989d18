"""Size limits of a case: every answer takes less than a minute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from levada.errors import Fault
from levada.policies.gavel.share import AnySharePolicy
from levada.policies.protocol import AnyPolicy, Needs, decides_by_node

if TYPE_CHECKING:
    from levada.allocate.case_file import Case

MOST_JOBS = 100_000
MOST_NODES = 100_000
#: A device is an object, so this bounds memory.
MOST_GPUS = 100_000
#: Every job has a rank for each type.
MOST_TYPES = 256
MOST_QUEUES = 1000
#: Levels of the queue tree.
MOST_LEVELS = 100
#: Workers that could run at once, including those with a fraction of a GPU or none.
MOST_WORKERS = 250_000
#: Jobs x workers, for policies that assign each worker to the job that gains most.
MOST_CONTESTS = 300_000_000
#: Jobs of a share policy; with space sharing; with one solve per job.
MOST_SHARING = 10_000
MOST_PACKED = 300
MOST_PROOF = 200
#: Jobs x queue positions of all GPUs.
MOST_LINES = 30_000_000
#: GPUs of one node, for policies that decide by node.
MOST_ON_A_NODE = 8192


def size_faults(case: Case) -> list[Fault]:
    """The parts of *case* that are too large; call this before anything expensive."""
    counted = [
        ("jobs", len(case.jobs), MOST_JOBS, "jobs"),
        ("cluster.nodes", len(case.cluster.nodes or ()), MOST_NODES, "nodes"),
        ("cluster", _gpus(case), MOST_GPUS, "GPUs"),
        ("", len(set(_types(case))), MOST_TYPES, "GPU types"),
        ("queues", len(case.queues), MOST_QUEUES, "queues"),
        ("queues", _levels(case), MOST_LEVELS, "levels"),
    ]
    faults = [Fault(path, f"has more than {most} {what}") for path, number, most, what in counted if number > most]
    if not faults and _workers(case) > MOST_WORKERS:
        faults.append(Fault("jobs", f"could have more than {MOST_WORKERS} workers in total; lower max"))
    return faults


def policy_faults(case: Case, policy: AnyPolicy) -> list[Fault]:
    """The parts of *case* that are too large for this policy."""
    faults = []
    if Needs.RATE in policy.needs and len(case.jobs) * _workers(case) > MOST_CONTESTS:
        faults.append(Fault("jobs", f"jobs x workers must be at most {MOST_CONTESTS:,} for {policy.name}; lower max"))
    if decides_by_node(policy):
        nodes = [(f"cluster.gpus.{name}", count) for name, count in (case.cluster.gpus or {}).items()]
        nodes += [
            (f"cluster.nodes[{i}].gpus", sum(node.gpus.values())) for i, node in enumerate(case.cluster.nodes or ())
        ]
        text = f"{policy.name} decides by node; use nodes of at most {MOST_ON_A_NODE} GPUs"
        faults += [Fault(path, text) for path, count in nodes if count > MOST_ON_A_NODE]
    return faults


def share_faults(case: Case, policy: AnySharePolicy) -> list[Fault]:
    """The parts of *case* that are too large for this share policy."""
    jobs = len(case.jobs)
    most = MOST_SHARING
    if policy.packs:
        most = MOST_PACKED
    elif policy.name.startswith("max_min_fairness_strategy_proof"):
        most = MOST_PROOF
    if jobs > most:
        return [Fault("jobs", f"has more than {most} jobs, the most that {policy.name} supports; use fewer jobs")]
    if policy.name == "allox" and jobs * jobs * _gpus(case) > MOST_LINES:
        return [Fault("jobs", f"jobs x jobs x GPUs must be at most {MOST_LINES:,} for allox; use fewer jobs")]
    return []


def _gpus(case: Case) -> int:
    return sum((case.cluster.gpus or {}).values()) + sum(sum(n.gpus.values()) for n in case.cluster.nodes or ())


def _types(case: Case) -> Iterator[str]:
    cluster = case.cluster
    yield from cluster.gpus or ()
    for node in cluster.nodes or ():
        yield from node.gpus
    for job in case.jobs:
        yield from (*job.gpu_types, *(job.throughput or ()), *(job.running or ()))
    for queue in case.queues.values():
        yield from (*queue.guaranteed, *queue.limit)
    for pair in case.pairs:
        yield from pair.throughput


def _levels(case: Case) -> int:
    """The depth of the queue tree; a cycle has a fault of its own."""
    level: dict[str | None, int] = {None: 0}
    for name in case.queues:
        path: list[str] = []
        at: str | None = name
        while at in case.queues and at not in level and len(path) <= MOST_LEVELS:
            path.append(at)
            at = case.queues[at].parent
        if at in path:
            continue  # a cycle, which has a fault of its own
        for distance, queue in enumerate(reversed(path), start=1):
            level[queue] = level.get(at, 0) + distance
    return max(level.values())


def _workers(case: Case) -> int:
    """The most workers: those that jobs request, at most as many as the GPUs hold."""
    asked: Counter[float] = Counter()
    for job in case.jobs:
        asked[job.gpus_per_worker] += job.max
    gpus = _gpus(case)
    return sum(min(most, int(gpus / unit)) if unit else most for unit, most in asked.items())
