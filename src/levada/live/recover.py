"""The engine as it was: the newest snapshot that is whole, and the log after it. No policy is asked."""

from __future__ import annotations

import logging
from typing import NamedTuple

from levada.engine import Engine
from levada.engine.replay import Differences, commanded, reconcile
from levada.errors import LevadaError
from levada.live import snapshot, turn
from levada.live.records import Record, Records
from levada.live.store import Store
from levada.plugins import find_policy

_log = logging.getLogger(__name__)

#: So many jobs are named in one line.
_MOST_NAMED = 5
#: No job stays in lists for longer after its end.
_LONGEST_S = 400 * 86_400.0


class Recovered(NamedTuple):
    """The engine after all turns."""

    engine: Engine
    #: When the last turn was.
    last: float
    #: How many had to be replayed.
    turns: int
    #: Ids of jobs that this version would have dealt with otherwise, and of which the log counted.
    differing: list[str]


async def recover(store: Store, written: int) -> Recovered:
    """The engine after all *written* turns.

    Raises LevadaError where one of them is not whole. Nothing is left out: an engine that has missed a turn
    would act on what is not so.
    """
    engine, body, sequence = await _newest(store)
    begin, last = sequence, max(0.0, engine.query.now)
    tail = Tail(engine)
    async for number, at, entry in store.entries(begin):
        sequence += 1
        if number != sequence:
            raise _damaged(sequence, "it is missing")
        try:
            tail.take(turn.replay(engine, entry))
        except Exception as broken:
            raise _damaged(number, str(broken) or type(broken).__name__) from broken
        last = max(last, at)
    if sequence < written:
        raise _damaged(sequence + 1, "it is missing")
    if sequence > begin:
        _log.info("%d turns replayed", sequence - begin)
    return Recovered(engine, last, sequence - begin, await _agree(store, tail, body, begin))


async def _newest(store: Store) -> tuple[Engine, bytes | None, int]:
    """The engine of the newest snapshot that can be used, the snapshot, and the turn after which it was taken.

    A new engine where there is none; raises LevadaError where the log alone does not tell everything.
    """
    refused = "there is none"
    async for number, body in store.snapshots():
        try:
            return snapshot.thaw(body), body, number
        except snapshot.Unusable as why:
            _log.warning("the snapshot after turn %d is left aside: %s", number, why)
            refused = str(why)
    first = await store.first_entry()
    if first > 1:
        raise LevadaError(
            f"no snapshot can be used ({refused}), and the log begins with turn {first}: start the version of Levada "
            "that wrote it, put back a copy of the database, or name another place with --state or --store"
        )
    return _new_engine(), None, 0


def _new_engine() -> Engine:
    return Engine(make_policy=find_policy)


class Tail:
    """What the log says of jobs while it is replayed."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.recorded = commanded(engine)
        self.ended: dict[int, int] = {}
        #: All turns say how jobs stood after them.
        self.whole = True

    def take(self, told: turn.Turn) -> None:
        """One turn more."""
        self.whole &= told.standings is not None
        self.recorded.update((each.number, each) for each in told.standings or ())
        for number, phase in told.ended:
            self.ended[number] = phase
            self.recorded.pop(number, None)


async def _agree(store: Store, tail: Tail, body: bytes | None, begin: int) -> list[str]:
    """Puts right what this version would have done otherwise; the ids of the jobs."""
    engine = tail.engine
    differ = Differences.between(engine, tail.recorded)
    if not tail.whole or not differ:
        return []
    before = _new_engine() if body is None else snapshot.thaw(body)
    async for _, _, entry in store.entries(begin):
        turn.submit(before, entry)
    names = {**before.query.ids, **engine.query.ids}
    found = [names.get(number, str(number)) for number in sorted({*differ.other, *differ.lost, *differ.over})]
    try:
        reconcile(engine, tail.recorded, differ, tail.ended, before)
    except KeyError as unknown:
        raise LevadaError(
            f"this version of Levada makes something else of the log than the one that wrote it ({unknown.args[0]}): "
            "start that one and stop it with `levada down --leave-jobs`, then this one again"
        ) from unknown
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    some = ", ".join(found[:_MOST_NAMED]) + more
    _log.warning("of %s the log tells otherwise than this version would have decided: what was commanded counts", some)
    return found


def _damaged(number: int, why: str) -> LevadaError:
    return LevadaError(
        f"turn {number} of the log cannot be read ({why}): start the version of Levada that wrote it, put back a copy "
        "of the database, or name another place with --state or --store"
    )


async def recover_records(store: Store, now: float) -> Records:
    """All jobs that are in lists; those whose time there ended meanwhile go at the first tidying."""
    records = Records()
    for row in await store.jobs(ended_after=now - _LONGEST_S):
        records.add(Record.of(row))
    return records
