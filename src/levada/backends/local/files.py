"""The files between a worker and the supervisor of its machine: docs/design/004-live.md, section 2."""

from __future__ import annotations

import csv
import math
import os
import struct
from pathlib import Path

import msgspec

from levada.backends.local import folders

#: Files of a job and of a worker in their folders.
WORLD, JOB, REPORT, CHECKPOINTS, WORKERS = "world.json", "job.json", "report", "checkpoints", "workers"
#: Below the checkpoints: the newest generation that has saved, or begun to.
FENCE = "generation"
#: For Horovod: the hosts and their slots, and the script that prints them.
HOSTS, DISCOVER_HOSTS = "hosts", "discover_hosts.sh"
#: Exit codes of a worker: the whole job is done; it has saved, and left on request.
DONE, LEFT = 0, 75

#: Flags of a report.
READY, IN_PROCESS, COMPLETE, LEAVES, SAVES, LEASED = 1, 2, 4, 8, 16, 32

_MAGIC = b"LEVADA1\0"
_LAYOUT = struct.Struct("<8sQQQdddQddQ")
_SEQUENCE = struct.Struct("<Q")
_SEQUENCE_AT = 8
#: A writer is done in a microsecond; whoever meets it that often is better off with the last report.
_TRIES = 4
#: Of the lists that the scripts of Voda write, so much of the beginning and of the end is read.
_CSV_BYTES = 1 << 16


class Reading(msgspec.Struct, frozen=True):
    """A worker's report at one moment."""

    flags: int = 0
    #: That it has entered; 0 before the first.
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
        """It uses the runtime and could join."""
        return bool(self.flags & READY)

    @property
    def in_process(self) -> bool:
        """It changes generations without a restart."""
        return bool(self.flags & IN_PROCESS)

    @property
    def complete(self) -> bool:
        """It says that the whole job is done."""
        return bool(self.flags & COMPLETE)

    @property
    def saves_on_stop(self) -> bool:
        """It will save when it is asked to leave."""
        return bool(self.flags & SAVES)

    @property
    def leased(self) -> bool:
        """Exit code 0 does not say that the job is done; only `complete` does."""
        return bool(self.flags & LEASED)


class Address(msgspec.Struct, frozen=True):
    """Where something listens."""

    address: str
    port: int


class Lease(msgspec.Struct, frozen=True, omit_defaults=True):
    """How long workers may train without being told again."""

    #: Of the whole job, over all restarts.
    total_steps: float | None = None
    #: Unix time.
    until_time: float | None = None
    #: At that time.
    then: str = ""


class World(msgspec.Struct, frozen=True):
    """Who is a member of a generation; a member's rank is its place in the list."""

    generation: int
    members: tuple[str, ...]
    addresses: tuple[str, ...]
    master: Address
    #: Members prove to each other that they know it, so that no stranger takes a place.
    key: str = ""
    lease: Lease | None = None


def checkpoint_folder(folder: str, shared: str, job: str, number: int) -> str:
    """Where the checkpoints of a job are: in its folder, or in one that all machines share.

    There the number is in its name: a later job of the same name must not find what this one saved.
    """
    return f"{shared}/{job}-{number}" if shared else f"{folder}/{CHECKPOINTS}"


def read_report(path: Path | str) -> Reading | None:
    """What a worker reports; None where it reports nothing, or something else."""
    try:
        file = folders.open_file(path)
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
                return Reading(*values)
    finally:
        os.close(file)
    return None


def write_json(path: Path, what: object, *, durable: bool = False) -> None:
    """Replaces a file as a whole, for its owner alone; *durable* when it must outlive a loss of power."""
    folders.replace_file(path, msgspec.json.encode(what), durable=durable)


def epochs_in_csv(path: Path) -> float | None:
    """How many epochs the scripts of Voda say they have done: one row for each, counted from 0."""
    try:
        first, last = (part.decode(errors="replace") for part in folders.read_ends(path, _CSV_BYTES))
        names = next(csv.reader(first.splitlines()), [])
        at = names.index("epoch")
        # The first line of what was read may be a part of one, or the names.
        rows = [row for row in csv.reader(last.splitlines()[1:]) if len(row) > at and row[at]]
        epochs = float(rows[-1][at]) + 1.0 if rows else math.nan
    except (OSError, ValueError, csv.Error):
        return None
    return epochs if 0.0 < epochs < math.inf else None
