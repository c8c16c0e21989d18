"""Records of jobs outside the engine: user, job file, launch command, result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from levada.api.types import JobView
from levada.backends.protocol import Launch
from levada.errors import NotFound, Refused
from levada.live.store import JobRow

#: Default time that a job stays listed after its end.
DEFAULT_TTL_S = 7 * 86_400.0
#: Candidates that are named for an ambiguous name.
_MAX_NAMED = 5


class JobDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The job as its user described it; stored as JSON."""

    #: `metadata.name`; jobs with the same workload share learned speeds.
    workload: str
    kind: str = "Job"
    launch: Launch | None = None
    #: The job file as raw JSON: parsed, 10,000 of them take 20 MB, and they are rarely read.
    document: msgspec.Raw = msgspec.Raw(b"{}")
    labels: Mapping[str, str] = {}
    notify: tuple[str, ...] = ()
    ttl_s: float = DEFAULT_TTL_S


class JobRecord:
    """One job: its details and, after its end, its final view."""

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

    def __init__(self, job_id: str, number: int, user: str, submitted: float, about: JobDetails) -> None:
        self.id, self.number, self.user, self.submitted, self.about = job_id, number, user, submitted, about
        self.ended: float | None = None
        self.result: JobView | None = None
        self.exit_code: int | None = None
        #: Text and exit code of the last failure.
        self.failure: tuple[str, int | None] = ("", None)
        #: Steps per second as a moving average; the engine has the steps.
        self.rate: float | None = None

    def row(self) -> JobRow:
        """Return the row for the store."""
        about = msgspec.json.encode(self.about)
        return JobRow(id=self.id, number=self.number, user=self.user, submitted=self.submitted, about=about)

    @staticmethod
    def of(row: JobRow) -> JobRecord:
        """Return the record of a stored row."""
        record = JobRecord(row.id, row.number, row.user, row.submitted, msgspec.json.decode(row.about, type=JobDetails))
        record.ended = row.ended
        if row.result is not None:
            record.result = msgspec.json.decode(row.result)
            record.exit_code = record.result.get("exit_code") if record.result else None
        return record

    def is_expired(self, now: float) -> bool:
        """Whether its TTL has passed."""
        return self.ended is not None and self.ended + self.about.ttl_s < now

    def progressed(self, steps: float, seconds: float) -> None:
        """Update the rate with *steps* made in *seconds*; negative steps mean a restart and reset it."""
        if steps < 0:
            self.rate = None
        elif seconds > 0:
            # Smooth, so that one slow step does not make a forecast jump.
            current = steps / seconds
            self.rate = current if self.rate is None else 0.7 * self.rate + 0.3 * current


class JobRecords:
    """All listed jobs, by id and by number."""

    def __init__(self) -> None:
        self.by_id: dict[str, JobRecord] = {}
        self.by_number: dict[int, JobRecord] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def add(self, record: JobRecord) -> None:
        """Add a job."""
        self.by_id[record.id] = record
        self.by_number[record.number] = record

    def drop(self, record: JobRecord) -> None:
        """Remove a job; does nothing if it is not there."""
        self.by_id.pop(record.id, None)
        self.by_number.pop(record.number, None)

    def expired(self, now: float) -> list[JobRecord]:
        """Return ended jobs whose TTL has passed."""
        return [record for record in self.by_id.values() if record.is_expired(now)]

    def find(self, name: str, user: str | None = None) -> JobRecord:
        """Find a job by id, unique prefix, last four characters, or as *user*'s newest of a workload.

        Raises NotFound, or Refused if the name is ambiguous. A name that matches a job of *user* never resolves to
        another user's job.
        """
        exact = self.by_id.get(name)
        if exact is not None and user in (None, exact.user):
            return exact
        if not name:
            raise NotFound("the name of a job must not be empty")
        known = self.by_id.values()
        same_workload = [r for r in known if r.about.workload == name]
        mine = [r for r in same_workload if user in (None, r.user)]
        if mine and exact is None:
            return _newest(mine)
        close = [r for r in known if r.id.startswith(name) or (len(name) == 4 and r.id.endswith(f"-{name}"))]
        if exact is not None or same_workload:
            other = exact or _newest(same_workload)
            own = mine or [r for r in close if r.user == user]
            if not own:
                return other
            owner = f"{name} is {other.user}'s job" if exact else f"{name} is {other.user}'s {other.id}"
            raise Refused(f"{owner}, and also matches your {_some(own)}; use the full id of yours")
        if not close:
            raise NotFound(f"there is no job {name}; `levada ls -A` lists all")
        if len(close) > 1:
            raise Refused(f"{name} matches {_some(close)}; use more of the id")
        return close[0]


def _newest(records: Iterable[JobRecord]) -> JobRecord:
    return max(records, key=lambda record: record.number)


def _some(records: Iterable[JobRecord]) -> str:
    ids = sorted(record.id for record in records)
    more = f" and {len(ids) - _MAX_NAMED} more" if len(ids) > _MAX_NAMED else ""
    return ", ".join(ids[:_MAX_NAMED]) + more
