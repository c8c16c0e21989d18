"""Checkpoint file: replaced atomically, and fenced against older generations.

The file has a JSON line with the progress of the job, followed by the state.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

NAME = "levada.checkpoint"
FENCE = "generation"
_LOCK = ".lock"


class SavedProgress(NamedTuple):
    """Progress of a job."""

    #: Steps completed by the whole job.
    step: int = 0
    #: Completed epochs.
    epoch: int = 0
    #: Completed items of the current epoch, per worker.
    position: int = 0
    #: Number of checkpoints over all restarts, and the steps in the last one.
    saves: int = 0
    saved_step: int = 0


class Outdated(Exception):
    """A newer generation has saved: this worker must leave."""


def peek(folder: Path, job: str = "") -> SavedProgress | None:
    """The progress in the checkpoint of *job* in *folder*; None if there is none or it belongs to another job."""
    header = _header(folder)
    if header is None or not _belongs_to(header, job):
        return None
    return SavedProgress(**{name: int(header.get(name, 0)) for name in SavedProgress._fields})


def _header(folder: Path) -> dict[str, Any] | None:
    try:
        with open(folder / NAME, "rb") as file:
            header = json.loads(file.readline())
    except FileNotFoundError:
        return None
    except ValueError:
        raise ValueError(f"{folder / NAME} is not a Levada checkpoint: move it away to start from scratch") from None
    return header if isinstance(header, dict) else {}


def _belongs_to(header: dict[str, Any] | None, job: str) -> bool:
    """Whether a checkpoint belongs to *job*: a folder chosen by the user may hold that of an earlier job.

    A checkpoint without a job name is in the job's own folder.
    """
    owner = (header or {}).get("job", "")
    return not job or owner in ("", job)


def load(folder: Path) -> bytes:
    """Read the state in the checkpoint."""
    with open(folder / NAME, "rb") as file:
        file.readline()
        return file.read()


def save(folder: Path, generation: int, progress: SavedProgress, state: bytes, job: str = "") -> None:
    """Replace the checkpoint; raises Outdated if a newer generation of the same job has saved there."""
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        check(folder, generation, job)
        replace(folder, FENCE, f"{generation}\n".encode())
        owner = {"job": job} if job else {}
        header = json.dumps({"generation": generation, **owner, **progress._asdict()}).encode() + b"\n"
        replace(folder, NAME, header, state)


def check(folder: Path, generation: int, job: str = "") -> None:
    """Raise Outdated if a newer generation of *job* has saved, or begun to save, in *folder*."""
    fence = saved_by(folder)
    if fence > generation and _belongs_to(_header(folder), job):
        raise Outdated(f"generation {fence} has saved in {folder}, so generation {generation} does not")


def saved_by(folder: Path) -> int:
    """The newest generation that has saved, or begun to save, in *folder*."""
    try:
        return int((folder / FENCE).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def replace(folder: Path, name: str, *parts: bytes) -> None:
    """Replace a file atomically and durably."""
    temporary = folder / f".{name}.{os.getpid()}"
    try:
        with open(temporary, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, folder / name)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of *folder*, if its file system supports locks."""
    with open(folder / _LOCK, "w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
