"""Values that the store reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

#: Limit of path and detail in the audit log, in characters.
_MAX_TEXT = 2000


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job as submitted and, after its end, its result."""

    id: str
    number: int
    user: str
    submitted: float
    #: `JobDetails` as JSON.
    about: bytes
    ended: float | None = None
    #: Final view as JSON.
    result: bytes | None = None


class HistoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """An event for users."""

    id: int
    at: float
    job: str | None
    type: str
    text: str
    data: Mapping[str, Any] = {}


class AuditEntry(msgspec.Struct, kw_only=True):
    """An entry of the audit log: a write request and its outcome."""

    user: str
    role: str
    method: str
    path: str
    status: int = 0
    detail: str = ""
    #: Already stored, in the same transaction as its effect.
    written: bool = False

    def row(self, at: float) -> dict[str, Any]:
        """Return the row for the store."""
        return {
            "at": at,
            "user": self.user,
            "role": self.role,
            "method": self.method,
            "path": self.path[:_MAX_TEXT],
            "status": self.status,
            "detail": self.detail[:_MAX_TEXT],
        }


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """A submission with a key, and its answer."""

    user: str
    key: str
    digest: str
    answer: bytes
    at: float
