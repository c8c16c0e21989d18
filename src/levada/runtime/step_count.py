"""Step count of a checkpoint that a script writes itself, stored beside it.

A Gavel script keeps no step count, so this is the only one. It belongs to the checkpoint: steps after the last save are
lost with the worker. The script's files and the count cannot be replaced atomically. So a note with the new count and
the state of the files is written first; after a kill, a comparison with the files shows whether the save took place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from levada.runtime import checkpoint
from levada.runtime.checkpoint import SavedProgress

#: Written before the script saves, removed when the count is stored.
NOTE = "levada.saving"
_OWN = (checkpoint.NAME, checkpoint.FENCE, NOTE)


class StepCount:
    """Step count of a job's checkpoint in the folder to which its script saves."""

    def __init__(self, folder: Path, job: str) -> None:
        self._folder = folder
        self._job = job

    def read(self) -> SavedProgress:
        """The progress in the checkpoint; zero if there is none of this job."""
        saved = checkpoint.peek(self._folder, self._job) or SavedProgress()
        try:
            note = json.loads((self._folder / NOTE).read_bytes())
            step, files, owner = int(note["step"]), note["files"], note["job"]
        except (OSError, ValueError, KeyError, TypeError):
            return saved
        if owner != self._job or files == self._files():
            return saved
        return SavedProgress(step=step, saves=saved.saves + 1, saved_step=step)

    @contextmanager
    def saving(self, generation: int, progress: SavedProgress) -> Iterator[None]:
        """A block in which the script saves *progress*; raises Outdated first if a newer generation has saved."""
        checkpoint.check(self._folder, generation, self._job)
        self._folder.mkdir(parents=True, exist_ok=True)
        note = {"job": self._job, "step": progress.step, "files": self._files()}
        checkpoint.replace(self._folder, NOTE, json.dumps(note).encode())
        yield
        checkpoint.save(self._folder, generation, progress, b"", self._job)
        (self._folder / NOTE).unlink(missing_ok=True)

    def _files(self) -> dict[str, list[int]]:
        """Inode, time and size of the script's files; a difference means that it has saved."""
        files = {}
        for entry in os.scandir(self._folder) if self._folder.is_dir() else ():
            if entry.name not in _OWN and not entry.name.startswith("."):
                stat = entry.stat(follow_symlinks=False)
                files[entry.name] = [stat.st_ino, stat.st_mtime_ns, stat.st_size]
        return files
