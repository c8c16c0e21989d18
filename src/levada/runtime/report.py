"""Progress report of a worker: a 128-byte file that its supervisor reads.

The runtime writes it in place through a memory map. The file outlives the worker, however that ends. A sequence number
is odd during a write; a reader that finds it odd or changed reads again.
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
#: Retries of a reader: a write takes a microsecond, but a writer that died during one leaves an odd number.
_TRIES = 100


class ProgressReport(NamedTuple):
    """The fields of a report, in the order of the file."""

    #: READY: uses the runtime and can join. IN_PROCESS: resizes in place. COMPLETE: the whole job is complete.
    #: LEAVES: saved and leaves on request. SAVES: saves when asked to leave. LEASED: only COMPLETE, not exit code 0,
    #: means that the job is complete.
    flags: int = 0
    #: The generation in which it trains; 0 before the first.
    generation: int = 0
    #: Steps completed by the whole job.
    step: float = 0.0
    #: Unix time.
    at: float = 0.0
    #: Seconds per step, moving average.
    step_s: float = 0.0
    #: Number of checkpoints over all restarts.
    saves: int = 0
    #: Steps in the last checkpoint.
    saved_step: float = 0.0
    #: Seconds that training stood still at the last change of generation.
    pause_s: float = 0.0
    #: Number of reports that did not reach a server.
    dropped: int = 0


class Writer:
    """Writes the report of this worker to a folder."""

    def __init__(self, folder: Path) -> None:
        temporary = folder / (NAME + ".new")
        temporary.write_bytes((_MAGIC + _SEQUENCE.pack(0) + _FIELDS.pack(*ProgressReport())).ljust(SIZE, b"\0"))
        os.replace(temporary, folder / NAME)
        with open(folder / NAME, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), SIZE)
        self._sequence = 0

    def write(self, report: ProgressReport) -> None:
        """Replace the report; takes about 2 µs and no system call."""
        _SEQUENCE.pack_into(self._memory, _SEQUENCE_AT, self._sequence + 1)
        _FIELDS.pack_into(self._memory, _FIELDS_AT, *report)
        self._sequence += 2
        _SEQUENCE.pack_into(self._memory, _SEQUENCE_AT, self._sequence)


def read(path: Path) -> ProgressReport | None:
    """Read a report; None if it is missing, damaged or incomplete."""
    try:
        with open(path, "rb", buffering=0) as file:
            for _ in range(_TRIES):
                # A read of a mapped page may see a partial write: compare two reads.
                first, second = os.pread(file.fileno(), SIZE, 0), os.pread(file.fileno(), SIZE, 0)
                if len(first) < SIZE or first[:_SEQUENCE_AT] != _MAGIC:
                    return None
                (sequence,) = _SEQUENCE.unpack_from(first, _SEQUENCE_AT)
                if sequence % 2 == 0 and first == second:
                    return ProgressReport(*_FIELDS.unpack_from(first, _FIELDS_AT))
    except FileNotFoundError:
        return None
    return None
