"""The last policy decisions and counters per policy; views are built on request."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from levada.api.types import DecisionView
from levada.core.events import Decided, DecideFailed
from levada.core.reasons import reason
from levada.engine.queries import Queries
from levada.live.records import JobRecords
from levada.live.views import timestamp

#: Limits of stored decisions and of their rows in total.
_MAX_DECISIONS, _MAX_ROWS = 500, 50_000


class _Entry(NamedTuple):
    event: Decided | DecideFailed
    at: float
    policy: str
    #: Why it was rejected or failed.
    failed: str | None

    @property
    def rows(self) -> int:
        return len(self.event.decision.number) if isinstance(self.event, Decided) else 0


class Decisions:
    """Results of policy runs, newest last."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()
        self._rows = 0
        #: Decisions, failures and seconds per policy since the server started.
        self.tally: dict[str, tuple[int, int, float]] = {}

    def add(self, query: Queries, event: Decided | DecideFailed, at: float) -> None:
        """Add a result that the engine has just applied or rejected."""
        why = event.why if isinstance(event, DecideFailed) else query.last_rejection if query.rejections else None
        entry = _Entry(event, at, query.policy.name, why)
        self._entries.append(entry)
        self._rows += entry.rows
        made, failed, seconds = self.tally.get(entry.policy, (0, 0, 0.0))
        took_s = event.took_s if isinstance(event, Decided) else 0.0
        self.tally[entry.policy] = made + 1, failed + (why is not None), seconds + took_s
        while len(self._entries) > _MAX_DECISIONS or (self._rows > _MAX_ROWS and len(self._entries) > 1):
            self._rows -= self._entries.popleft().rows

    def last(self, limit: int, query: Queries, records: JobRecords) -> list[DecisionView]:
        """Return views of the newest *limit* decisions."""
        return [_view(entry, query, records) for entry in list(self._entries)[-limit:]]

    def find(self, revision: int, query: Queries, records: JobRecords) -> DecisionView | None:
        """Return the view of the decision with this revision."""
        matching = [entry for entry in self._entries if entry.event.revision == revision]
        return _view(matching[-1], query, records) if matching else None


def _view(entry: _Entry, query: Queries, records: JobRecords) -> DecisionView:
    event = entry.event
    view: DecisionView = {
        "revision": event.revision,
        "time": timestamp(entry.at),
        "policy": entry.policy,
        "failed": entry.failed,
        "took_s": round(event.took_s, 6) if isinstance(event, Decided) else None,
        "jobs": [],
    }
    if isinstance(event, DecideFailed):
        return view
    types, decided = query.cluster.types, event.decision
    for row, number in enumerate(decided.number.tolist()):
        record = records.by_number.get(number)
        if record is None:
            continue
        count, kind = int(decided.count[row]), int(decided.type[row])
        why = reason(int(decided.reason[row]), int(decided.evidence[row]))
        gpu_type = types[kind] if count and kind >= 0 else None
        view["jobs"].append({"job": record.id, "workers": count, "gpu_type": gpu_type, "reason": why.code})
    return view
