"""DRAGON: gangs with parameter servers by node; jobs shrink and grow.

Source: Lin, Yeh, Chou, "DRAGON: A Dynamic Scheduling and Scaling Controller for Managing Distributed Deep Learning Jobs
in Kubernetes Cluster", CLOSER 2019, and its successor's priority for serving pods. A decision has three phases:


1. Serving pods: bound if they fit; otherwise training makes room for them (`serving`).
2. Pending jobs in order of submission: each starts if all its servers and its minimum fit, up to its requested size.
   For a job that has waited `starvation_s`, others shrink, and capacity that is or becomes free is reserved.
3. Growth up to the maximum, oldest job first, after `idle_s` without a change: beside the servers, then beside own
   workers, then best fit. Jobs that lost workers to serving pods get them back first.


Needs only the jobs and the nodes. Deviations from the original, each of which fixes a defect: several jobs start in one
decision; a job that cannot be helped blocks no other; shrinking considers the whole gang, stops no worker in vain,
counts workers that are already leaving, and takes workers away from their servers first, over all jobs; growth respects
the maximum, does not let a job block a later one, and waits while a pending job could be helped.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from levada.core.decision import Decision, Reservation
from levada.core.reasons import Code
from levada.core.types import Ints
from levada.errors import BadInput
from levada.perf.model import ThroughputModel
from levada.policies.dragon.admission import Admission
from levada.policies.dragon.cycle import Cycle
from levada.policies.dragon.free import free
from levada.policies.dragon.growth import grow
from levada.policies.dragon.serving import PREEMPTION, Rules, ServedPod, serve
from levada.policies.dragon.state import DragonState, admission_order, reached
from levada.policies.options import number_above
from levada.policies.protocol import NO_GUARDS, ON_EVENTS, Cadence, Guards, Needs
from levada.tables.snapshot import Snapshot


class Dragon:
    """DRAGON with fixes. It has its own thresholds against thrashing, so no guards."""

    name: ClassVar[str] = "dragon"
    needs: ClassVar[Needs] = Needs.NOTHING
    cadence: ClassVar[Cadence] = ON_EVENTS
    guards: ClassVar[Guards] = NO_GUARDS
    #: It places workers and makes room for serving pods itself.
    by_node: ClassVar[bool] = True
    elastic: ClassVar[bool] = True

    def __init__(
        self,
        *,
        starvation_s: Any = 30.0,
        idle_s: Any = 60.0,
        hold_down_s: Any = 60.0,
        reservation_s: Any = 60.0,
        serving_preempt: Any = "never",
    ) -> None:
        self.starvation_s = number_above("starvation_s", starvation_s, 0)
        self.idle_s = number_above("idle_s", idle_s, 0)
        self.hold_down_s = number_above("hold_down_s", hold_down_s, 0)
        if serving_preempt not in PREEMPTION:
            raise BadInput.one(f"must be one of {', '.join(PREEMPTION)}", "options.serving_preempt")
        self.serving = Rules(serving_preempt, number_above("reservation_s", reservation_s, 0))

    def initial(self, seed: int) -> DragonState:
        """No decision has been made yet."""
        return DragonState()

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: DragonState) -> tuple[Decision, DragonState]:
        """Serving pods, then pending jobs, then growth."""
        now = snap.now
        waiting_pods = {pod.id for pod in snap.serving}
        reserved = [room for room in state.reservations if room.id in waiting_pods and _exists(snap, room)]
        cycle = Cycle(snap, free(snap, reserved))
        order = admission_order(snap, state.admitted)
        rank = _ranks(snap, order)
        waiting = (cycle.count == 0).nonzero()[0].tolist()
        served = serve(cycle, state, rank, self.serving)
        if reserved:
            # Reservations of the last decision hold until this decision is committed.
            cycle.now.clip(free(snap).now, [reservation.node for reservation in reserved])
        admission = Admission(cycle, rank, self.starvation_s)
        admission.run(waiting, may_shrink=not (served.makes_room or served.unmet))

        clock = now if state.last_action is None else state.last_action
        hold = self._hold(snap, state)
        owed = self._owed(cycle, state, served)
        rows = [row for row in np.argsort(rank, kind="stable").tolist() if 0 < cycle.count[row] < cycle.max[row]]
        serving_waits = served.makes_room or served.unmet
        quiet = not (serving_waits or served.acted or cycle.started or admission.makes_room)
        due = quiet and reached(now, clock, self.idle_s)
        grown = False
        if now < hold:
            self._explain_hold(cycle, owed, hold)
        elif (due or (any(owed.values()) and not serving_waits)) and not admission.shrinking_could_help():
            # As in the original, an attempt counts even if no job can grow.
            grown = grow(cycle, rows, owed, all_jobs=due) or due
        # A starving job that cannot be helped must not stop growth forever: only the first attempt resets the clock.
        newly_tried = admission.unhelpable >= 0 and admission.unhelpable != state.tried
        if grown or newly_tried or not quiet:
            clock = now
        if rows and not grown:
            cycle.wake(max(clock + self.idle_s, hold))
        if any(owed.values()):
            cycle.wake(hold)
        numbers = snap.jobs.number
        return cycle.decision(), DragonState(
            last_action=clock,
            admitted=(*order, *numbers[cycle.started].tolist()),
            tried=admission.unhelpable if admission.unhelpable >= 0 else state.tried,
            owed=_still_owed(snap, state, owed),
            serving=_serving_pods(snap),
            held_until=hold,
            reservations=tuple(cycle.reservations),
            ready=served.ready,
        )

    def _hold(self, snap: Snapshot, state: DragonState) -> float:
        """The time until which no job grows: serving pods have just come or gone."""
        changed = state.serving is not None and state.serving != _serving_pods(snap)
        return snap.now + self.hold_down_s if changed else state.held_until

    def _owed(self, cycle: Cycle, state: DragonState, served: ServedPod) -> dict[int, int]:
        """By row the workers that a running job has lost to serving pods."""
        row_of = {number: row for row, number in enumerate(cycle.snap.jobs.number.tolist())}
        owed = {row_of[number]: workers for number, workers in state.owed.items() if number in row_of}
        for row, workers in served.lost.items():
            owed[row] = owed.get(row, 0) + workers
        return {row: min(n, cycle.max[row] - int(cycle.count[row])) for row, n in owed.items() if cycle.count[row] > 0}

    def _explain_hold(self, cycle: Cycle, owed: dict[int, int], hold: float) -> None:
        for row, workers in owed.items():
            if workers > 0:
                cycle.reason[row] = int(Code.HELD_DOWN)
                cycle.evidence[row] = math.ceil(hold - cycle.snap.now)


def _ranks(snap: Snapshot, order: list[int]) -> Ints:
    """The admission rank of each job in view; pending jobs last, in their order."""
    rank = {number: i for i, number in enumerate(order)}
    last = len(order)
    return np.array([rank.get(number, last + row) for row, number in enumerate(snap.jobs.number.tolist())], np.int64)


def _still_owed(snap: Snapshot, state: DragonState, owed: dict[int, int]) -> dict[int, int]:
    """The owed workers by job number; those of jobs out of view are unchanged."""
    in_view = set(snap.jobs.number.tolist())
    away = [number for number in state.owed if number not in in_view]
    exists = snap.table.find(np.array(away, np.int64)) >= 0
    unchanged = {number: state.owed[number] for number, known in zip(away, exists.tolist(), strict=True) if known}
    return unchanged | {int(snap.jobs.number[row]): workers for row, workers in owed.items() if workers > 0}


def _exists(snap: Snapshot, reservation: Reservation) -> bool:
    """Whether the reserved devices still exist: machines may have changed."""
    devices = np.array([device for device, _, _ in reservation.devices], np.int64)
    node_of = snap.inventory.node_of
    return bool((devices < len(node_of)).all() and (node_of[devices] == reservation.node).all())


def _serving_pods(snap: Snapshot) -> tuple[str, ...]:
    return tuple(sorted(pod.id for pod in snap.foreign.values() if pod.serving and not pod.leaving))
