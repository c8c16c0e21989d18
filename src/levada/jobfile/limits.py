"""Size limits of texts, checked before parsing to bound its cost."""

from __future__ import annotations

import re
from typing import NamedTuple

from levada.errors import BadInput

#: The most documents of one file or request.
MOST_DOCUMENTS = 10_000


class FileLimits(NamedTuple):
    """The largest text that is parsed."""

    #: Levels of lists and mappings.
    depth: int = 64
    #: Keys of one mapping, including repeated ones.
    keys: int = 2_000
    #: Characters of one key: faults quote it.
    key_length: int = 1_000
    #: Keys, values and mappings of the whole text. Parsed, 500,000 take about 100 MB.
    values: int = 500_000
    #: Bytes of a YAML text, which takes about 2.5 s per MiB to parse.
    yaml_bytes: int = 2 * 2**20


#: For job files.
JOB_FILE = FileLimits()
#: For request bodies: YAML is meant for single manifests.
BODY = FileLimits(yaml_bytes=256 * 2**10)

#: A string (the parser reports a missing end), or a separator of values.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{},:]', re.DOTALL)


def measure_json(text: str, limits: FileLimits) -> None:
    """Raise BadInput if a JSON text is beyond the limits.

    Stops at the first limit, or where the text cannot be JSON (the parser fails there at the latest), so it takes at
    most 0.5 s for a text of any length.
    """
    values, strings, length = 0, 0, 0
    keys: list[int] = []  # one counter per open list or mapping
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token[0] == '"':
            strings, length = strings + 1, len(token) - 2
            if strings > values + 1:
                return  # two adjacent strings
            continue
        if token in "]}":
            if not keys:
                return  # unbalanced bracket
            keys.pop()
            continue
        values += 1
        if values > limits.values:
            raise too_many_values(limits)
        if token == ":":
            check_key(length, limits)
            if keys:
                keys[-1] += 1
                check_keys(keys[-1], limits)
        elif token in "[{":
            keys.append(0)
            check_depth(len(keys), limits)


def check_documents(count: int) -> None:
    """Raise BadInput if there are too many documents."""
    if count > MOST_DOCUMENTS:
        raise BadInput.one(f"more than {MOST_DOCUMENTS:,} documents; submit them in parts")


def check_depth(depth: int, limits: FileLimits) -> None:
    """Raise BadInput if values are nested too deeply."""
    if depth > limits.depth:
        raise BadInput.one(f"nested too deeply: the limit is {limits.depth} levels")


def check_keys(keys: int, limits: FileLimits) -> None:
    """Raise BadInput if a mapping has too many keys."""
    if keys > limits.keys:
        raise BadInput.one(f"a mapping has more than {limits.keys:,} keys")


def check_key(length: int, limits: FileLimits) -> None:
    """Raise BadInput if a key is too long."""
    if length > limits.key_length:
        raise BadInput.one(f"a key has more than {limits.key_length:,} characters")


def too_many_values(limits: FileLimits, how: str = "; split it") -> BadInput:
    """The error for a text with too many values."""
    return BadInput.one(f"has more than {limits.values:,} keys and values{how}")
