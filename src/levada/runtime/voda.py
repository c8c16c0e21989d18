"""Reads what training scripts written for Voda tell of their epochs, and runs them as they are.

    python -m levada.runtime.voda SCRIPT --name NAME --metrics-dir FOLDER ARGUMENT…

Rank 0 of such a script adds a line to FOLDER/NAME.csv after every epoch and saves its weights. An epoch is a step for
Levada. The script itself needs no change and knows nothing of it.
"""

from __future__ import annotations

import csv
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from levada.runtime import place
from levada.runtime.channel import connect
from levada.runtime.pulse import Pulse
from levada.runtime.report import COMPLETE, READY, Report

#: So many of the latest epochs tell how long one takes.
_RECENT = 5


class Epochs(NamedTuple):
    """How far a job is, as its file tells."""

    done: int = 0
    #: Seconds per epoch, with the workers that there are now; 0 where no epoch has ended.
    epoch_s: float = 0.0
    workers: int = 0
    #: Of the whole job; 0 where the file does not tell.
    total: int = 0


def read(path: str | os.PathLike[str]) -> Epochs:
    """What the file at *path* tells; nothing done where there is none. Lines that make no sense are passed over."""
    try:
        text = Path(path).read_text(errors="replace")
    except FileNotFoundError:
        return Epochs()
    # A line without its end is still being written.
    lines = text[: text.rfind("\n") + 1].splitlines()
    rows = [row for row in map(_row, csv.DictReader(lines)) if row is not None]
    if not rows:
        return Epochs()
    last = rows[-1]
    alike = [row.epoch_s for row in rows if row.workers == last.workers][-_RECENT:]
    return last._replace(done=max(row.done for row in rows), epoch_s=sum(alike) / len(alike))


def _row(fields: dict[str | None, str | None]) -> Epochs | None:
    try:
        workers, total = fields.get("workers") or "1", fields.get("total_epochs") or "0"
        seconds = float(fields["epoch_time_sec"] or "")
        row = Epochs(int(float(fields["epoch"] or "")) + 1, seconds, int(float(workers)), int(float(total)))
    except (KeyError, ValueError, OverflowError):
        return None
    return row if row.done > 0 and 0 <= seconds < float("inf") else None


class _Watch:
    """Turns the file into reports. It is read when it has changed."""

    def __init__(self, path: Path, generation: int) -> None:
        self._path = path
        self._generation = generation
        self._seen: tuple[int, int] | None = None
        self.epochs = Epochs()
        self.flags = READY

    def describe(self) -> Report:
        """The report of now."""
        try:
            found = self._path.stat()
            seen = (found.st_mtime_ns, found.st_size)
        except OSError:
            seen = None
        if seen != self._seen:
            self._seen, self.epochs = seen, read(self._path)
        done = self.epochs.done
        # These scripts save after every epoch.
        return Report(
            flags=self.flags,
            generation=self._generation,
            step=done,
            step_s=self.epochs.epoch_s,
            saves=done,
            saved_step=done,
        )


def find(arguments: Sequence[str]) -> Path | None:
    """The file that a script with these arguments writes."""
    values = {}
    for place_, argument in enumerate(arguments):
        name, has_value, value = argument.partition("=")
        if name in ("--name", "--metrics-dir"):
            values[name] = value if has_value else "".join(arguments[place_ + 1 : place_ + 2])
    if values.keys() != {"--name", "--metrics-dir"}:
        return None
    return Path(values["--metrics-dir"], values["--name"] + ".csv")


def main() -> None:
    """Runs a script and tells Levada of its epochs."""
    path = find(sys.argv[2:])
    if len(sys.argv) < 2 or path is None:
        raise SystemExit(
            "usage: python -m levada.runtime.voda SCRIPT --name NAME --metrics-dir FOLDER ARGUMENT…\n"
            "FOLDER/NAME.csv is where the script tells of its epochs"
        )
    here = place.read()
    watch = _Watch(path, here.generation)
    pulse = Pulse(connect(here), watch.describe, lambda news: None)
    pulse.start()
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        watch.flags |= COMPLETE
    except SystemExit as error:
        if not error.code:
            watch.flags |= COMPLETE
        raise
    finally:
        pulse.end()


if __name__ == "__main__":
    main()
