"""Make room for serving pods with as few training workers as possible.

A pod that fits is bound. For one that does not fit, workers leave and the room is reserved. A pod that no node could
ever hold is skipped.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from levada.core.cluster import Foreign
from levada.core.decision import Bind, Reservation
from levada.core.job import Preemptible
from levada.core.reasons import Code
from levada.core.types import WHOLE, Ints
from levada.policies.dragon.capacity import FreeCapacity
from levada.policies.dragon.cycle import Cycle
from levada.policies.dragon.gang import GangLayout, GangRequest, Spot, lay_out, pod_request
from levada.policies.dragon.preemption import SpareWorkers, shortest
from levada.policies.dragon.state import DragonState, reached

#: The most nodes that are searched exactly for one pod.
_MOST_NODES = 32

#: Which whole jobs may be stopped for a serving pod if shrinking is not enough.
PREEMPTION = ("never", "preemptible-only", "lowest-priority")


class Rules(NamedTuple):
    """Options of the serving phase."""

    preempt: str
    reservation_s: float


class ServedPod(msgspec.Struct):
    """The result of the serving phase."""

    #: A pod was bound, or workers were stopped for one.
    acted: bool = False
    #: Workers are leaving for a pending pod, stopped now or by an earlier decision.
    makes_room: bool = False
    #: A pod that fits an empty cluster found no room.
    unmet: bool = False
    #: Workers lost by jobs, by row.
    lost: dict[int, int] = {}
    ready: dict[str, float] = {}


def serve(cycle: Cycle, state: DragonState, rank: Ints, rules: Rules) -> ServedPod:
    """Bind pods and make room for them, highest priority first."""
    served, now = ServedPod(), cycle.snap.now
    reserved = {reservation.id: reservation.node for reservation in state.reservations}
    spare: SpareWorkers | None = None
    for pod in cycle.snap.serving:
        since = state.ready.get(pod.id)
        if since is not None:
            served.ready[pod.id] = since
            if reached(now, since, rules.reservation_s):
                continue  # the pod did not use its room in time: it returns to training
        gang = pod_request(cycle.snap.inventory, pod)
        layout = _reserved_layout(cycle, gang, reserved.get(pod.id, -1)) or lay_out(cycle.now, gang, 1, 1)
        if layout.workers:
            served.acted = True
            served.ready.setdefault(pod.id, now)
            _bind(cycle, pod, gang, layout, served.ready[pod.id] + rules.reservation_s)
            continue
        if cycle.soon is cycle.now or not lay_out(cycle.soon, gang, 1, 1).workers:
            if not lay_out(cycle.empty, gang, 1, 1).workers:
                continue
            spare = spare or SpareWorkers(cycle, rank)
            if not _make_room(spare, gang, rank, rules, served):
                served.unmet = True
                continue
            spare, served.acted = None, True
        served.makes_room = True
        _reserve(cycle, pod, gang, now + rules.reservation_s)
    return served


def _reserved_layout(cycle: Cycle, gang: GangRequest, node: int) -> GangLayout | None:
    """The layout on the reserved node of a pod, if it fits there now."""
    if node >= 0:
        for gpu_type in gang.types:
            if cycle.now.room_at(node, gang.worker, gpu_type):
                return GangLayout(gpu_type, (Spot(node, 0, 1),))
    return None


def _bind(cycle: Cycle, pod: Foreign, gang: GangRequest, layout: GangLayout, expires: float) -> None:
    node = layout.spots[0].node
    devices = cycle.now.take(node, gang.worker, layout.gpu_type, 1)
    if cycle.soon is not cycle.now:
        cycle.soon.take_same(node, gang.worker, layout.gpu_type, 1, devices)
    cycle.binds.append(Bind(pod=pod.id, node=node, device=int(devices[0]) if len(devices) == 1 else -1))
    _add_reservation(cycle, pod, gang, node, devices, expires)


def _reserve(cycle: Cycle, pod: Foreign, gang: GangRequest, expires: float) -> None:
    [(spot, devices)] = cycle.claim(lay_out(cycle.soon, gang, 1, 1), gang)
    _add_reservation(cycle, pod, gang, spot.node, devices, expires)


def _add_reservation(cycle: Cycle, pod: Foreign, gang: GangRequest, node: int, devices: Ints, expires: float) -> None:
    milli = gang.worker.milli if gang.worker.is_part else WHOLE
    cycle.reservations.append(
        Reservation(
            id=pod.id,
            node=node,
            cpu=pod.cpu,
            memory=pod.memory,
            devices=tuple((device, milli, gang.worker.gpu_memory) for device in devices.tolist()),
            expires=expires,
        )
    )
    cycle.wake(expires)


def _make_room(spare: SpareWorkers, gang: GangRequest, rank: Ints, rules: Rules, served: ServedPod) -> bool:
    """Stop workers so that the pod will fit; False, without change, if impossible."""
    cycle, processes = spare.cycle, spare.cycle.processes
    victims = _victims(spare, gang)
    if victims is None and rules.preempt != "never":
        victims = _whole_jobs(cycle, gang, rank, rules.preempt)
        if victims is not None:
            cycle.reason[processes.job[victims]] = int(Code.PREEMPTED)
    if victims is None:
        return False
    cycle.remove(victims)
    for row in processes.job[victims].tolist():
        if cycle.count[row] > 0:
            served.lost[row] = served.lost.get(row, 0) + 1
    return True


def _victims(spare: SpareWorkers, gang: GangRequest) -> Ints | None:
    """The fewest workers on one node to stop for a pod; ties: those with the highest indices."""
    processes, worker = spare.cycle.processes, gang.worker
    fits = np.zeros(len(spare.cycle.soon.first), bool)
    for gpu_type in gang.types:
        fits |= spare.capacity.room(worker, gpu_type) > 0
    position = np.arange(len(spare.members))
    on_fitting = fits[processes.node[spare.members]]
    members, position = spare.members[on_fitting], position[on_fitting]
    if not len(members):
        return None
    nodes, first, inverse = np.unique(processes.node[members], return_index=True, return_inverse=True)
    at_least = _at_least(spare, gang, nodes, members, inverse)
    best: tuple[int, int, int, list[int]] | None = None
    victims = None
    scratch = spare.cycle.soon.copy()
    for i in np.lexsort((first, at_least))[:_MOST_NODES].tolist():
        if best is not None and at_least[i] > best[0]:
            break
        here = members[inverse == i]
        chosen = _on_node(spare, gang, int(nodes[i]), here, scratch)
        if chosen is not None:
            where = np.flatnonzero(np.isin(spare.members, chosen)).tolist()
            score = (len(chosen), int(processes.is_home[chosen].sum()), -int(processes.index[chosen].min()), where)
            if best is None or score < best:
                best, victims = score, chosen
    return victims


def _at_least(spare: SpareWorkers, gang: GangRequest, nodes: Ints, members: Ints, inverse: Ints) -> Ints:
    """A lower bound of the victims per node."""
    soon, processes, worker = spare.cycle.soon, spare.cycle.processes, gang.worker

    def needed(missing: Ints, gains: Ints) -> Ints:
        largest = np.ones(len(nodes), np.int64)
        np.maximum.at(largest, inverse, gains)
        return -(-np.maximum(missing, 0) // largest)

    bound = np.maximum(
        needed(worker.cpu - soon.cpu[nodes], processes.cpu[members]),
        needed(worker.memory - soon.memory[nodes], processes.memory[members]),
    )
    if worker.devices:
        fresh = soon.fresh[list(gang.types)][:, nodes].max(axis=0)
        bound = np.maximum(bound, needed(worker.devices - fresh, processes.end[members] - processes.begin[members]))
    return np.maximum(bound, 1)


def _on_node(spare: SpareWorkers, gang: GangRequest, node: int, members: Ints, scratch: FreeCapacity) -> Ints | None:
    """The fewest *members* on *node* to stop: in the given order, or largest first."""
    processes, worker = spare.cycle.processes, gang.worker

    def fits() -> bool:
        return any(scratch.room_at(node, worker, gpu_type) > 0 for gpu_type in gang.types)

    largest_first = np.lexsort((-processes.cpu[members], processes.begin[members] - processes.end[members]))
    best: Ints | None = None
    for order in (np.arange(len(members)), largest_first):
        taken: list[Ints] = []
        for unit in spare.units(members[order]):
            if fits():
                break
            processes.release(scratch, unit)
            taken.append(unit)
        enough = fits()
        for unit in reversed(taken.copy()):
            processes.undo_release(scratch, unit)
            if enough and not fits():
                processes.release(scratch, unit)
            elif enough:
                taken = [other for other in taken if other is not unit]
        if enough:
            chosen = np.concatenate(taken)
            processes.undo_release(scratch, chosen)
            if best is None or len(chosen) < len(best):
                best = chosen
    return best


def _whole_jobs(cycle: Cycle, gang: GangRequest, rank: Ints, preempt: str) -> Ints | None:
    """All members of the fewest jobs to stop: lowest priority, then youngest, first."""
    jobs, processes = cycle.snap.jobs, cycle.processes
    least = Preemptible.ALWAYS if preempt == "preemptible-only" else Preemptible.AUTO
    rows = ((cycle.count > 0) & (jobs.preemptible >= least)).nonzero()[0]
    rows = rows[np.lexsort((-rank[rows], jobs.priority[rows]))]

    def all_of(some: Ints) -> Ints:
        return (np.isin(processes.job, some) & ~cycle.gone).nonzero()[0]

    def fits(some: Ints) -> bool:
        capacity = cycle.soon.copy()
        processes.release(capacity, all_of(some))
        return lay_out(capacity, gang, 1, 1).workers > 0

    if not fits(rows):
        return None
    rows = rows[: shortest(len(rows), lambda length: fits(rows[:length]))]
    for row in rows[::-1].tolist():
        if fits(rows[rows != row]):
            rows = rows[rows != row]
    return all_of(rows)
