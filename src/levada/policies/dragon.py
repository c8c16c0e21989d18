"""DRAGON: gangs with parameter servers, placed by node; jobs shrink for those who starve and grow when all is quiet.

Source: Lin, Yeh, Chou, "DRAGON: A Dynamic Scheduling and Scaling Controller for Managing Distributed Deep Learning Jobs
in Kubernetes Cluster", CLOSER 2019, and its successor's priority for serving pods. A decision has three phases:

1. serving pods: bound where they fit, otherwise training makes room for them (`dragon_serving`);
2. waiting jobs in order of submission: each starts where all its servers and its minimum fit, up to the size it asked
   for. A job that has waited `starvation_s` makes others shrink, and what is free or becomes free is kept for it;
3. growth, oldest job first, when nothing has happened for `idle_s`, to the maximum: beside the servers, then where the
   job has workers, then best fit. Jobs that lost workers to serving pods get them back first.

Needs nothing but the jobs and the nodes. Deviations from the original, each mending a defect: several jobs start in
one decision; a job that nothing can help stands in nobody's way; shrinking is for the whole gang, takes no worker in
vain, counts what is leaving already, and lonely workers go first over all jobs; growth stays within the maximum, lets
no job stand in the way of a later one, and waits while a job waits that could be helped.
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
from levada.policies.dragon_admission import Admission
from levada.policies.dragon_cycle import Cycle
from levada.policies.dragon_free import free
from levada.policies.dragon_growth import grow
from levada.policies.dragon_serving import PREEMPTION, Rules, Served, serve
from levada.policies.dragon_state import DragonState, admission_order, reached
from levada.policies.options import number_above
from levada.policies.protocol import NO_GUARDS, ON_EVENTS, Cadence, Guards, Needs
from levada.tables.snapshot import Snapshot


class Dragon:
    """The mended DRAGON. It has its own thresholds against thrashing and asks for no guards."""

    name: ClassVar[str] = "dragon"
    needs: ClassVar[Needs] = Needs.NOTHING
    cadence: ClassVar[Cadence] = ON_EVENTS
    guards: ClassVar[Guards] = NO_GUARDS
    #: It says where workers go, and so makes room for serving pods itself.
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
        """Nothing has happened yet."""
        return DragonState()

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: DragonState) -> tuple[Decision, DragonState]:
        """Serving pods, then waiting jobs, then growth."""
        now = snap.now
        waiting_pods = {pod.id for pod in snap.serving}
        kept = [each for each in state.reservations if each.id in waiting_pods and _exists(snap, each)]
        cycle = Cycle(snap, free(snap, kept))
        order = admission_order(snap, state.admitted)
        rank = _ranks(snap, order)
        waiting = (cycle.count == 0).nonzero()[0].tolist()
        served = serve(cycle, state, rank, self.serving)
        if kept:
            # Room that was kept until now counts as kept until this decision does.
            cycle.now.clip(free(snap).now, [reservation.node for reservation in kept])
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
            self._say_held(cycle, owed, hold)
        elif (due or (any(owed.values()) and not serving_waits)) and not admission.someone_could_be_helped():
            # As in the original, a try counts even if nobody could grow.
            grown = grow(cycle, rows, owed, everybody=due) or due
        # A head that nothing can help must not stop growth for ever: only the first try for it counts.
        tried_anew = admission.in_vain >= 0 and admission.in_vain != state.tried
        if grown or tried_anew or not quiet:
            clock = now
        if rows and not grown:
            cycle.wake(max(clock + self.idle_s, hold))
        if any(owed.values()):
            cycle.wake(hold)
        numbers = snap.jobs.number
        return cycle.decision(), DragonState(
            last_action=clock,
            admitted=(*order, *numbers[cycle.started].tolist()),
            tried=admission.in_vain if admission.in_vain >= 0 else state.tried,
            owed=_still_owed(snap, state, owed),
            serving=_serving_pods(snap),
            held_until=hold,
            reservations=tuple(cycle.reservations),
            ready=served.ready,
        )

    def _hold(self, snap: Snapshot, state: DragonState) -> float:
        """Until when nobody grows: serving pods that come and go must not make training breathe with them."""
        changed = state.serving is not None and state.serving != _serving_pods(snap)
        return snap.now + self.hold_down_s if changed else state.held_until

    def _owed(self, cycle: Cycle, state: DragonState, served: Served) -> dict[int, int]:
        """By row, oldest debt first, how many workers a running job has lost to serving pods."""
        row_of = {number: row for row, number in enumerate(cycle.snap.jobs.number.tolist())}
        owed = {row_of[number]: workers for number, workers in state.owed.items() if number in row_of}
        for row, workers in served.lost.items():
            owed[row] = owed.get(row, 0) + workers
        return {row: min(n, cycle.max[row] - int(cycle.count[row])) for row, n in owed.items() if cycle.count[row] > 0}

    def _say_held(self, cycle: Cycle, owed: dict[int, int], hold: float) -> None:
        for row, workers in owed.items():
            if workers > 0:
                cycle.reason[row] = int(Code.HELD_DOWN)
                cycle.evidence[row] = math.ceil(hold - cycle.snap.now)


def _ranks(snap: Snapshot, order: list[int]) -> Ints:
    """Per job in view its place in the order of admission; those who wait come last, in their own order."""
    place = {number: i for i, number in enumerate(order)}
    last = len(order)
    return np.array([place.get(number, last + row) for row, number in enumerate(snap.jobs.number.tolist())], np.int64)


def _still_owed(snap: Snapshot, state: DragonState, owed: dict[int, int]) -> dict[int, int]:
    """The debts by number; those to jobs that are out of view now stay as they were."""
    in_view = set(snap.jobs.number.tolist())
    away = [number for number in state.owed if number not in in_view]
    exists = snap.table.find(np.array(away, np.int64)) >= 0
    kept = {number: state.owed[number] for number, known in zip(away, exists.tolist(), strict=True) if known}
    return kept | {int(snap.jobs.number[row]): workers for row, workers in owed.items() if workers > 0}


def _exists(snap: Snapshot, kept: Reservation) -> bool:
    """Whether the room is still where it was: machines may have changed, and their devices other numbers."""
    devices = np.array([device for device, _, _ in kept.devices], np.int64)
    node_of = snap.inventory.node_of
    return bool((devices < len(node_of)).all() and (node_of[devices] == kept.node).all())


def _serving_pods(snap: Snapshot) -> tuple[str, ...]:
    return tuple(sorted(pod.id for pod in snap.foreign.values() if pod.serving and not pod.leaving))
