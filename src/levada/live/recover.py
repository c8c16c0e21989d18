"""Recovery of the engine: newest usable snapshot plus replay of the log after it."""

from __future__ import annotations

import logging
from typing import NamedTuple

from levada.engine import Engine
from levada.engine.replay import Differences, commanded, reconcile
from levada.errors import LevadaError
from levada.live import log_entry, snapshot
from levada.live.records import JobRecord, JobRecords
from levada.live.store import Store
from levada.plugins import find_policy

_log = logging.getLogger(__name__)

#: Jobs that one log line names.
_MAX_NAMED = 5
#: Upper limit of a job's TTL.
_MAX_TTL_S = 400 * 86_400.0


class Recovered(NamedTuple):
    """Result of a recovery."""

    engine: Engine
    #: Time of the last turn.
    last: float
    #: Number of replayed turns.
    turns: int
    #: Ids of jobs whose replay differs from the log, reconciled to the log.
    differing: list[str]


async def recover(store: Store, written: int) -> Recovered:
    """Return the engine after all *written* turns, without calling a policy.

    Raises LevadaError if a turn is damaged or missing: an engine that skips a turn would act on a wrong state.
    """
    engine, body, sequence = await _newest(store)
    begin, last = sequence, max(0.0, engine.query.now)
    tail = Tail(engine)
    async for number, at, entry in store.entries(begin):
        sequence += 1
        if number != sequence:
            raise _damaged(sequence, "it is missing")
        try:
            tail.add(log_entry.replay(engine, entry))
        except Exception as error:
            raise _damaged(number, str(error) or type(error).__name__) from error
        last = max(last, at)
    if sequence < written:
        raise _damaged(sequence + 1, "it is missing")
    if sequence > begin:
        _log.info("replayed log: %d turns", sequence - begin)
    return Recovered(engine, last, sequence - begin, await _reconcile(store, tail, body, begin))


async def _newest(store: Store) -> tuple[Engine, bytes | None, int]:
    """Return the engine of the newest usable snapshot, the snapshot itself, and its turn; else a new engine.

    Raises LevadaError if no snapshot is usable and the log does not begin with turn 1.
    """
    refused = "there is none"
    async for number, body in store.snapshots():
        try:
            return snapshot.thaw(body), body, number
        except snapshot.Unusable as error:
            _log.warning("ignoring snapshot of turn %d: %s", number, error)
            refused = str(error)
    first = await store.first_entry()
    if first > 1:
        raise LevadaError(
            f"no snapshot can be used ({refused}), and the log begins with turn {first}: start the version of Levada "
            "that wrote it, restore a backup of the database, or use another --state-dir or --store"
        )
    return _new_engine(), None, 0


def _new_engine() -> Engine:
    return Engine(make_policy=find_policy)


class Tail:
    """Commanded states and ends of jobs, collected during the replay."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.recorded = commanded(engine)
        self.ended: dict[int, int] = {}
        #: Whether all turns have recorded the commanded states.
        self.whole = True

    def add(self, turn: log_entry.LogEntry) -> None:
        """Add the next turn."""
        self.whole &= turn.standings is not None
        self.recorded.update((state.number, state) for state in turn.standings or ())
        for number, phase in turn.ended:
            self.ended[number] = phase
            self.recorded.pop(number, None)


async def _reconcile(store: Store, tail: Tail, body: bytes | None, begin: int) -> list[str]:
    """Reconcile the engine with the commands in the log; return the ids of the jobs that differed."""
    engine = tail.engine
    differ = Differences.between(engine, tail.recorded)
    if not tail.whole or not differ:
        return []
    before = _new_engine() if body is None else snapshot.thaw(body)
    async for _, _, entry in store.entries(begin):
        log_entry.submit(before, entry)
    names = {**before.query.ids, **engine.query.ids}
    jobs = [names.get(number, str(number)) for number in sorted({*differ.other, *differ.lost, *differ.over})]
    try:
        reconcile(engine, tail.recorded, differ, tail.ended, before)
    except KeyError as unknown:
        raise LevadaError(
            f"replay with this version differs from the log and cannot be reconciled ({unknown.args[0]}): start the "
            "version that wrote the log, stop it with `levada down --leave-jobs`, then start this one again"
        ) from unknown
    more = f" and {len(jobs) - _MAX_NAMED} more" if len(jobs) > _MAX_NAMED else ""
    some = ", ".join(jobs[:_MAX_NAMED]) + more
    _log.warning("replay differs from the log, kept the logged commands: %s", some)
    return jobs


def _damaged(number: int, why: str) -> LevadaError:
    return LevadaError(
        f"turn {number} of the log cannot be read ({why}): start the version of Levada that wrote it, restore a backup "
        "of the database, or use another --state-dir or --store"
    )


async def recover_records(store: Store, now: float) -> JobRecords:
    """Return the records of all listed jobs; the next cleanup removes expired ones."""
    records = JobRecords()
    for row in await store.jobs(ended_after=now - _MAX_TTL_S):
        records.add(JobRecord.of(row))
    return records
