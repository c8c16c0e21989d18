"""The number of steps in a checkpoint that a script writes by itself, kept beside it.

A script for Gavel keeps no step count, so this is the only one: it belongs to what was saved, and steps after the last
save are lost with the worker that made them. The script's files and the count cannot change in one piece. Hence a note
is written first, with the new count and how the files look before: whoever finds the note after a kill can tell by the
files whether the save took place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from levada.runtime import checkpoint
from levada.runtime.checkpoint import Progress

#: Written before the script saves, removed when the count is kept.
NOTE = "levada.saving"
_OWN = (checkpoint.NAME, checkpoint.FENCE, NOTE)


class StepCount:
    """The steps in the checkpoint of one job in the folder that its script saves to."""

    def __init__(self, folder: Path, job: str) -> None:
        self._folder = folder
        self._job = job

    def read(self) -> Progress:
        """How far the checkpoint is; nothing done where there is none of this job."""
        kept = checkpoint.peek(self._folder, self._job) or Progress()
        try:
            note = json.loads((self._folder / NOTE).read_bytes())
            step, files, owner = int(note["step"]), note["files"], note["job"]
        except (OSError, ValueError, KeyError, TypeError):
            return kept
        if owner != self._job or files == self._files():
            return kept
        return Progress(step=step, saves=kept.saves + 1, saved_step=step)

    @contextmanager
    def saving(self, generation: int, progress: Progress) -> Iterator[None]:
        """A block in which the script saves *progress*; raises Outdated before it where a newer generation has."""
        checkpoint.check(self._folder, generation, self._job)
        self._folder.mkdir(parents=True, exist_ok=True)
        note = {"job": self._job, "step": progress.step, "files": self._files()}
        checkpoint.replace(self._folder, NOTE, json.dumps(note).encode())
        yield
        checkpoint.save(self._folder, generation, progress, b"", self._job)
        (self._folder / NOTE).unlink(missing_ok=True)

    def _files(self) -> dict[str, list[int]]:
        """How the script's files look: another inode, time or size means that it has written."""
        found = {}
        for entry in os.scandir(self._folder) if self._folder.is_dir() else ():
            if entry.name not in _OWN and not entry.name.startswith("."):
                stat = entry.stat(follow_symlinks=False)
                found[entry.name] = [stat.st_ino, stat.st_mtime_ns, stat.st_size]
        return found
