"""The bytes of a file that somebody named: whatever it is, it is read within bounds or refused in one line.

A device such as /dev/zero never ends by itself, and a pipe that nobody writes to keeps its reader waiting.
"""

from __future__ import annotations

import os
import stat
import sys

from levada.errors import BadInput

#: Enough for a hundred thousand jobs with all their fields.
MOST_BYTES = 64 * 2**20


def read_bytes(path: str, most: int = MOST_BYTES, *, regular: bool = False) -> bytes:
    """What is in the file, or on standard input for `-`; raises BadInput. *regular*: pipes and devices are refused."""
    try:
        if path == "-":
            if sys.stdin is None:
                raise BadInput.one("standard input is closed; name a file")
            content = sys.stdin.buffer.read(most + 1)
        else:
            mode = os.stat(path).st_mode
            if regular and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise BadInput.one(f"{path}: is no regular file; a pipe is read with `-`")
            with open(path, "rb") as file:
                content = file.read(most + 1)
    except (OSError, ValueError) as error:
        # A name with a null byte is a ValueError.
        raise BadInput.one(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > most:
        raise BadInput.one(f"{path}: is larger than {most >> 20} MiB; split it")
    return content
