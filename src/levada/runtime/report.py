"""The report of a worker: 128 bytes that its runtime writes in place and its supervisor reads at any time.

The file outlives the worker, however it ends. A sequence number is odd while the rest is being written; a reader that
sees it odd, or changed, reads again.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

#: Flags.
READY, IN_PROCESS, COMPLETE, LEAVES, SAVES, LEASED = 1, 2, 4, 8, 16, 32

NAME = "report"
SIZE = 128
_MAGIC = b"LEVADA1\0"
_SEQUENCE = struct.Struct("<Q")
_FIELDS = struct.Struct("<QQdddQddQ")
_SEQUENCE_AT, _FIELDS_AT = 8, 16
#: A writer needs a microsecond; one that died half-way leaves an odd number behind for good.
_TRIES = 100


class Report(NamedTuple):
    """What a worker says of itself, in the order of the file."""

    #: READY: uses the runtime and can join. IN_PROCESS: resizes in place. COMPLETE: the whole job is done.
    #: LEAVES: saved and leaves on request. SAVES: will save when it is asked to leave. LEASED: exit code 0 alone does
    #: not mean that the job is done, only COMPLETE does.
    flags: int = 0
    #: The one it trains in; 0 before the first.
    generation: int = 0
    #: Done by the whole job.
    step: float = 0.0
    #: Unix time.
    at: float = 0.0
    #: Seconds per step, moving average.
    step_s: float = 0.0
    #: Checkpoints, ever.
    saves: int = 0
    #: Steps in the last one.
    saved_step: float = 0.0
    #: Seconds that training stood still at the last change of generation.
    pause_s: float = 0.0
    #: Reports that did not reach a server.
    dropped: int = 0


class Writer:
    """Keeps the report of this worker in a folder."""

    def __init__(self, folder: Path) -> None:
        fresh = folder / (NAME + ".new")
        fresh.write_bytes((_MAGIC + _SEQUENCE.pack(0) + _FIELDS.pack(*Report())).ljust(SIZE, b"\0"))
        os.replace(fresh, folder / NAME)
        with open(folder / NAME, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), SIZE)
        self._sequence = 0

    def write(self, report: Report) -> None:
        """Replaces the report: some two microseconds, and no system call."""
        _SEQUENCE.pack_into(self._memory, _SEQUENCE_AT, self._sequence + 1)
        _FIELDS.pack_into(self._memory, _FIELDS_AT, *report)
        self._sequence += 2
        _SEQUENCE.pack_into(self._memory, _SEQUENCE_AT, self._sequence)


def read(path: Path) -> Report | None:
    """The report in a file; None where there is none, or none that is whole."""
    try:
        with open(path, "rb", buffering=0) as file:
            for _ in range(_TRIES):
                # One read of a page that is mapped may still see a write half done: hence the second look.
                first, second = os.pread(file.fileno(), SIZE, 0), os.pread(file.fileno(), SIZE, 0)
                if len(first) < SIZE or first[:_SEQUENCE_AT] != _MAGIC:
                    return None
                (sequence,) = _SEQUENCE.unpack_from(first, _SEQUENCE_AT)
                if sequence % 2 == 0 and first == second:
                    return Report(*_FIELDS.unpack_from(first, _FIELDS_AT))
    except FileNotFoundError:
        return None
    return None
