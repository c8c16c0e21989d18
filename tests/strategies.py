"""Hypothesis strategies for inputs of policies: clusters, jobs, speed-up curves and queues.

Speed-ups are exact binary fractions and times are whole seconds, so that sums and quotients are exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from levada.core.job import Job
from levada.core.queue import Queue
from levada.perf.table_model import JobSpeed, TableModel
from levada.tables.cluster_state import ClusterState
from levada.tables.snapshot import Snapshot
from tests.builders import cluster, world

TYPES = ("v100", "a100", "k80")


class PolicyInput(NamedTuple):
    """A snapshot with its cluster state, and the speeds of its jobs."""

    world: ClusterState
    snap: Snapshot
    perf: TableModel


@st.composite
def curves(draw: st.DrawFn, longest: int = 12) -> dict[int, float]:
    """A speed-up table: linear, with falling gains, flat above 4 workers, or arbitrary."""
    kind = draw(st.sampled_from(["linear", "falling", "flat", "any"]))
    if kind == "linear":
        return {n: float(n) for n in range(1, longest + 1)}
    if kind == "flat":
        return {n: float(min(n, 4)) for n in range(1, longest + 1)}
    sixteenths = draw(st.lists(st.integers(0, 48), min_size=longest - 1, max_size=longest - 1))
    if kind == "any":
        return {1: 1.0} | {n: value / 16 for n, value in enumerate(sixteenths, start=2)}
    gains = sorted((value % 17 / 16 for value in sixteenths), reverse=True)
    return {n: 1.0 + sum(gains[: n - 1]) for n in range(1, longest + 1)}


@st.composite
def jobs(draw: st.DrawFn, index: int, *, types: int = 1, odd: bool = False, queues: tuple[str, ...] = ()) -> Job:
    """A job; with *odd* also size steps, several GPUs per worker, GPU fractions and CPU workers."""
    least = draw(st.integers(1, 4))
    most = least + draw(st.integers(0, 6))
    milli, cpu, step = 1000, 0, 1
    if odd:
        milli = draw(st.sampled_from([1000, 1000, 2000, 500, 250, 0]))
        cpu = draw(st.sampled_from([0, 500, 1000]))
        step = draw(st.integers(1, 3))
    known = [*TYPES[:types], "unknown"]
    allowed = draw(st.lists(st.sampled_from(known), unique=True, max_size=3)) if types > 1 else []
    return Job(
        id=f"j{index}",
        submitted=float(draw(st.integers(0, 5))),
        min=least,
        max=most,
        desired=draw(st.integers(least, most)),
        step=step,
        milli=milli,
        cpu=cpu,
        gpu_types=tuple(allowed),
        queue=draw(st.sampled_from(queues)) if queues else "default",
        steps=draw(st.sampled_from([None, 0.0, 60.0, 120.0, 480.0])),
    )


@st.composite
def queue_trees(draw: st.DrawFn, types: int = 1) -> tuple[Queue, ...]:
    """One to five queues in any hierarchy."""
    queues: list[Queue] = []
    for i in range(draw(st.integers(1, 5))):
        limit = {t: draw(st.integers(0, 10)) for t in TYPES[:types] if draw(st.booleans())}
        guaranteed = {t: draw(st.integers(0, min(6, limit.get(t, 6)))) for t in TYPES[:types] if draw(st.booleans())}
        queues.append(
            Queue(
                name=f"q{i}",
                parent=draw(st.sampled_from([None, *(queue.name for queue in queues)])),
                weight=draw(st.sampled_from([0.5, 1.0, 2.0, 3.0])),
                guaranteed={t: float(n) for t, n in guaranteed.items()},
                limit={t: float(n) for t, n in limit.items()},
                borrow=draw(st.integers(0, 3)) > 0,
            )
        )
    return tuple(queues)


@st.composite
def policy_inputs(
    draw: st.DrawFn,
    *,
    types: int = 1,
    odd: bool = False,
    with_queues: bool = False,
    running: bool = True,
    most_jobs: int = 8,
    most_gpus: int = 12,
) -> PolicyInput:
    """Jobs on a small cluster, some of them running; with queues, some running jobs are hidden."""
    queues = draw(queue_trees(types)) if with_queues else ()
    names = tuple(queue.name for queue in queues) + (("default",) if queues else ())
    count = draw(st.integers(0, most_jobs))
    job_list = [draw(jobs(i, types=types, odd=odd, queues=names)) for i in range(count)]
    machines = cluster(
        {gpu_type: draw(st.integers(0, most_gpus)) for gpu_type in TYPES[:types]},
        cpu=draw(st.sampled_from([None, 0, 1500, 6000])) if odd else None,
    )
    state = world(machines, *job_list, queues=queues)
    table = state.table
    for job in job_list:
        slot = state.slot(job.id)
        allowed = (table.preference[:, slot] < 32767).nonzero()[0]
        if running and len(allowed) and draw(st.booleans()):
            table.type[slot] = draw(st.sampled_from(allowed.tolist()))
            table.count[slot] = table.observed[slot] = job.min
            table.first_started[slot] = draw(st.integers(0, 9))
            table.gpu_seconds[slot] = draw(st.sampled_from([0.0, 3599.0, 3600.0, 9000.0]))
            table.running_s[slot] = table.gpu_seconds[slot]
        elif draw(st.booleans()):
            table.first_started[slot] = draw(st.integers(0, 9))
            table.gpu_seconds[slot] = table.running_s[slot] = draw(st.sampled_from([10.0, 4000.0]))
            table.waiting_s[slot] = draw(st.sampled_from([0.0, 80.0, 32000.0]))
    table.since[table.order] = 100.0
    # Few workloads for all jobs: equal curves cause ties.
    workloads = [(draw(curves()), {kind: 1.0 + (kind + i) % 2 for kind in range(1 + types)}) for i in range(3)]
    chosen = [draw(st.sampled_from(workloads)) for _ in job_list]
    speeds = [
        JobSpeed(job=state.numbers[job.id], speedup=curve, throughput=throughput)
        for job, (curve, throughput) in zip(job_list, chosen, strict=True)
    ]
    return PolicyInput(state, _view(draw, state, with_queues), TableModel(speeds))


def _view(draw: st.DrawFn, state: ClusterState, hide_some: bool) -> Snapshot:
    """The snapshot; some running jobs may be hidden, with the devices that they hold."""
    snap = state.snapshot(100.0)
    if not hide_some:
        return snap
    table, capacity = state.table, snap.capacity.copy()
    shown = []
    for slot in table.order.tolist():
        held = int(table.count[slot] * table.units()[slot])
        kind = int(table.type[slot])
        if held and capacity[kind] >= held and draw(st.integers(0, 3)) == 0:
            capacity[kind] -= held
        else:
            shown.append(slot)
    view = state.snapshot(100.0, np.array(shown, np.int64))
    return view.restricted(np.arange(len(shown)), capacity)
