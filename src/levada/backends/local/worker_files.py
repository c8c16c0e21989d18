"""Files shared by a worker and its supervisor: report, world, checkpoints.

See docs/worker-protocol.md.
"""

from __future__ import annotations

import csv
import math
import os
import struct
from pathlib import Path

import msgspec

from levada.backends.local import safe_fs

#: Files of a job and of a worker in their folders.
WORLD, JOB, REPORT, CHECKPOINTS, WORKERS = "world.json", "job.json", "report", "checkpoints", "workers"
#: In the checkpoint directory: the newest generation that has saved or begun to save.
FENCE = "generation"
#: For Horovod: hosts with their slots, and the script that prints them.
HOSTS, DISCOVER_HOSTS = "hosts", "discover_hosts.sh"
#: Exit codes of a worker: the job is complete; saved and left to be restarted.
DONE, LEFT = 0, 75

#: Flags of a report.
READY, IN_PROCESS, COMPLETE, LEAVES, SAVES, LEASED = 1, 2, 4, 8, 16, 32

_MAGIC = b"LEVADA1\0"
_LAYOUT = struct.Struct("<8sQQQdddQddQ")
_SEQUENCE = struct.Struct("<Q")
_SEQUENCE_AT = 8
#: Retries while a writer is active, which takes a microsecond; after that the last report is used.
_TRIES = 4
#: Bytes read at the beginning and at the end of a CSV file of a Voda script.
_CSV_BYTES = 1 << 16


class WorkerReading(msgspec.Struct, frozen=True):
    """A worker's report."""

    flags: int = 0
    #: The generation it has entered; 0 before the first.
    generation: int = 0
    steps: float = 0.0
    at: float = 0.0
    step_s: float = 0.0
    saved: int = 0
    saved_steps: float = 0.0
    pause_s: float = 0.0
    dropped: int = 0

    @property
    def ready(self) -> bool:
        """Whether the worker uses the runtime and can enter a generation."""
        return bool(self.flags & READY)

    @property
    def in_process(self) -> bool:
        """Whether the worker can be resized in place."""
        return bool(self.flags & IN_PROCESS)

    @property
    def complete(self) -> bool:
        """Whether the whole job is complete."""
        return bool(self.flags & COMPLETE)

    @property
    def saves_on_stop(self) -> bool:
        """Whether the worker saves when it is asked to leave."""
        return bool(self.flags & SAVES)

    @property
    def leased(self) -> bool:
        """Whether only `complete`, and not exit code 0, means that the job is complete."""
        return bool(self.flags & LEASED)


class MemberAddress(msgspec.Struct, frozen=True):
    """Address and port of a member."""

    address: str
    port: int


class LeaseFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits up to which workers may train while the server is away."""

    #: Steps of the whole job, over all restarts.
    total_steps: float | None = None
    #: Unix time.
    until_time: float | None = None
    #: What to do at that time.
    then: str = ""


class WorldFile(msgspec.Struct, frozen=True):
    """Members of a generation; the rank of a member is its position."""

    generation: int
    members: tuple[str, ...]
    addresses: tuple[str, ...]
    master: MemberAddress
    #: Secret with which members authenticate each other.
    key: str = ""
    lease: LeaseFile | None = None


def checkpoint_folder(folder: str, shared: str, job: str, number: int) -> str:
    """The checkpoint directory of a job: below its folder, or below one that all machines share.

    A shared one has the job number in its name, so that a later job of the same name does not find it.
    """
    return f"{shared}/{job}-{number}" if shared else f"{folder}/{CHECKPOINTS}"


def read_report(path: Path | str) -> WorkerReading | None:
    """Read the report of a worker; None if there is none or it is malformed."""
    try:
        file = safe_fs.open_file(path)
    except OSError:
        return None
    try:
        for _ in range(_TRIES):
            data = os.pread(file, _LAYOUT.size, 0)
            if len(data) < _LAYOUT.size:
                return None
            magic, sequence, *values = _LAYOUT.unpack(data)
            if magic != _MAGIC:
                return None
            if sequence % 2 == 0 and os.pread(file, 8, _SEQUENCE_AT) == _SEQUENCE.pack(sequence):
                return WorkerReading(*values)
    finally:
        os.close(file)
    return None


def write_json(path: Path, what: object, *, durable: bool = False) -> None:
    """Replace a file atomically, private to its owner; *durable* if it must survive a power failure."""
    safe_fs.replace_file(path, msgspec.json.encode(what), durable=durable)


def epochs_in_csv(path: Path) -> float | None:
    """Completed epochs in the CSV file of a Voda script, which has one row per epoch from 0; None if unreadable."""
    try:
        first, last = (part.decode(errors="replace") for part in safe_fs.read_ends(path, _CSV_BYTES))
        names = next(csv.reader(first.splitlines()), [])
        at = names.index("epoch")
        # The first line read may be partial, or the header.
        rows = [row for row in csv.reader(last.splitlines()[1:]) if len(row) > at and row[at]]
        epochs = float(rows[-1][at]) + 1.0 if rows else math.nan
    except (OSError, ValueError, csv.Error):
        return None
    return epochs if 0.0 < epochs < math.inf else None
