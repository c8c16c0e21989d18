"""What the shell knows of jobs beyond the engine: who sent them, what they run, and how they ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from levada.backends.protocol import Launch
from levada.errors import NotFound, Refused
from levada.live.store import JobRow

#: Jobs stay in lists for so long after their end, unless they say otherwise.
DEFAULT_TTL_S = 7 * 86_400.0
#: So many candidates are named where a short name is not clear.
_MOST_NAMED = 5


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is, as its user said; as JSON in the store."""

    #: `metadata.name`: jobs of one name share what is learned about their speed.
    workload: str
    kind: str = "Job"
    launch: Launch | None = None
    document: Mapping[str, Any] = {}
    labels: Mapping[str, str] = {}
    notify: tuple[str, ...] = ()
    ttl_s: float = DEFAULT_TTL_S


class Record:
    """One job: about it, and (after its end) the view that is left of it."""

    __slots__ = (
        "about",
        "ended",
        "exit_code",
        "failure",
        "id",
        "number",
        "rate",
        "result",
        "submitted",
        "user",
    )

    def __init__(self, job_id: str, number: int, user: str, submitted: float, about: About) -> None:
        self.id, self.number, self.user, self.submitted, self.about = job_id, number, user, submitted, about
        self.ended: float | None = None
        self.result: dict[str, Any] | None = None
        self.exit_code: int | None = None
        #: What broke last, and with which exit code.
        self.failure: tuple[str, int | None] = ("", None)
        #: Steps per second, as a moving average; the steps themselves are the engine's.
        self.rate: float | None = None

    def row(self) -> JobRow:
        """What the store keeps."""
        about = msgspec.json.encode(self.about)
        return JobRow(id=self.id, number=self.number, user=self.user, submitted=self.submitted, about=about)

    @staticmethod
    def of(row: JobRow) -> Record:
        """The record of a row."""
        record = Record(row.id, row.number, row.user, row.submitted, msgspec.json.decode(row.about, type=About))
        record.ended = row.ended
        if row.result is not None:
            record.result = msgspec.json.decode(row.result)
            record.exit_code = record.result.get("exit_code") if record.result else None
        return record

    def is_expired(self, now: float) -> bool:
        """Whether its time in lists is over."""
        return self.ended is not None and self.ended + self.about.ttl_s < now

    def progressed(self, steps: float, seconds: float) -> None:
        """Update the rate: it has made so many steps more in so many seconds; fewer than 0 after a restart."""
        if steps < 0:
            self.rate = None
        elif seconds > 0:
            # A moving average, so that one slow step does not make a forecast jump.
            pace = steps / seconds
            self.rate = pace if self.rate is None else 0.7 * self.rate + 0.3 * pace


class Records:
    """All jobs that are in lists, by id and number."""

    def __init__(self) -> None:
        self.by_id: dict[str, Record] = {}
        self.by_number: dict[int, Record] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def add(self, record: Record) -> None:
        """A job that is there from now on."""
        self.by_id[record.id] = record
        self.by_number[record.number] = record

    def drop(self, record: Record) -> None:
        """Its time in lists is over."""
        self.by_id.pop(record.id, None)
        self.by_number.pop(record.number, None)

    def expired(self, now: float) -> list[Record]:
        """Jobs that ended longer ago than they wanted to be kept."""
        return [record for record in self.by_id.values() if record.is_expired(now)]

    def find(self, name: str, user: str | None = None) -> Record:
        """The job of that id, of which this is the only beginning or the last four characters, or my newest of that
        workload; raises NotFound, or Refused where several are meant.

        The id or workload of somebody else never answers silently to what names a job of mine, too.
        """
        exact = self.by_id.get(name)
        if exact is not None and user in (None, exact.user):
            return exact
        if not name:
            raise NotFound("no job is named by an empty text")
        known = self.by_id.values()
        ours = [r for r in known if r.about.workload == name]
        mine = [r for r in ours if user in (None, r.user)]
        if mine and exact is None:
            return _newest(mine)
        close = [r for r in known if r.id.startswith(name) or (len(name) == 4 and r.id.endswith(f"-{name}"))]
        if exact is not None or ours:
            theirs = exact or _newest(ours)
            also = mine or [r for r in close if r.user == user]
            if not also:
                return theirs
            whose = f"{name} is {theirs.user}'s job" if exact else f"{name} is {theirs.user}'s {theirs.id}"
            raise Refused(f"{whose}, and may also mean your {_some(also)}; say the whole id of yours")
        if not close:
            raise NotFound(f"there is no job {name}; `levada ls -A` lists all")
        if len(close) > 1:
            raise Refused(f"{name} could be any of {_some(close)}; say more of its id")
        return close[0]


def _newest(found: Iterable[Record]) -> Record:
    return max(found, key=lambda record: record.number)


def _some(found: Iterable[Record]) -> str:
    ids = sorted(record.id for record in found)
    more = f" and {len(ids) - _MOST_NAMED} more" if len(ids) > _MOST_NAMED else ""
    return ", ".join(ids[:_MOST_NAMED]) + more
