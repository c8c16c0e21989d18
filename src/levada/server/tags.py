"""A job's ETag: its version, which writes go by, then a sum of all that its view shows.

A running job tells of its progress every second. That is no reason to refuse a write, so `If-Match` compares versions
alone; but who asks for news with `If-None-Match` wants to see it. Only clocks, which never stand still, do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

from levada.server.answers import as_json

#: What changes by time alone.
CLOCKS = ("waiting_s", "running_s", "gpu_seconds")


def tag(version: str, view: Mapping[str, Any]) -> str:
    """The ETag of a job that looks like this."""
    shown = {name: value for name, value in view.items() if name not in CLOCKS}
    return f'"{version}.{crc32(as_json(shown)):08x}"'


def names_version(header: str, version: str) -> bool:
    """Whether one of the tags of an `If-Match` is of this version, or any will do."""
    return header.strip() == "*" or any(each.strip('"').rpartition(".")[0] == version for each in _tags(header))


def names_tag(header: str, tag: str) -> bool:
    """Whether an `If-None-Match` has this tag."""
    return tag in _tags(header)


def _tags(header: str) -> set[str]:
    # A proxy that packs answers marks their tags as weak.
    return {each.strip().removeprefix("W/") for each in header.split(",")}
