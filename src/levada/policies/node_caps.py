"""Queue limits for policies that decide by node: restrict view and decision."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.assignment import DEVICE, INDEX
from levada.core.decision import Decision
from levada.core.reasons import Code
from levada.core.types import Bools, Ints
from levada.policies.shares import Bounds
from levada.policies.sizes import on_grid
from levada.tables.snapshot import Snapshot


def cut_view(snap: Snapshot, bounds: Bounds) -> Snapshot:
    """The snapshot with the capacity that the root queues may use together.

    A type on which a job can never have its minimum is removed from the job's types; otherwise the policy would choose
    it again and again.
    """
    roots = snap.queues.roots
    room = np.maximum(bounds.most - bounds.outside, 0)[roots].sum(axis=0)
    return snap.restricted(np.arange(len(snap)), np.minimum(snap.capacity, room), forbidden=_never(snap, bounds))


def _never(snap: Snapshot, bounds: Bounds) -> Bools:
    """Per job and type whether a queue or user bound is permanently below its minimum."""
    never: Bools = (snap.jobs.min * snap.jobs.unit)[:, None] > bounds.at_most()
    return never


def capped(snap: Snapshot, bounds: Bounds, wish: Decision) -> Decision:
    """*wish* without the grants that exceed a limit.

    Jobs that would start above their permanent bound start smaller. Then starts are dropped, newest first; then jobs
    that would grow keep their size; then jobs stop. Dropped jobs that fit in the end are added again. A queue that
    exceeds its limit only because of jobs out of view loses all its jobs in view.
    """
    jobs, tree = snap.jobs, snap.queues
    wish = _no_start_too_large(snap, bounds, wish)
    kind, count = wish.type.copy(), wish.count.copy()
    dropped: list[int] = []
    # A job that the policy saw without any type waits for its queue, whatever the policy's reason.
    barred = snap.allowed.any(axis=1) & ~(snap.allowed & ~_never(snap, bounds)).any(axis=1)
    wish = msgspec.structs.replace(wish, reason=np.where(barred & (count == 0), Code.QUEUE_SHARE, wish.reason))
    reason = wish.reason.copy()

    def use() -> Ints:
        runs = (count > 0).nonzero()[0]
        inside = tree.usage(jobs.queue[runs], kind[runs], (count * jobs.unit)[runs], len(snap.capacity))
        return inside + bounds.outside

    def left_to_users() -> Ints | None:
        return bounds.users.per_job(bounds.users.left(kind, count)) if bounds.users is not None else None

    for row in _victims(snap, wish).tolist():
        used, by_user = use(), left_to_users()
        if (used <= bounds.most).all() and (by_user is None or (by_user >= 0).all()):
            break
        line = tree.lineage(int(jobs.queue[row]))
        queue_is_fine = kind[row] < 0 or (used <= bounds.most)[line, kind[row]].all()
        user_is_fine = kind[row] < 0 or by_user is None or by_user[row, kind[row]] >= 0
        if queue_is_fine and user_is_fine:
            continue
        dropped.append(row)
        if jobs.count[row] > 0 and count[row] > jobs.count[row] and _stays_put(snap, wish, row):
            count[row] = jobs.count[row]
        else:
            kind[row], count[row] = -1, 0
    # A dropped job may fit now that larger ones are dropped, too. If not, its reason names the limit.
    before = use()
    for row in dict.fromkeys(reversed(dropped)):
        reduced = kind[row], count[row]
        kind[row], count[row] = wish.type[row], wish.count[row]
        used, by_user, line = use(), left_to_users(), tree.lineage(int(jobs.queue[row]))
        queue_is_fine = (used <= np.maximum(bounds.most, before))[line, kind[row]].all()
        if queue_is_fine and (by_user is None or by_user[row, kind[row]] >= 0):
            dropped = [other for other in dropped if other != row]
            continue
        if reduced[1] == 0:
            limited = (used > bounds.limit)[line, kind[row]].any()
            of_queue = Code.QUEUE_LIMIT if limited else Code.QUEUE_SHARE
            reason[row] = Code.USER_LIMIT if queue_is_fine else of_queue
        kind[row], count[row] = reduced
    return _without(wish, np.isin(np.arange(len(snap)), dropped), kind, count, reason) if dropped else wish


def _no_start_too_large(snap: Snapshot, bounds: Bounds, wish: Decision) -> Decision:
    """*wish* with starts reduced to what a job may have on an otherwise empty cluster.

    Otherwise such a job would be dropped forever, although a smaller size fits.
    """
    jobs = snap.jobs
    may = bounds.at_most()[np.arange(len(snap)), wish.type] // np.maximum(jobs.unit, 1)
    large = (jobs.count == 0) & (wish.count > may) & (may >= jobs.min)
    if not large.any():
        return wish
    count = np.where(large, on_grid(jobs, may), wish.count)
    places = wish.places
    if places is not None:
        places = places[:, ~large[places[0]] | (places[INDEX] < count[places[0]])]
    return msgspec.structs.replace(wish, count=count, places=places)


def _victims(snap: Snapshot, wish: Decision) -> Ints:
    """Rows in the order in which they are dropped: starts, growth, running jobs.

    Newest first in each group. A job that would grow is listed twice: first it keeps its size, then it stops.
    """
    now = snap.jobs.count
    newest_first = np.arange(len(snap))[::-1]
    starts: Bools = (now == 0) & (wish.count > 0)
    grows: Bools = (now > 0) & (wish.count > now)
    runs: Bools = (now > 0) & (wish.count > 0)
    return np.concatenate([newest_first[group[newest_first]] for group in (starts, grows, runs)])


def _stays_put(snap: Snapshot, wish: Decision, row: int) -> bool:
    """Whether the job can keep its devices: all of them are part of its new placement."""
    if wish.places is None or wish.type[row] != snap.jobs.type[row]:
        return False
    slot = int(snap.jobs.slots[row])
    devices = np.concatenate([snap.target.devices_of(slot), snap.target.rows_of(slot)[DEVICE]])
    return bool(np.isin(devices, wish.places[DEVICE][wish.places[0] == row]).all())


def _without(wish: Decision, dropped: Bools, kind: Ints, count: Ints, reason: Ints) -> Decision:
    """The decision with new sizes and no new placement for the *dropped* jobs."""
    places, placed = wish.places, wish.placed
    if places is not None:
        places = places[:, ~dropped[places[0]]]
    if placed is not None:
        placed = placed[~dropped[placed]]
    return msgspec.structs.replace(wish, type=kind, count=count, reason=reason, places=places, placed=placed)
