"""What the store is given and gives back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

#: Of a line of the audit log.
_LONGEST_TEXT = 2000


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it was submitted."""

    id: str
    number: int
    user: str
    submitted: float
    #: JSON: all else that was said of it.
    about: bytes
    ended: float | None = None
    #: JSON: what is shown of it after its end.
    result: bytes | None = None


class HistoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, for people."""

    id: int
    at: float
    job: str | None
    type: str
    text: str
    data: Mapping[str, Any] = {}


class Deed(msgspec.Struct, kw_only=True):
    """A write, for the audit log: who asked for what, and how it was answered."""

    user: str
    role: str
    method: str
    path: str
    status: int = 0
    detail: str = ""
    #: It is in the log already, written down together with what it did.
    written: bool = False

    def row(self, at: float) -> dict[str, Any]:
        """What the store keeps."""
        return {
            "at": at,
            "user": self.user,
            "role": self.role,
            "method": self.method,
            "path": self.path[:_LONGEST_TEXT],
            "status": self.status,
            "detail": self.detail[:_LONGEST_TEXT],
        }


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """A submission that carried a key, and its answer."""

    user: str
    key: str
    digest: str
    answer: bytes
    at: float
