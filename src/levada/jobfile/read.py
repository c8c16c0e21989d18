"""Read a user-supplied file within size limits.

A device such as /dev/zero never ends, and a pipe without a writer blocks its reader.
"""

from __future__ import annotations

import os
import stat
import sys

from levada.errors import BadInput

#: Enough for 100,000 jobs with all fields.
MOST_BYTES = 64 * 2**20


def read_bytes(path: str, most: int = MOST_BYTES, *, regular: bool = False) -> bytes:
    """The bytes of a file, or of stdin for `-`; *regular*: no pipes; raises BadInput."""
    try:
        if path == "-":
            if sys.stdin is None:
                raise BadInput.one("standard input is closed; name a file")
            content = sys.stdin.buffer.read(most + 1)
        else:
            mode = os.stat(path).st_mode
            if regular and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise BadInput.one(f"{path}: not a regular file; read a pipe with `-`")
            with open(path, "rb") as file:
                content = file.read(most + 1)
    except (OSError, ValueError) as error:
        # A path with a null byte raises ValueError.
        raise BadInput.one(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > most:
        raise BadInput.one(f"{path}: is larger than {most >> 20} MiB; split it")
    return content
