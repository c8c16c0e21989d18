"""Spread the workers of one job over pools: few, near its other workers, best fit."""

from __future__ import annotations

import numpy as np

from levada.core.types import Ints

_BIG = 1 << 60


def spread(
    room: Ints, now_room: Ints, need: int, near: list[int], racks: Ints, zones: Ints, home: tuple[int, int]
) -> tuple[list[int], list[int]]:
    """Pools and the number of workers in each, in order; they add up to *need* if there is room.

    *room* is the number of workers that a pool can take, *now_room* how many without waiting for others to leave. The
    pools *near* come first, in their order; then the rack and zone of *home*, where the job is already (-1 = none), if
    they hold the rest.
    """
    order, take = [], []
    for pool in near:
        if need > 0 and room[pool] > 0:
            order.append(pool)
            take.append(min(int(room[pool]), need))
            need -= take[-1]
    if need <= 0:
        return order, take
    if order:
        room, now_room = room.copy(), now_room.copy()
        room[order] = now_room[order] = 0
    for domain, mine in ((racks, home[0]), (zones, home[1])):
        inside = domain == mine
        if mine >= 0 and room[inside].sum() >= need:
            room, now_room = np.where(inside, room, 0), np.where(inside, now_room, 0)
            break
    pool = _best_single(room, now_room, need)
    if pool < 0:
        for domain in (racks, zones):
            tightest = _tightest(domain, room, need)
            if tightest >= 0:
                inside = domain == tightest
                room, now_room = np.where(inside, room, 0), np.where(inside, now_room, 0)
                break
        # Fill the largest pools until the rest fits into one more.
        ranked = np.argsort(-room, kind="stable")
        filled = np.cumsum(room[ranked])
        full = int(np.searchsorted(filled, need))
        for largest in ranked[:full].tolist():
            if room[largest] > 0:
                order.append(largest)
                take.append(int(room[largest]))
        if full == len(ranked):
            return order, take
        need -= int(filled[full - 1])
        room, now_room = room.copy(), now_room.copy()
        room[ranked[:full]] = now_room[ranked[:full]] = 0
        pool = _best_single(room, now_room, need)
    order.append(pool)
    take.append(need)
    return order, take


def _best_single(room: Ints, now_room: Ints, need: int) -> int:
    """The pool that holds *need* with the least room, preferably free at once; -1 if none."""
    if not len(room):
        return -1
    for ready in (now_room, room):
        fits = ready >= need
        pool = int(np.where(fits, room, _BIG).argmin())
        if fits[pool]:
            return pool
    return -1


def _tightest(domain: Ints, room: Ints, need: int) -> int:
    """The domain that holds *need* on the fewest pools, then with the least room; -1 if none."""
    total = np.bincount(domain, weights=room).astype(np.int64)
    enough = (total >= need).nonzero()[0]
    if len(enough) < 2:
        return int(enough[0]) if len(enough) else -1
    ranked = np.lexsort((-room, domain))
    domain_of, size = domain[ranked], room[ranked]
    # The room of larger pools of the same domain.
    before = np.cumsum(size) - size
    before -= np.append(0, np.cumsum(total))[domain_of]
    pools = np.bincount(domain_of[(before < need) & (size > 0)], minlength=len(total))
    return int(enough[np.lexsort((total[enough], pools[enough]))[0]])
