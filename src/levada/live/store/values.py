"""What the store is given and gives back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


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


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """A submission that carried a key, and its answer."""

    user: str
    key: str
    digest: str
    answer: bytes
    at: float
