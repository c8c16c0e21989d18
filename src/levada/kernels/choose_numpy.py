"""The kernels of `choose` in numpy, with a heap or lists of Python where one step depends on the one before."""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

import numpy as np

from levada.kernels.arrays import Bools, Floats, Ints

#: How many rivals AFS-L's contest looks at first; the next look is four times as wide.
_FIRST_LOOK = 64


def grow_by_gain(first: Ints, cost: Ints, waits: Bools, gain: Floats, start: Ints, free: int, more: Bools) -> Ints:
    """See `choose`."""
    grants = np.zeros(len(first), np.int64)
    rows = (start[1:] > start[:-1]).nonzero()[0]
    rows = rows[gain[start[rows]] > 0]
    heap = list(zip((-gain[start[rows]]).tolist(), (~waits[rows]).tolist(), rows.tolist(), strict=True))
    heapify(heap)
    firsts, costs, gains, starts = first.tolist(), cost.tolist(), (-gain).tolist(), start.tolist()
    ends, at = starts[1:], starts[:-1]
    while heap and free > 0:
        job = heap[0][2]
        price = costs[job] if at[job] > starts[job] else firsts[job]
        if price > free:
            heappop(heap)
            continue
        free -= price
        at[job] += 1
        here = at[job]
        if here < ends[job] and gains[here] < 0:
            heapreplace(heap, (gains[here], True, job))
        else:
            heappop(heap)
            if here == ends[job] and more[job]:
                break
    grants[:] = np.array(at, np.int64) - start[:-1]
    return grants


def best_sum(value: Floats, start: Ints, cost: Ints, slack: int) -> Ints:
    """See `choose`. One row of the table at a time, in whole-array steps."""
    jobs = len(cost)
    choice = np.zeros((jobs, slack + 1), np.int32)
    best = np.zeros(slack + 1)
    for job in range(jobs):
        values, price = value[start[job] : start[job + 1]], int(cost[job])
        before = best
        best = values[0] + before
        # More steps of no more value cannot be better, because more slack is never worse.
        record = np.maximum.accumulate(values)
        for step in ((values[1:] > record[:-1]).nonzero()[0] + 1).tolist():
            used = step * price
            if used > slack:
                break
            candidate = values[step] + before[: slack + 1 - used]
            better = candidate > best[used:]
            np.copyto(best[used:], candidate, where=better)
            choice[job, used:][better] = step
    steps = np.zeros(jobs, np.int64)
    for job in range(jobs - 1, -1, -1):
        steps[job] = choice[job, slack]
        slack -= int(steps[job]) * int(cost[job])
    return steps


def contest(
    first: Ints,
    cost: Ints,
    waits: Bools,
    length: Floats,
    weight: Floats,
    speed: Floats,
    start: Ints,
    free: int,
    more: Bools,
) -> Ints:
    """See `choose`. The champion meets its rivals in ever wider looks, and only where something has changed."""
    ring = _Ring(first, cost, waits, length, weight, speed, start)
    ring.leave_unserved(free)
    while free > 0 and (winner := ring.winner()) >= 0:
        free -= int(ring.price[winner])
        ring.grant(winner)
        if not ring.inside[winner] and more[winner]:
            break
        ring.leave_unserved(free)
    return ring.at - start[:-1]


class _Ring:
    """Who takes part in the contest, with what each would gain by one more grant."""

    def __init__(
        self, first: Ints, cost: Ints, waits: Bools, length: Floats, weight: Floats, speed: Floats, start: Ints
    ) -> None:
        self.cost, self.length, self.weight, self.speed, self.end = cost, length, weight, speed, start[1:] - 1
        self.at = start[:-1].copy()
        self.price = first.copy()
        self.nothing = waits.copy()
        self.inside = self.at < self.end
        #: Champions on the way to the winner, by place: who wins against all before it stays champion until beaten.
        self.path: list[int] = []
        #: The place whose job the last of them meets next.
        self.resume = 0
        self.time = np.full(len(first), np.inf)
        self.as_short = np.zeros(len(first))
        self.as_long = np.zeros(len(first))
        self._weigh(self.inside.nonzero()[0])

    def grant(self, job: int) -> None:
        self.at[job] += 1
        self.price[job] = self.cost[job]
        self.nothing[job] = False
        self.inside[job] = self.at[job] < self.end[job]
        self._forget_from(job)
        if self.inside[job]:
            self._weigh(np.array([job]))

    def leave_unserved(self, free: int) -> None:
        gone = (self.inside & (self.price > free)).nonzero()[0]
        if len(gone):
            self.inside[gone] = False
            self._forget_from(int(gone[0]))

    def winner(self) -> int:
        path = self.path
        if path:
            place = self.resume
        else:
            left = self.inside[self.resume :].nonzero()[0]
            if not len(left):
                return -1
            path.append(self.resume + int(left[0]))
            place = path[0] + 1
        look = _FIRST_LOOK
        while place < len(self.inside):
            stop = min(place + look, len(self.inside))
            wins = self._beaten_by(path[-1], place, stop)
            nearest = int(wins.argmax())
            if wins[nearest]:
                path.append(place + nearest)
                place += nearest + 1
                look = _FIRST_LOOK
            else:
                place, look = stop, 4 * look
        self.resume = place
        return path[-1]

    def _forget_from(self, job: int) -> None:
        while self.path and self.path[-1] >= job:
            self.path.pop()
        self.resume = min(self.resume, job)

    def _weigh(self, jobs: Ints) -> None:
        now, then = self.speed[self.at[jobs]], self.speed[self.at[jobs] + 1]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            self.time[jobs] = np.where(self.nothing[jobs], np.inf, self.length[jobs] / now)
            self.as_short[jobs] = (then - now) / now
            self.as_long[jobs] = (then - now) / then

    def _beaten_by(self, champion: int, begin: int, stop: int) -> Bools:
        """Which of the jobs from *begin* to *stop* win against the champion."""
        rivals = slice(begin, stop)
        weight = self.weight[champion]
        with np.errstate(invalid="ignore", over="ignore"):
            rival_long = self.as_long[rivals] * weight > self.as_short[champion] * self.weight[rivals]
            champion_long = self.as_long[champion] * self.weight[rivals] > self.as_short[rivals] * weight
        wins = np.where(self.time[champion] < self.time[rivals], rival_long, ~champion_long)
        if self.nothing[champion]:
            wins = np.where(self.nothing[rivals], self.length[champion] >= self.length[rivals], wins)
        return wins & self.inside[rivals]
