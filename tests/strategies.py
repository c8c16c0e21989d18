"""Hypothesis strategies for what policies see: clusters, jobs, speed-up curves, queues, and whole scenes of them.

Speed-ups are exact binary fractions and times whole seconds, so that sums and quotients compare without rounding.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from levada.core.job import Job
from levada.core.queue import Queue
from levada.perf.table import JobSpeed, TableModel
from levada.tables.snapshot import Snapshot
from levada.tables.world import World
from tests.builders import cluster, world

TYPES = ("v100", "a100", "k80")


class Scene(NamedTuple):
    """One moment, and what is believed about the speed of its jobs."""

    world: World
    snap: Snapshot
    perf: TableModel


@st.composite
def curves(draw: st.DrawFn, longest: int = 12) -> dict[int, float]:
    """A speed-up table: linear, of falling gain, flat from somewhere, or anything."""
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
    """A job; with *odd* also steps, several GPUs per worker, parts of a GPU and workers without one."""
    least = draw(st.integers(1, 4))
    most = least + draw(st.integers(0, 6))
    milli, cpu, step = 1000, 0, 1
    if odd:
        milli = draw(st.sampled_from([1000, 1000, 2000, 500, 250, 0]))
        cpu = draw(st.sampled_from([0, 500, 1000]))
        step = draw(st.integers(1, 3))
    known = [*TYPES[:types], "unheard-of"]
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
    """One to five queues, nested at will."""
    made: list[Queue] = []
    for i in range(draw(st.integers(1, 5))):
        limit = {t: draw(st.integers(0, 10)) for t in TYPES[:types] if draw(st.booleans())}
        sure = {t: draw(st.integers(0, min(6, limit.get(t, 6)))) for t in TYPES[:types] if draw(st.booleans())}
        made.append(
            Queue(
                name=f"q{i}",
                parent=draw(st.sampled_from([None, *(queue.name for queue in made)])),
                weight=draw(st.sampled_from([0.5, 1.0, 2.0, 3.0])),
                guaranteed={t: float(n) for t, n in sure.items()},
                limit={t: float(n) for t, n in limit.items()},
                borrow=draw(st.integers(0, 3)) > 0,
            )
        )
    return tuple(made)


@st.composite
def scenes(
    draw: st.DrawFn,
    *,
    types: int = 1,
    odd: bool = False,
    with_queues: bool = False,
    running: bool = True,
    most_jobs: int = 8,
    most_gpus: int = 12,
) -> Scene:
    """Jobs on a small cluster, some running already; with queues also some that run out of view."""
    queues = draw(queue_trees(types)) if with_queues else ()
    names = tuple(queue.name for queue in queues) + (("default",) if queues else ())
    count = draw(st.integers(0, most_jobs))
    made = [draw(jobs(i, types=types, odd=odd, queues=names)) for i in range(count)]
    machines = cluster(
        {gpu_type: draw(st.integers(0, most_gpus)) for gpu_type in TYPES[:types]},
        cpu=draw(st.sampled_from([None, 0, 1500, 6000])) if odd else None,
    )
    there = world(machines, *made, queues=queues)
    table = there.table
    for job in made:
        slot = there.slot(job.id)
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
    # A few workloads, each of several jobs: equal curves are what ties are made of.
    workloads = [(draw(curves()), {kind: 1.0 + (kind + i) % 2 for kind in range(1 + types)}) for i in range(3)]
    chosen = [draw(st.sampled_from(workloads)) for _ in made]
    speeds = [
        JobSpeed(job=there.numbers[job.id], speedup=curve, throughput=throughput)
        for job, (curve, throughput) in zip(made, chosen, strict=True)
    ]
    return Scene(there, _view(draw, there, with_queues), TableModel(speeds))


def _view(draw: st.DrawFn, there: World, some_hidden: bool) -> Snapshot:
    """The snapshot; of the running jobs some may be out of view, with what they hold."""
    snap = there.snapshot(100.0)
    if not some_hidden:
        return snap
    table, capacity = there.table, snap.capacity.copy()
    shown = []
    for slot in table.order.tolist():
        held = int(table.count[slot] * table.units()[slot])
        kind = int(table.type[slot])
        if held and capacity[kind] >= held and draw(st.integers(0, 3)) == 0:
            capacity[kind] -= held
        else:
            shown.append(slot)
    view = there.snapshot(100.0, np.array(shown, np.int64))
    return view.restricted(np.arange(len(shown)), capacity)
