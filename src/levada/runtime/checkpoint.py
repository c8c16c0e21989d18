"""One checkpoint in a folder: replaced whole or not at all, and never by a generation older than its own.

The file begins with a line of JSON that tells how far the job was, then comes the state.
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


class Progress(NamedTuple):
    """How far a job is."""

    #: Steps done by the whole job.
    step: int = 0
    #: Passes over the data done.
    epoch: int = 0
    #: Items of the current pass done, by each worker.
    position: int = 0
    #: Checkpoints, ever, and the steps in the last one.
    saves: int = 0
    saved_step: int = 0


class Outdated(Exception):
    """A newer generation has saved: this worker should not be here any more."""


def peek(folder: Path, job: str = "") -> Progress | None:
    """How far the checkpoint of *job* in *folder* is; None where there is none, or only one of another job."""
    header = _header(folder)
    if header is None or not _is_of(header, job):
        return None
    return Progress(**{name: int(header.get(name, 0)) for name in Progress._fields})


def _header(folder: Path) -> dict[str, Any] | None:
    try:
        with open(folder / NAME, "rb") as file:
            header = json.loads(file.readline())
    except FileNotFoundError:
        return None
    except ValueError:
        raise ValueError(f"{folder / NAME} is no checkpoint of Levada: move it away to start anew") from None
    return header if isinstance(header, dict) else {}


def _is_of(header: dict[str, Any] | None, job: str) -> bool:
    """A folder that the user chose may hold the checkpoint of an earlier job; one without a name is the job's own."""
    owner = (header or {}).get("job", "")
    return not job or owner in ("", job)


def load(folder: Path) -> bytes:
    """The state in the checkpoint."""
    with open(folder / NAME, "rb") as file:
        file.readline()
        return file.read()


def save(folder: Path, generation: int, progress: Progress, state: bytes, job: str = "") -> None:
    """Replaces the checkpoint; raises Outdated where a newer generation of the same job has saved there."""
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        check(folder, generation, job)
        replace(folder, FENCE, f"{generation}\n".encode())
        owner = {"job": job} if job else {}
        header = json.dumps({"generation": generation, **owner, **progress._asdict()}).encode() + b"\n"
        replace(folder, NAME, header, state)


def check(folder: Path, generation: int, job: str = "") -> None:
    """Raises Outdated where a newer generation of *job* has saved, or begun to, in *folder*."""
    fence = saved_by(folder)
    if fence > generation and _is_of(_header(folder), job):
        raise Outdated(f"generation {fence} has saved in {folder}, so generation {generation} does not")


def saved_by(folder: Path) -> int:
    """The newest generation that has saved, or begun to, in *folder*."""
    try:
        return int((folder / FENCE).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def replace(folder: Path, name: str, *parts: bytes) -> None:
    """Puts a file in its place once every byte of it is on disk."""
    fresh = folder / f".{name}.{os.getpid()}"
    try:
        with open(fresh, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, folder / name)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keeps another who saves out meanwhile, where the file system knows locks."""
    with open(folder / _LOCK, "w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
