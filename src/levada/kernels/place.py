"""Giving up and finding whole devices, for many jobs in one call.

`owner` and `index` are the columns of the plane that is changed, `cpu_used` and `memory_used` (per node) too; `held`
and `held_index` are those of the plane that is observed. Jobs are worked off in the order given. A worker takes *whole*
devices of one pool; pools of one node stand side by side. Sizes are `least` plus multiples of `step`.
"""

from __future__ import annotations

from levada.kernels.arrays import Bools, Ints
from levada.kernels.switch import kernels


def shed(
    owner: Ints,
    index: Ints,
    cpu_used: Ints,
    memory_used: Ints,
    held: Ints,
    node_of: Ints,
    slot: Ints,
    keep: Ints,
    whole: Ints,
    cpu: Ints,
    memory: Ints,
    highest_first: bool,
) -> None:
    """Cuts each job down to *keep* workers.

    Workers that do not run yet go first; then lonely ones, on nodes where the job has fewest; then the highest index.
    The node of worker 0 is emptied last, and worker 0 goes only with the whole job. With *highest_first* the index
    alone counts, for backends that can only cut from the end.
    """
    kernels["place"].shed(
        owner,
        index,
        cpu_used,
        memory_used,
        held,
        node_of,
        slot,
        keep,
        whole,
        cpu,
        memory,
        highest_first,
    )


def seat(
    owner: Ints,
    index: Ints,
    cpu_used: Ints,
    memory_used: Ints,
    cpu_free: Ints,
    memory_free: Ints,
    held: Ints,
    held_index: Ints,
    usable: Bools,
    pool_start: Ints,
    pool_stop: Ints,
    pool_node: Ints,
    pool_type: Ints,
    rack: Ints,
    zone: Ints,
    slot: Ints,
    gpu_type: Ints,
    want: Ints,
    least: Ints,
    step: Ints,
    whole: Ints,
    cpu: Ints,
    memory: Ints,
) -> Ints:
    """Grows each job to *want* workers on free devices; how many it has then, which is less where they do not fit.

    First the workers that still run where the job was before, with their index; then the nodes where the job is, most
    workers first; then the rack and zone where it is, if they hold the rest. There, or else anywhere, one node where it
    fits best; then the tightest rack, zone or cluster that holds it, largest nodes first. Nodes where enough is free at
    once come before nodes that others have to leave first. A job that cannot reach *least* gets nothing.
    """
    seated: Ints = kernels["place"].seat(
        owner,
        index,
        cpu_used,
        memory_used,
        cpu_free,
        memory_free,
        held,
        held_index,
        usable,
        pool_start,
        pool_stop,
        pool_node,
        pool_type,
        rack,
        zone,
        slot,
        gpu_type,
        want,
        least,
        step,
        whole,
        cpu,
        memory,
    )
    return seated
