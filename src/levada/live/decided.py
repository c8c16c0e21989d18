"""The last decisions, for who asks what was decided and why; put into words only when asked for."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from levada.core.events import Decided, DecideFailed
from levada.core.reasons import reason
from levada.engine.queries import Queries
from levada.live.records import Records
from levada.live.views import moment

#: So many decisions are kept, and of large ones as many as have so many rows together.
_MOST, _MOST_ROWS = 500, 200_000


class _Kept(NamedTuple):
    event: Decided | DecideFailed
    at: float
    policy: str
    #: Why it was not carried out.
    failed: str | None

    @property
    def rows(self) -> int:
        return len(self.event.decision.number) if isinstance(self.event, Decided) else 0


class Decisions:
    """What policies answered, the newest last."""

    def __init__(self) -> None:
        self._kept: deque[_Kept] = deque()
        self._rows = 0
        #: How many each policy made since the server started, how many of them failed, and the seconds they took.
        self.tally: dict[str, tuple[int, int, float]] = {}

    def add(self, query: Queries, event: Decided | DecideFailed, at: float) -> None:
        """Keeps an answer that the engine has just taken, or not."""
        why = event.why if isinstance(event, DecideFailed) else query.last_rejection if query.rejections else None
        kept = _Kept(event, at, query.policy.name, why)
        self._kept.append(kept)
        self._rows += kept.rows
        made, failed, seconds = self.tally.get(kept.policy, (0, 0, 0.0))
        took_s = event.took_s if isinstance(event, Decided) else 0.0
        self.tally[kept.policy] = made + 1, failed + (why is not None), seconds + took_s
        while len(self._kept) > _MOST or (self._rows > _MOST_ROWS and len(self._kept) > 1):
            self._rows -= self._kept.popleft().rows

    def last(self, limit: int, query: Queries, records: Records) -> list[dict[str, Any]]:
        """The newest so many, in words."""
        return [_words(kept, query, records) for kept in list(self._kept)[-limit:]]

    def find(self, revision: int, query: Queries, records: Records) -> dict[str, Any] | None:
        """The one of that revision, in words."""
        found = [kept for kept in self._kept if kept.event.revision == revision]
        return _words(found[-1], query, records) if found else None


def _words(kept: _Kept, query: Queries, records: Records) -> dict[str, Any]:
    event = kept.event
    told: dict[str, Any] = {
        "revision": event.revision,
        "time": moment(kept.at),
        "policy": kept.policy,
        "failed": kept.failed,
        "took_s": round(event.took_s, 6) if isinstance(event, Decided) else None,
        "jobs": [],
    }
    if isinstance(event, DecideFailed):
        return told
    types, decided = query.cluster.types, event.decision
    for row, number in enumerate(decided.number.tolist()):
        record = records.by_number.get(number)
        if record is None:
            continue
        count, kind = int(decided.count[row]), int(decided.type[row])
        why = reason(int(decided.reason[row]), int(decided.evidence[row]))
        gpu_type = types[kind] if count and kind >= 0 else None
        told["jobs"].append({"job": record.id, "workers": count, "gpu_type": gpu_type, "reason": why.code})
    return told
