"""Voda adapter: runs its training scripts and reads their epoch CSV files.

    python -m levada.runtime.voda SCRIPT --name NAME --metrics-dir FOLDER ARGUMENT…

Rank 0 of a Voda script appends a line to FOLDER/NAME.csv after every epoch and saves its weights. An epoch is a step of
the job. The script needs no change.
"""

from __future__ import annotations

import csv
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from levada.runtime import worker_env
from levada.runtime.channel import connect
from levada.runtime.heartbeat import HeartbeatThread
from levada.runtime.report import COMPLETE, READY, ProgressReport

#: Number of latest epochs in the average epoch time.
_RECENT = 5


class Epochs(NamedTuple):
    """Progress of a job, as read from its CSV file."""

    done: int = 0
    #: Seconds per epoch with the current number of workers; 0 before the first epoch has ended.
    epoch_s: float = 0.0
    workers: int = 0
    #: Epochs of the whole job; 0 if unknown.
    total: int = 0


def read(path: str | os.PathLike[str]) -> Epochs:
    """Read a CSV file; no progress if it does not exist. Malformed lines are skipped."""
    try:
        text = Path(path).read_text(errors="replace")
    except FileNotFoundError:
        return Epochs()
    # A line without a line break is still being written.
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
    """Turns the CSV file into reports; reads it only when it has changed."""

    def __init__(self, path: Path, generation: int) -> None:
        self._path = path
        self._generation = generation
        self._version: tuple[int, int] | None = None
        self.epochs = Epochs()
        self.flags = READY

    def describe(self) -> ProgressReport:
        """The current report."""
        try:
            stat = self._path.stat()
            version = (stat.st_mtime_ns, stat.st_size)
        except OSError:
            version = None
        if version != self._version:
            self._version, self.epochs = version, read(self._path)
        done = self.epochs.done
        # These scripts save after every epoch.
        return ProgressReport(
            flags=self.flags,
            generation=self._generation,
            step=done,
            step_s=self.epochs.epoch_s,
            saves=done,
            saved_step=done,
        )


def find(arguments: Sequence[str]) -> Path | None:
    """The CSV file of a script with these arguments; None if they do not name one."""
    values = {}
    for at, argument in enumerate(arguments):
        name, has_value, value = argument.partition("=")
        if name in ("--name", "--metrics-dir"):
            values[name] = value if has_value else "".join(arguments[at + 1 : at + 2])
    if values.keys() != {"--name", "--metrics-dir"}:
        return None
    return Path(values["--metrics-dir"], values["--name"] + ".csv")


def main() -> None:
    """Run a script and report its epochs."""
    path = find(sys.argv[2:])
    if len(sys.argv) < 2 or path is None:
        raise SystemExit(
            "usage: python -m levada.runtime.voda SCRIPT --name NAME --metrics-dir FOLDER ARGUMENT…\n"
            "FOLDER/NAME.csv is the file to which the script writes its epochs"
        )
    here = worker_env.read()
    watch = _Watch(path, here.generation)
    heartbeat = HeartbeatThread(connect(here), watch.describe, lambda instructions: None)
    heartbeat.start()
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
        heartbeat.end()


if __name__ == "__main__":
    main()
