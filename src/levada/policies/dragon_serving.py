"""Serving pods come first: room for each that waits, at the cost of as few training workers as possible.

A pod that fits is bound. For one that does not, workers leave and the room is reserved. A pod that no node could ever
hold is left out, and training goes on.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from levada.core.cluster import Foreign
from levada.core.decision import Bind, Reservation
from levada.core.job import Preemptible
from levada.core.reasons import Code
from levada.core.types import CPU_TYPE, WHOLE, Ints
from levada.policies.dragon_board import Board, Demand
from levada.policies.dragon_cycle import Cycle
from levada.policies.dragon_gang import Gang, Layout, Spot, lay_out
from levada.policies.dragon_state import DragonState, reached
from levada.policies.dragon_victims import Spare, shortest

#: Nodes that are looked at closely for one pod.
_CLOSELY = 32

#: May whole jobs be stopped for a serving pod, where shrinking is not enough?
PREEMPTION = ("never", "preemptible-only", "lowest-priority")


class Rules(NamedTuple):
    """Options of the serving phase."""

    preempt: str
    reservation_s: float


class Served(msgspec.Struct):
    """What came of it."""

    #: Some pod was bound, or workers leave for one.
    acted: bool = False
    #: Workers leave, or have been told to before, for a pod that waits.
    makes_room: bool = False
    #: A pod that could fit one day found no room.
    unmet: bool = False
    #: Workers that jobs lost, by row.
    lost: dict[int, int] = {}
    ready: dict[str, float] = {}


def serve(cycle: Cycle, state: DragonState, rank: Ints, rules: Rules) -> Served:
    """Binds pods and makes room for them, the most important first."""
    served, now = Served(), cycle.snap.now
    kept = {reservation.id: reservation.node for reservation in state.reservations}
    spare: Spare | None = None
    for pod in cycle.snap.serving:
        since = state.ready.get(pod.id)
        if since is not None:
            served.ready[pod.id] = since
            if reached(now, since, rules.reservation_s):
                continue  # room was ready and nobody took it: it goes back to training
        gang = _gang(cycle, pod)
        layout = _where_it_was(cycle, gang, kept.get(pod.id, -1)) or lay_out(cycle.now, gang, 1, 1)
        if layout.workers:
            served.acted = True
            served.ready.setdefault(pod.id, now)
            _bind(cycle, pod, gang, layout, served.ready[pod.id] + rules.reservation_s)
            continue
        if cycle.soon is cycle.now or not lay_out(cycle.soon, gang, 1, 1).workers:
            if not lay_out(cycle.empty, gang, 1, 1).workers:
                continue
            spare = spare or Spare(cycle, rank)
            if not _make_room(spare, gang, rank, rules, served):
                served.unmet = True
                continue
            spare, served.acted = None, True
        served.makes_room = True
        _reserve(cycle, pod, gang, now + rules.reservation_s)
    return served


def _gang(cycle: Cycle, pod: Foreign) -> Gang:
    types = cycle.snap.inventory.types
    if pod.milli == 0:
        allowed: tuple[int, ...] = (CPU_TYPE,)
    elif pod.gpu_type is not None:
        allowed = tuple(t for t in (types.find(pod.gpu_type),) if 0 <= t < len(cycle.soon.idle))
    else:
        allowed = tuple(range(1, len(types)))
    return Gang(0, 0, 0, Demand(pod.cpu, pod.memory, pod.milli, pod.gpu_memory if pod.milli % WHOLE else 0), allowed)


def _where_it_was(cycle: Cycle, gang: Gang, node: int) -> Layout | None:
    """The node that was kept for a pod, if it fits there now."""
    if node >= 0:
        for gpu_type in gang.types:
            if cycle.now.room_at(node, gang.worker, gpu_type):
                return Layout(gpu_type, (Spot(node, 0, 1),))
    return None


def _bind(cycle: Cycle, pod: Foreign, gang: Gang, layout: Layout, expires: float) -> None:
    node = layout.spots[0].node
    devices = cycle.now.take(node, gang.worker, layout.gpu_type, 1)
    if cycle.soon is not cycle.now:
        cycle.soon.take_same(node, gang.worker, layout.gpu_type, 1, devices)
    cycle.binds.append(Bind(pod=pod.id, node=node, device=int(devices[0]) if len(devices) == 1 else -1))
    _keep(cycle, pod, gang, node, devices, expires)


def _reserve(cycle: Cycle, pod: Foreign, gang: Gang, expires: float) -> None:
    [(spot, devices)] = cycle.claim(lay_out(cycle.soon, gang, 1, 1), gang)
    _keep(cycle, pod, gang, spot.node, devices, expires)


def _keep(cycle: Cycle, pod: Foreign, gang: Gang, node: int, devices: Ints, expires: float) -> None:
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


def _make_room(spare: Spare, gang: Gang, rank: Ints, rules: Rules, served: Served) -> bool:
    """Lets workers go so that the pod will fit; False, and nothing, where that is impossible."""
    cycle, crew = spare.cycle, spare.cycle.crew
    victims = _victims(spare, gang)
    if victims is None and rules.preempt != "never":
        victims = _whole_jobs(cycle, gang, rank, rules.preempt)
        if victims is not None:
            cycle.reason[crew.job[victims]] = int(Code.PREEMPTED)
    if victims is None:
        return False
    cycle.remove(victims)
    for row in crew.job[victims].tolist():
        if cycle.count[row] > 0:
            served.lost[row] = served.lost.get(row, 0) + 1
    return True


def _victims(spare: Spare, gang: Gang) -> Ints | None:
    """The fewest workers on one node whose leaving makes room for a pod; of equals the first to go."""
    crew, worker = spare.cycle.crew, gang.worker
    fits = np.zeros(len(spare.cycle.soon.first), bool)
    for gpu_type in gang.types:
        fits |= spare.board.room(worker, gpu_type) > 0
    position = np.arange(len(spare.members))
    on_fitting = fits[crew.node[spare.members]]
    members, position = spare.members[on_fitting], position[on_fitting]
    if not len(members):
        return None
    nodes, first, inverse = np.unique(crew.node[members], return_index=True, return_inverse=True)
    at_least = _at_least(spare, gang, nodes, members, inverse)
    best: tuple[int, int, list[int]] | None = None
    found = None
    scratch = spare.cycle.soon.copy()
    for i in np.lexsort((first, at_least))[:_CLOSELY].tolist():
        if best is not None and at_least[i] > best[0]:
            break
        here = members[inverse == i]
        chosen = _on_node(spare, gang, int(nodes[i]), here, scratch)
        if chosen is not None:
            where = np.flatnonzero(np.isin(spare.members, chosen)).tolist()
            score = (len(chosen), int(crew.is_home[chosen].sum()), where)
            if best is None or score < best:
                best, found = score, chosen
    return found


def _at_least(spare: Spare, gang: Gang, nodes: Ints, members: Ints, inverse: Ints) -> Ints:
    """Per node a number of victims below which it cannot go."""
    soon, crew, worker = spare.cycle.soon, spare.cycle.crew, gang.worker

    def rounds(missing: Ints, gains: Ints) -> Ints:
        largest = np.ones(len(nodes), np.int64)
        np.maximum.at(largest, inverse, gains)
        return -(-np.maximum(missing, 0) // largest)

    found = np.maximum(
        rounds(worker.cpu - soon.cpu[nodes], crew.cpu[members]),
        rounds(worker.memory - soon.memory[nodes], crew.memory[members]),
    )
    if worker.devices:
        fresh = soon.fresh[list(gang.types)][:, nodes].max(axis=0)
        found = np.maximum(found, rounds(worker.devices - fresh, crew.end[members] - crew.begin[members]))
    return np.maximum(found, 1)


def _on_node(spare: Spare, gang: Gang, node: int, members: Ints, scratch: Board) -> Ints | None:
    """The fewest of *members*, all on *node*, that make room there: in the given order, or the largest first."""
    crew, worker = spare.cycle.crew, gang.worker

    def fits() -> bool:
        return any(scratch.room_at(node, worker, gpu_type) > 0 for gpu_type in gang.types)

    largest_first = np.lexsort((-crew.cpu[members], crew.begin[members] - crew.end[members]))
    best: Ints | None = None
    for order in (np.arange(len(members)), largest_first):
        taken: list[Ints] = []
        for unit in spare.units(members[order]):
            if fits():
                break
            crew.give_back(scratch, unit)
            taken.append(unit)
        enough = fits()
        for unit in reversed(taken.copy()):
            crew.take_back(scratch, unit)
            if enough and not fits():
                crew.give_back(scratch, unit)
            elif enough:
                taken = [other for other in taken if other is not unit]
        if enough:
            chosen = np.concatenate(taken)
            crew.take_back(scratch, chosen)
            if best is None or len(chosen) < len(best):
                best = chosen
    return best


def _whole_jobs(cycle: Cycle, gang: Gang, rank: Ints, preempt: str) -> Ints | None:
    """All members of the fewest jobs whose end makes room: lowest priority first, then youngest."""
    jobs, crew = cycle.snap.jobs, cycle.crew
    least = Preemptible.ALWAYS if preempt == "preemptible-only" else Preemptible.AUTO
    rows = ((cycle.count > 0) & (jobs.preemptible >= least)).nonzero()[0]
    rows = rows[np.lexsort((-rank[rows], jobs.priority[rows]))]

    def all_of(some: Ints) -> Ints:
        return (np.isin(crew.job, some) & ~cycle.gone).nonzero()[0]

    def fits(some: Ints) -> bool:
        board = cycle.soon.copy()
        crew.give_back(board, all_of(some))
        return lay_out(board, gang, 1, 1).workers > 0

    if not fits(rows):
        return None
    rows = rows[: shortest(len(rows), lambda length: fits(rows[:length]))]
    for row in rows[::-1].tolist():
        if fits(rows[rows != row]):
            rows = rows[rows != row]
    return all_of(rows)
