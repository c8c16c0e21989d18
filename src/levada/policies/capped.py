"""Queue limits for policies that decide by node: their view is cut to the limits, and so is what they decide."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.decision import Decision
from levada.core.plane import DEVICE, INDEX
from levada.core.reasons import Code
from levada.core.types import Bools, Ints
from levada.policies.shares import Bounds
from levada.policies.sizes import on_grid
from levada.tables.snapshot import Snapshot


def cut_view(snap: Snapshot, bounds: Bounds) -> Snapshot:
    """The snapshot with no more capacity than the outermost queues may use together.

    A type of which a job may never have its minimum is none of its types: the policy would come back to it for ever.
    """
    roots = snap.queues.roots
    room = np.maximum(bounds.most - bounds.outside, 0)[roots].sum(axis=0)
    return snap.restricted(np.arange(len(snap)), np.minimum(snap.capacity, room), forbidden=_never(snap, bounds))


def _never(snap: Snapshot, bounds: Bounds) -> Bools:
    """Per job and type whether the bounds of its queue, or of its user, are below its minimum for good."""
    never: Bools = (snap.jobs.min * snap.jobs.unit)[:, None] > bounds.at_most()
    return never


def capped(snap: Snapshot, bounds: Bounds, wish: Decision) -> Decision:
    """*wish* without what goes beyond a limit.

    Jobs that would start larger than they could ever be start smaller. Then jobs that would start do not, the newest
    first; then jobs that would grow stay as they are; then jobs stop. Whoever fits beside those that are left has its
    wish all the same. A queue that is over its limit only by what is out of view loses all it has in view.
    """
    jobs, tree = snap.jobs, snap.queues
    wish = _no_start_too_large(snap, bounds, wish)
    kind, count = wish.type.copy(), wish.count.copy()
    left_out: list[int] = []
    # A job that was shown without any type waits for its queue, whatever the policy made of that.
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
        left_out.append(row)
        if jobs.count[row] > 0 and count[row] > jobs.count[row] and _stays_put(snap, wish, row):
            count[row] = jobs.count[row]
        else:
            kind[row], count[row] = -1, 0
    # Whoever gave way may fit since larger ones did; if not, it is told what is in its way now.
    before = use()
    for row in dict.fromkeys(reversed(left_out)):
        has = kind[row], count[row]
        kind[row], count[row] = wish.type[row], wish.count[row]
        used, by_user, line = use(), left_to_users(), tree.lineage(int(jobs.queue[row]))
        queue_is_fine = (used <= np.maximum(bounds.most, before))[line, kind[row]].all()
        if queue_is_fine and (by_user is None or by_user[row, kind[row]] >= 0):
            left_out = [other for other in left_out if other != row]
            continue
        if has[1] == 0:
            limited = (used > bounds.limit)[line, kind[row]].any()
            of_queue = Code.QUEUE_LIMIT if limited else Code.QUEUE_SHARE
            reason[row] = Code.USER_LIMIT if queue_is_fine else of_queue
        kind[row], count[row] = has
    return _without(wish, np.isin(np.arange(len(snap)), left_out), kind, count, reason) if left_out else wish


def _no_start_too_large(snap: Snapshot, bounds: Bounds, wish: Decision) -> Decision:
    """*wish* in which no job starts with more than it may have when nobody else has anything.

    Without this such a job would be left out for ever, though a smaller one fits.
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
    """Rows in the order in which they give way: starts, growth, the rest; the newest first in each.

    A job that would grow stands there twice: first it stays as it is, and if that is not enough it stops.
    """
    now = snap.jobs.count
    newest_first = np.arange(len(snap))[::-1]
    starts: Bools = (now == 0) & (wish.count > 0)
    grows: Bools = (now > 0) & (wish.count > now)
    runs: Bools = (now > 0) & (wish.count > 0)
    return np.concatenate([newest_first[group[newest_first]] for group in (starts, grows, runs)])


def _stays_put(snap: Snapshot, wish: Decision, row: int) -> bool:
    """Whether all devices the job has now are among those it would have, so that it can stay as it is."""
    if wish.places is None or wish.type[row] != snap.jobs.type[row]:
        return False
    slot = int(snap.jobs.slots[row])
    has = np.concatenate([snap.target.devices_of(slot), snap.target.rows_of(slot)[DEVICE]])
    return bool(np.isin(has, wish.places[DEVICE][wish.places[0] == row]).all())


def _without(wish: Decision, left_out: Bools, kind: Ints, count: Ints, reason: Ints) -> Decision:
    """The decision in which the jobs under *left_out* have their new count and no new places."""
    places, placed = wish.places, wish.placed
    if places is not None:
        places = places[:, ~left_out[places[0]]]
    if placed is not None:
        placed = placed[~left_out[placed]]
    return msgspec.structs.replace(wish, type=kind, count=count, reason=reason, places=places, placed=placed)
