"""The engine as it was: the newest snapshot that is whole, and the log after it. No policy is asked."""

from __future__ import annotations

import logging

from levada.engine import Engine
from levada.errors import LevadaError
from levada.live import snapshot, turn
from levada.live.records import Record, Records
from levada.live.store import Store
from levada.plugins import find_policy

_log = logging.getLogger(__name__)

#: No job stays in lists for longer after its end.
_LONGEST_S = 400 * 86_400.0


async def recover(store: Store, written: int) -> tuple[Engine, float, int]:
    """The engine after all *written* turns, when the last was, and how many had to be replayed.

    Raises LevadaError where one of them is not whole. Nothing is left out: an engine that has missed a turn
    would act on what is not so.
    """
    engine, sequence, last = Engine(make_policy=find_policy), 0, 0.0
    async for number, body in store.snapshots():
        try:
            engine = snapshot.thaw(body)
        except snapshot.Unusable as why:
            _log.warning("the snapshot after turn %d is left aside: %s", number, why)
            continue
        sequence, last = number, max(last, engine.state.now)
        break
    turns = 0
    async for number, at, body in store.entries(sequence):
        sequence += 1
        if number != sequence:
            raise _damaged(sequence, "it is missing")
        try:
            turn.replay(engine, body)
        except Exception as broken:
            raise _damaged(number, str(broken) or type(broken).__name__) from broken
        last = max(last, at)
        turns += 1
    if sequence < written:
        raise _damaged(sequence + 1, "it is missing")
    if turns:
        _log.info("%d turns replayed", turns)
    return engine, last, turns


def _damaged(number: int, why: str) -> LevadaError:
    return LevadaError(
        f"turn {number} of the log cannot be read ({why}): start the version of Levada that wrote it, put back a copy "
        "of the database, or name another place with --state or --store"
    )


async def recover_records(store: Store, engine: Engine, now: float) -> Records:
    """All jobs that are in lists; those whose time there ended meanwhile go at the first tidying.

    How far jobs are is told again by their workers; what was known stands until then.
    """
    records = Records()
    for row in await store.jobs(ended_after=now - _LONGEST_S):
        record = Record.of(row)
        records.add(record)
        slot = engine.state.world.slot(record.id) if record.ended is None else -1
        if slot >= 0:
            record.steps = float(engine.state.world.table.steps_done[slot])
    return records
